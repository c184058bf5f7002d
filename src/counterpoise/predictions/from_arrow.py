"""Columns of Arrow as arrays, in the same memory.

Arrow's own `to_numpy` would import pandas where it is installed, which takes longer than reading most files.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


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
