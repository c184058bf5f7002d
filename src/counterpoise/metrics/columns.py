"""Descriptions of samples: which rows are corrupted, and which belong together as a group."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.metrics.keys import Keys, sample_keys

Mask = NDArray[np.bool_]
GroupKey = tuple[tuple[str, str | int], ...]
"""Columns and their values, such as `(("domain", "sketch"), ("severity", 2))`; what is not stated is not there."""


class Column(NamedTuple):
    """A descriptive column as codes `[n]` into its distinct values; the code -1 is a missing value."""

    codes: NDArray[Any]
    values: Sequence[str | int]

    @classmethod
    def of(cls, values: Iterable[Any]) -> "Column":
        """From one value a row; None is missing, and so is what pandas writes for it, which is not equal to itself.

        >>> Column.of(["fog", None, "fog"])
        Column(codes=array([ 0, -1,  0]), values=['fog'])
        """
        codes: dict[str | int, int] = {}
        plain = values.tolist() if hasattr(values, "tolist") else values
        python: Iterable[Any] = (each.item() if isinstance(each, np.generic | Tensor) else each for each in plain)
        column = [-1 if _is_missing(value) else codes.setdefault(value, len(codes)) for value in python]
        return cls(np.array(column, np.int64), list(codes))

    def take(self, rows: Mask) -> "Column":
        return Column(self.codes[rows], self.values)


Columns = Mapping[str, Column]


def _is_missing(value: Any) -> bool:
    """NaN is not equal to itself; whether pandas' NA is, cannot be said."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def label_column(label: NDArray[Any], labels: int, names: Sequence[str] | None) -> Columns:
    """Which label each decision of a multilabel problem is about, by its number `[n]`."""
    return {"label": Column(label, list(names or map(str, range(labels))))}


MARKS_OF_CORRUPTION = ("corruption", "severity")


def is_corrupted(columns: Columns, rows: int) -> Mask:
    """Which rows are corrupted, by the columns `corruption` and `severity`.

    A corruption may be named for clean samples too, if their severity is stated to be 0.

    >>> is_corrupted({"corruption": Column.of(["fog", "fog", None]), "severity": Column.of([0, 3, None])}, 3)
    array([False,  True, False])
    """
    corruption, severity = map(columns.get, MARKS_OF_CORRUPTION)
    corrupted: Mask = np.zeros(rows, bool) if corruption is None else corruption.codes >= 0
    if severity is not None:
        level = np.array([*map(int, severity.values), -1])[severity.codes]
        corrupted = (corrupted & (level != 0)) | (level > 0)
    return corrupted


def group_rows(columns: Columns) -> Iterator[tuple[GroupKey, Mask]]:
    """The distinct descriptions of some rows, with the rows of each; nothing where there are no columns."""
    if not columns:
        return
    names = sorted(columns)
    codes = np.stack([columns[name].codes for name in names], -1)
    distinct, index = np.unique(codes, axis=0, return_inverse=True)
    for place, row in enumerate(distinct.tolist()):
        key = tuple((name, columns[name].values[code]) for name, code in zip(names, row, strict=True) if code >= 0)
        yield key, index.reshape(-1) == place


def group_code(key: GroupKey) -> int:
    """64 bits that stand for a group wherever its samples are: in any batch, file and worker."""
    return int(sample_keys([repr(key)])[0])


def group_codes(groups: Iterable[tuple[GroupKey, Mask]], rows: int) -> Keys:
    """The code of each row's group `[n]`; 0 without groups."""
    codes = np.zeros(rows, np.uint64)
    for key, own in groups:
        codes[own] = group_code(key)
    return codes
