"""Descriptions of samples: which rows are corrupted, and which belong together as a group."""

from collections.abc import Collection, Iterable, Mapping, Sequence
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
        """From one value a row, others than text and numbers as text; None is missing, and so is NaN or pandas' NA.

        >>> Column.of(["fog", None, "fog"])
        Column(codes=array([ 0, -1,  0]), values=['fog'])
        """
        codes: dict[str | int, int] = {}
        plain = values.tolist() if hasattr(values, "tolist") else values
        python: Iterable[Any] = (each.item() if isinstance(each, np.generic | Tensor) else each for each in plain)
        column = [-1 if _is_missing(value) else codes.setdefault(_plain(value), len(codes)) for value in python]
        return cls(np.array(column, np.int64), list(codes))

    def take(self, rows: Mask) -> "Column":
        return Column(self.codes[rows], self.values)


Columns = Mapping[str, Column]


def _plain(value: Any) -> str | int:
    """A value that a saved state can hold: a date or time is text, `2026-11-20`."""
    return value if isinstance(value, str | int | float) else str(value)  # type: ignore[return-value]


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
MOST_GROUPS = 500
"""By columns that somebody chose."""
_UNBOUNDED = ("domain", "label", *MARKS_OF_CORRUPTION)
"""Columns that describe samples without anybody's choice."""


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


def group_rows(columns: Columns, rows: int) -> tuple[list[GroupKey], NDArray[np.intp]]:
    """The distinct descriptions of some rows, and the place of each row's `[n]`; none if there are no columns."""
    if not columns:
        return [], np.zeros(rows, np.intp)
    names = sorted(columns)
    codes = np.stack([columns[name].codes for name in names], -1)
    distinct, index = np.unique(codes, axis=0, return_inverse=True)
    keys = [
        tuple((name, columns[name].values[code]) for name, code in zip(names, row, strict=True) if code >= 0)
        for row in distinct.tolist()
    ]
    return keys, index.reshape(-1)


def require_few_groups(keys: Iterable[GroupKey], *, unbounded: Collection[str] = _UNBOUNDED) -> None:
    """Reject columns that make too many groups, before anything is measured for each group."""
    chosen = {tuple(each for each in key if each[0] not in unbounded) for key in keys}
    if len(chosen) > MOST_GROUPS:
        names = dict.fromkeys(name for key in chosen for name, _ in key)
        raise ValueError(
            f"by {' '.join(names)}: more than {MOST_GROUPS:,} groups; name columns of fewer values, or bins of them"
        )


def group_code(key: GroupKey) -> int:
    """64 bits that stand for a group wherever its samples are: in any batch, file and worker."""
    return int(sample_keys([repr(key)])[0])


def group_codes(keys: Sequence[GroupKey], index: NDArray[np.intp]) -> Keys:
    """The code of each row's group `[n]`; 0 without groups."""
    codes: Keys = np.array([*map(group_code, keys)] or [0], np.uint64)[index]
    return codes
