"""Predictions from JSON lines: one object a sample, whose names are those of columns."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.json as pa_json

from counterpoise.predictions.compression import opened
from counterpoise.predictions.digest import Source
from counterpoise.predictions.prediction_file import RawTable, table_of_batches

_BLOCK_BYTES = 1 << 23


def open_json_lines(source: Source) -> RawTable:
    """Read the first block."""
    return table_of_batches(source, _batches, what="file of JSON lines")


def _batches(source: Source) -> Iterator[pa.RecordBatch]:
    with opened(source) as handle:
        options = pa_json.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
        with pa_json.open_json(handle, read_options=options) as batches:
            yield from (batch for batch in batches if batch.num_rows)
