"""Predictions from JSON lines: one object a sample, whose names are those of columns."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pa_json

from counterpoise.predictions.columns import Layout
from counterpoise.predictions.compression import opened
from counterpoise.predictions.digest import Source, verified
from counterpoise.predictions.prediction_file import RawTable, refusing
from counterpoise.predictions.table import PredictionFileError

_BLOCK_BYTES = 1 << 23
_WHAT = "file of JSON lines"


def open_json_lines(path: Path) -> RawTable:
    """Read the first block; the types that it has are those of all."""
    with refusing(path, what=_WHAT), verified(path) as (source, _):
        sample = next(_batches(source), None)
        if sample is None:
            raise PredictionFileError("it has no rows")

    def batches(wanted: Sequence[str], _layout: Layout | None) -> Iterator[pa.RecordBatch]:
        names = [name for name in sample.schema.names if name in wanted]
        return (batch.select(names) for batch in _batches(source))

    return RawTable(source=source, what=_WHAT, sample=sample, rows=None, batches=batches)


def _batches(source: Source) -> Iterator[pa.RecordBatch]:
    with opened(source) as handle:
        options = pa_json.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
        with pa_json.open_json(handle, read_options=options) as batches:
            yield from (batch for batch in batches if batch.num_rows)
