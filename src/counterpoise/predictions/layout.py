"""Which columns of a table hold what, and a checked `Predictions` from a batch of them.

Shared by every format with named columns: own Parquet files, other programs' Parquet files, CSV.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from counterpoise.predictions.table import (
    CATEGORIES,
    KINDS,
    MISSING_LABEL,
    MISSING_SEVERITY,
    Array,
    Category,
    Header,
    Kind,
    PredictionFileError,
    Predictions,
)

SINGULAR: dict[Kind, str] = {"logits": "logit", "probabilities": "probability"}
_LARGEST = np.iinfo(np.int64).max
DESCRIPTIVE = ("id", "label", *CATEGORIES, "severity", "in_distribution")


@dataclass(frozen=True)
class Layout:
    """Where the values of a table are.

    Attributes:
        kind: logits or probabilities.
        columns: a single column of lists, or one column for each class, in the order of the classes.
        class_names: from the names of the columns, where these are not numbers.
        ignored: columns that mean nothing here.
    """

    kind: Kind
    columns: tuple[str, ...]
    class_names: tuple[str, ...] | None
    ignored: tuple[str, ...]


def find_layout(names: Sequence[str]) -> Layout:
    """Find `logits` or `probabilities`, or `logit_NAME` or `probability_NAME` for each class.

    Columns that are numbered from 0 are put in that order; other names are the names of the classes, which must not be
    numbers: a label 1 could be the class of that name, or the second one.

    >>> find_layout(["label", "logit_1", "logit_0", "comment"])
    Layout(kind='logits', columns=('logit_0', 'logit_1'), class_names=None, ignored=('comment',))
    """
    repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if repeated:
        raise PredictionFileError(f"the column {repeated[0]!r} appears more than once")
    found = [(kind, columns) for kind in KINDS if (columns := _value_columns(names, kind))]
    if len(found) != 1:
        wanted = "a list column 'logits' or 'probabilities', or one column 'logit_NAME' or 'probability_NAME' a class"
        state = "holds both logits and probabilities" if found else "has no predictions"
        raise PredictionFileError(f"the table {state}: it needs {wanted}; its columns are {_some(names)}")
    kind, columns = found[0]
    class_names = None
    if columns != (kind,):
        columns, class_names = _in_order(columns, tuple(name.removeprefix(f"{SINGULAR[kind]}_") for name in columns))
    known = {*columns, *DESCRIPTIVE}
    return Layout(kind, columns, class_names, tuple(name for name in names if name not in known))


def _in_order(columns: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    numbered = {int(suffix): column for column, suffix in zip(columns, suffixes, strict=True) if _is_number(suffix)}
    if not numbered:
        return columns, suffixes
    if sorted(numbered) != list(range(len(columns))):
        raise PredictionFileError(
            f"the columns {_some(columns)} are not numbered from 0 to {len(columns) - 1}; number them so, or give "
            "every class a name that is no number"
        )
    return tuple(numbered[index] for index in range(len(columns))), None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,18}", text) is not None


def _value_columns(names: Sequence[str], kind: Kind) -> tuple[str, ...]:
    return (kind,) if kind in names else tuple(name for name in names if name.startswith(f"{SINGULAR[kind]}_"))


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def predictions_of(
    batch: pa.RecordBatch, *, layout: Layout, header: Header, classes: int, members: int | None, first_row: int
) -> Predictions:
    """A checked table from the columns of one batch, whose first row is row `first_row` of the file."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    rows = batch.num_rows
    values = _values(columns, layout, classes * (members or 1), first_row)
    categories = {name: _category(columns[name], name) for name in CATEGORIES if name in columns}
    severity, inside = columns.get("severity"), columns.get("in_distribution")
    return Predictions(
        kind=layout.kind,
        values=values if members is None else values.reshape(rows, members, classes),
        labels=_labels(columns.get("label"), rows, classes, header.class_names, first_row),
        ids=_ids(columns.get("id"), rows, first_row),
        **categories,
        severity=None if severity is None else _severities(severity, first_row),
        in_distribution=None if inside is None else _flags(inside, first_row),
        header=header,
    )


def _values(columns: dict[str, Any], layout: Layout, width: int, first_row: int) -> Array:
    if layout.columns != (layout.kind,):
        return np.column_stack([_floats(columns[name], name, first_row) for name in layout.columns])
    name = layout.kind
    lists = columns[name]
    fixed = pa.types.is_fixed_size_list(lists.type)
    if not fixed and not pa.types.is_list(lists.type) and not pa.types.is_large_list(lists.type):
        raise PredictionFileError(f"column {name!r} has type {lists.type}; it must be a list of floating point numbers")
    _refuse_null(lists, name, first_row)
    lengths = np.full(len(lists), lists.type.list_size) if fixed else _array(pc.list_value_length(lists))
    wrong = np.flatnonzero(lengths != width)
    if len(wrong):
        row = int(wrong[0])
        raise PredictionFileError(
            f"row {first_row + row}, column {name!r} has {lengths[row]} values, the rows before it have {width}"
        )
    return _floats(lists.flatten(), name, first_row, width=width).reshape(len(lists), width)


def _floats(column: Any, name: str, first_row: int, *, width: int = 1) -> Array:
    if not pa.types.is_floating(column.type):
        raise PredictionFileError(f"column {name!r} holds {column.type}; store it as floating point numbers")
    _refuse_null(column, name, first_row, width=width)
    return _array(column)


def _refuse_null(column: Any, name: str, first_row: int, *, width: int = 1) -> None:
    if column.null_count:
        row = first_row + pc.index(column.is_null(), True).as_py() // width
        raise PredictionFileError(f"row {row}, column {name!r} is missing; fill it in or leave the row out")


def _labels(column: Any, rows: int, classes: int, names: tuple[str, ...] | None, first_row: int) -> Array:
    if column is None:
        return np.full(rows, MISSING_LABEL, np.int64)
    if _holds_text(column.type):
        return _text_labels(column, classes, names, first_row)
    labels = _integers(column, "label", first_row, missing=MISSING_LABEL)
    wrong = np.flatnonzero(_given(column) & ((labels < 0) | (labels >= classes)))
    if len(wrong):
        raise _wrong_label(first_row + int(wrong[0]), labels[wrong[0]], classes)
    return labels


def _text_labels(column: Any, classes: int, names: tuple[str, ...] | None, first_row: int) -> Array:
    """Names of classes, or their indices as text, as CSV has them."""
    codes, texts = _texts(column)
    index = {name: number for number, name in enumerate(names or ())}
    numbers = [
        MISSING_LABEL if not text else int(text) if _is_number(text.strip()) else index.get(text, classes)
        for text in texts
    ]
    inside = [not text or 0 <= number < classes for text, number in zip(texts, numbers, strict=True)]
    wrong = np.flatnonzero(~np.array([*inside, True])[codes])
    if len(wrong):
        raise _wrong_label(first_row + int(wrong[0]), repr(texts[codes[wrong[0]]]), classes)
    return np.array([*numbers, MISSING_LABEL], np.int64)[codes]


def _wrong_label(row: int, label: object, classes: int) -> PredictionFileError:
    return PredictionFileError(
        f"row {row}, column 'label' is {label}, neither an index in [0, {classes}) nor the name of a class; "
        "leave the label of a sample without a class empty"
    )


def _ids(column: Any, rows: int, first_row: int) -> Array:
    if column is None:
        return np.arange(first_row, first_row + rows, dtype=np.int64)
    _refuse_null(column, "id", first_row)
    if not _holds_text(column.type):
        return _integers(column, "id", first_row, missing=0)
    codes, texts = _texts(column)
    if None in texts:
        raise PredictionFileError("column 'id' has missing ids; fill them in")
    return np.array(texts, dtype=object)[codes]


def _category(column: Any, name: str) -> Category:
    if pa.types.is_null(column.type):
        return Category(np.full(len(column), -1, np.int32), ())
    if not _holds_text(column.type):
        raise PredictionFileError(f"column {name!r} has type {column.type}; it must hold text")
    codes, texts = _texts(column)
    # Nothing keeps a foreign dictionary from naming a text twice. Some programs write "" for what is missing.
    index: dict[str, int] = {}
    table = [-1 if not text else index.setdefault(text, len(index)) for text in texts]
    return Category(np.array([*table, -1], np.int32)[codes], tuple(index))


def _texts(column: Any) -> tuple[NDArray[np.int32], list[str | None]]:
    """Codes into distinct texts, -1 where a text is missing: what repeats is made a Python object once."""
    encoded = column if pa.types.is_dictionary(column.type) else column.cast(pa.large_string()).dictionary_encode()
    return _filled(encoded.indices.cast(pa.int32()), -1), encoded.dictionary.to_pylist()


def _integers(column: Any, name: str, first_row: int, *, missing: int) -> Array:
    numbers = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if pa.types.is_null(numbers.type):
        return np.full(len(column), missing, np.int64)
    if not pa.types.is_integer(numbers.type):
        text = " or text" if name in ("id", "label") else ""
        raise PredictionFileError(f"column {name!r} has type {column.type}; store it as integers{text}")
    if pa.types.is_uint64(numbers.type):
        row = pc.index(pc.greater(numbers, pa.scalar(_LARGEST, pa.uint64())), True).as_py()
        if row >= 0:
            raise PredictionFileError(
                f"row {first_row + row}, column {name!r} is {numbers[row]}, above the largest integer kept, {_LARGEST}"
            )
    return _filled(numbers.cast(pa.int64()), missing)


def _severities(column: Any, first_row: int) -> Array:
    severities = _integers(column, "severity", first_row, missing=MISSING_SEVERITY)
    if len(wrong := np.flatnonzero(severities < MISSING_SEVERITY)):
        raise PredictionFileError(
            f"row {first_row + int(wrong[0])}, column 'severity' is {severities[wrong[0]]}; it is 0 for clean samples, "
            "else at least 1"
        )
    return severities


def _flags(column: Any, first_row: int) -> Array:
    if not pa.types.is_boolean(column.type):
        raise PredictionFileError(f"column 'in_distribution' has type {column.type}; it must hold true or false")
    _refuse_null(column, "in_distribution", first_row)
    return _array(column.cast(pa.uint8())).view(np.bool_)


def _array(column: Any) -> Array:
    """Numbers without missing ones, shared with Arrow; its own `to_numpy` would import pandas where it can."""
    return np.from_dlpack(column)


def _given(column: Any) -> NDArray[np.bool_]:
    return _array(column.is_valid().cast(pa.uint8())).view(np.bool_)


def _filled(column: Any, missing: int) -> Array:
    if not column.null_count:
        return _array(column)
    values = pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], offset=column.offset)
    return np.where(_given(column), _array(values), missing)


def _holds_text(kind: Any) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value))
