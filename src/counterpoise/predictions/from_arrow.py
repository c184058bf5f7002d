"""Columns of Arrow as arrays, in the same memory.

Arrow's own `to_numpy` would import pandas where it is installed, which takes longer than reading most files.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from counterpoise.predictions.table import Array, PredictionFileError

_LARGEST = np.iinfo(np.int64).max
_YES = ("true", "t", "1", "1.0", "yes", "y", "right", "correct")
_NO = ("false", "f", "0", "0.0", "no", "n", "wrong", "incorrect")


def array_of(column: Any) -> NDArray[Any]:
    """Numbers, of which none is missing."""
    return np.from_dlpack(column)


def is_given(column: Any) -> NDArray[np.bool_]:
    """Which values of a column are not missing."""
    return array_of(column.is_valid().cast(pa.uint8())).view(np.bool_)


def filled(column: Any, missing: float) -> NDArray[Any]:
    """Numbers, with one in the place of those that are missing."""
    if not column.null_count:
        return array_of(column)
    values = pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], offset=column.offset)
    return np.where(is_given(column), array_of(values), missing)


def without_decimals(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same with numbers in the place of decimals, which databases write: whole ones as integers."""
    for place, field in enumerate(batch.schema):
        if pa.types.is_decimal(field.type):
            kind = pa.float64() if field.type.scale > 0 else pa.int64()
            batch = batch.set_column(place, field.name, batch.column(place).cast(kind))
    return batch


def holds_text(kind: Any) -> bool:
    """Whether a type is that of text, in a dictionary or not."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value))


def as_text(column: Any) -> Any:
    """The values as text."""
    return (column.dictionary_decode() if pa.types.is_dictionary(column.type) else column).cast(pa.large_string())


def texts_of(column: Any) -> tuple[NDArray[np.int32], list[str | None]]:
    """Codes into distinct texts, -1 where a text is missing: what repeats is made a Python object once."""
    encoded = column if pa.types.is_dictionary(column.type) else column.cast(pa.large_string()).dictionary_encode()
    return filled(encoded.indices.cast(pa.int32()), -1), encoded.dictionary.to_pylist()


def integers_of(column: Any, name: str, first_row: int, *, missing: int) -> Array:
    """Whole numbers, with one in the place of those that are missing; never rounded."""
    numbers = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if pa.types.is_null(numbers.type):
        return np.full(len(column), missing, np.int64)
    if not pa.types.is_integer(numbers.type):
        raise PredictionFileError(f"column {name!r} has type {column.type}; store it as integers or text")
    if pa.types.is_uint64(numbers.type):
        row = pc.index(pc.greater(numbers, pa.scalar(_LARGEST, pa.uint64())), True).as_py()
        if row >= 0:
            raise PredictionFileError(
                f"row {first_row + row}, column {name!r} is {numbers[row]}, above the largest integer kept, {_LARGEST}"
            )
    return filled(numbers.cast(pa.int64()), missing)


def truths_of(column: Any, name: str, first_row: int) -> Any:
    """A column of true and false, however they are written."""
    if not holds_text(column.type):
        if not pa.types.is_boolean(column.type):
            numbers = column.cast(pa.float64())
            column = pc.if_else(pc.is_nan(numbers), None, numbers)
            known = pc.or_(pc.equal(column, 0), pc.equal(column, 1))
            if (wrong := pc.index(known, False).as_py()) >= 0:
                raise PredictionFileError(
                    f"row {first_row + wrong}, column {name!r} is {column[wrong].as_py():g}; write true or false, or "
                    "call it 'label' if it is the class that would be right"
                )
        return column.cast(pa.bool_())
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(as_text(column)))
    right, known = (pc.is_in(texts, pa.array(words, pa.large_string())) for words in (_YES, (*_YES, *_NO)))
    if (wrong := pc.index(pc.or_(known, pc.is_null(texts)), False).as_py()) >= 0:
        raise PredictionFileError(
            f"row {first_row + wrong}, column {name!r} is {column[wrong].as_py()!r:.60}; write true or false"
        )
    return pc.if_else(pc.is_null(texts), None, right)


def refuse_null(column: Any, name: str, first_row: int, *, width: int = 1) -> None:
    """Refuse a missing value; `width` of them make a row of the file."""
    if column.null_count:
        row = first_row + pc.index(column.is_null(), True).as_py() // width
        raise PredictionFileError(f"row {row}, column {name!r} is missing; fill it in or leave the row out")


def without(column: Any, words: Sequence[str]) -> Any:
    """A column of text in which these stand for what is missing."""
    if not words or not holds_text(column.type):
        return column
    kept = as_text(column.dictionary if pa.types.is_dictionary(column.type) else column)
    # A pattern, because an array of words would import pandas as well.
    found = pc.match_substring_regex(kept, rf"^({'|'.join(map(re.escape, words))})$")
    if not pc.any(found).as_py():
        return column
    if pa.types.is_dictionary(column.type):
        codes = pc.if_else(
            pc.is_in(column.indices, pc.indices_nonzero(found).cast(column.indices.type)), None, column.indices
        )
        return pa.DictionaryArray.from_arrays(codes, kept)
    return pc.if_else(found, None, kept)
