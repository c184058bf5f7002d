"""What the first rows of a table show: the types of columns, widths of lists, texts, and sums."""

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from counterpoise._choices import SUM_TOLERANCE
from counterpoise.predictions.from_arrow import filled
from counterpoise.predictions.table import PredictionFileError

_ANSWERS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
_UNORDERED = {b"counterpoise.order": b"none"}


def is_number(sample: pa.RecordBatch, name: str) -> bool:
    """Whether a column holds numbers."""
    kind = sample.schema.field(name).type
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def seems_number(sample: pa.RecordBatch, name: str) -> bool:
    """Whether a column holds text that begins like a number."""
    return any(re.match(r"\s*[+-]?[.]?[0-9]", text) for text in texts_in(sample.column(name)))


def is_floating(sample: pa.RecordBatch, name: str) -> bool:
    """Whether these are floating point numbers."""
    return bool(pa.types.is_floating(sample.schema.field(name).type))


def repeats(sample: pa.RecordBatch, name: str) -> bool:
    """Whether a value of a column occurs in several rows, as labels do and names of samples do not."""
    return len(sample) < 2 or bool(pc.count_distinct(sample.column(name)).as_py() < len(sample))


def is_list(sample: pa.RecordBatch, name: str) -> bool:
    """Whether a column holds lists, of one length or not."""
    return _is_of_lists(sample.schema.field(name).type)


def is_list_of_numbers(sample: pa.RecordBatch, name: str) -> bool:
    """Whether a column holds lists of numbers, or lists of such lists."""
    kind = sample.schema.field(name).type
    while _is_of_lists(kind):
        kind = kind.value_type
    return is_list(sample, name) and bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_of_lists(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_list_of_texts(sample: pa.RecordBatch, name: str) -> bool:
    """Whether a column holds lists of texts."""
    return is_list(sample, name) and bool(texts_in(sample.column(name).flatten()))


def list_width(sample: pa.RecordBatch, name: str) -> int:
    """The length of the lists of a column, by the first row."""
    column = sample.column(name)
    width = column.type.list_size if pa.types.is_fixed_size_list(column.type) else None
    if width is None:
        first = column[0] if len(column) else None
        width = len(first) if first is not None and first.is_valid else 0
    if not width:
        raise PredictionFileError(f"row 0, column {name!r} is empty; every row needs a value for each class")
    return int(width)


def texts_in(column: Any) -> list[str]:
    """The distinct texts of a column of text; none of any other column."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        return []
    return [text for text in dict.fromkeys(pc.unique(column).to_pylist()) if text]


def categories_of(sample: pa.RecordBatch, name: str) -> tuple[str, ...] | None:
    """The categories of a pandas column, whose order is meant; that of other dictionaries is how they were met."""
    column = sample.column(name)
    if not pa.types.is_dictionary(column.type) or b"pandas" not in (sample.schema.metadata or {}):
        return None
    return tuple(map(str, column.dictionary.to_pylist()))


def unordered(name: str) -> pa.Field:
    """A column of scores of one class, which came with its name and whose place among the others says nothing."""
    return pa.field(name, pa.float64(), metadata=_UNORDERED)


def is_unordered(sample: pa.RecordBatch, columns: tuple[str, ...]) -> bool:
    """Whether these are such columns."""
    return all(_UNORDERED.items() <= (sample.schema.field(name).metadata or {}).items() for name in columns)


def values_of(sample: pa.RecordBatch, columns: tuple[str, ...]) -> np.ndarray[Any, Any] | None:
    """The numbers `[n, K]` of a column of lists or of K columns; None where lists differ in length, or hold lists."""
    if len(columns) == 1 and is_list(sample, columns[0]):
        if pa.types.is_nested(sample.schema.field(columns[0]).type.value_type):
            return None
        rows = sample.column(columns[0]).to_pylist()
        return np.array(rows, float) if rows and len({len(row or ()) for row in rows}) == 1 else None
    return np.column_stack([filled(sample.column(name).cast(pa.float64()), np.nan) for name in columns])


def largest(sample: pa.RecordBatch, columns: tuple[str, ...]) -> float:
    """Of all numbers that are finite; 0 where there is none."""
    values = values_of(sample, columns)
    return 0.0 if values is None else float(np.max(values, where=np.isfinite(values), initial=0))


def least(sample: pa.RecordBatch, columns: tuple[str, ...], *, initial: float = 0.0) -> float:
    """Of all numbers that are finite, and of `initial`."""
    values = values_of(sample, columns)
    return initial if values is None else float(np.min(values, where=np.isfinite(values), initial=initial))


def sums_to(sample: pa.RecordBatch, columns: tuple[str, ...], total: float) -> bool:
    """Whether no number is negative, and each row sums to about a total."""
    try:
        values = values_of(sample, columns)
    except (TypeError, ValueError, pa.ArrowInvalid):
        return False
    if values is None or not values.size:
        return False
    return bool(((values >= 0).all(-1) & (abs(values.sum(-1) - total) <= SUM_TOLERANCE * total)).all())


def runs_that_sum(
    sample: pa.RecordBatch, columns: Sequence[str], within: AbstractSet[str] = frozenset()
) -> list[tuple[str, ...]]:
    """Columns side by side, with all of some among them, whose rows sum to about 1; the most columns first."""
    values = values_of(sample, tuple(columns))
    if values is None or not values.size:
        return []
    inside = [place for place, name in enumerate(columns) if name in within]
    total = np.pad(values.cumsum(-1), ((0, 0), (1, 0)))
    begun = np.pad((~(values >= 0)).any(0).cumsum(), (1, 0))  # columns so far with a number that is none of 0 or more
    found = []
    for first in range(min(inside, default=len(columns)) + 1):
        last = np.arange(max([first + 1, *inside]) + 1, len(columns) + 1)
        last = last[begun[last] == begun[first]]
        last = last[abs(total[0, last] - total[0, first] - 1) <= SUM_TOLERANCE]  # most fail in the first row
        sums = abs(total[:, last] - total[:, [first]] - 1) <= SUM_TOLERANCE
        found += [(first, end) for end in last[sums.all(0)].tolist()]
    return [tuple(columns[first:end]) for first, end in sorted(found, key=lambda run: run[0] - run[1])]


def has_fractions(sample: pa.RecordBatch, name: str) -> bool:
    """Whether a column holds numbers that are not whole."""
    values = values_of(sample, (name,)) if is_floating(sample, name) else None
    return values is not None and bool((values[np.isfinite(values)] % 1 != 0).any())


def single_ones(column: Any) -> bool:
    """Whether each list has a single 1 and else zeros."""
    rows = np.array(column.to_pylist(), float)
    return bool((((rows == 0) | (rows == 1)).all(-1) & (rows.sum(-1) == 1)).all())


def are_single_ones(sample: pa.RecordBatch, columns: tuple[str, ...]) -> bool:
    """Whether each row of columns of 0 and 1, however they are written, has a single 1."""
    rows = [sample.column(name).cast(pa.string()).to_pylist() for name in columns]
    found = np.array([[_ANSWERS.get(str(cell).strip().lower(), -1) for cell in row] for row in rows]).T
    return bool(((found >= 0).all(-1) & (found.sum(-1) == 1)).all())
