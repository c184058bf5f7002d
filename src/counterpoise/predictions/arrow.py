"""Predictions from Arrow files and streams: Feather, `pyarrow.ipc`, and what Hugging Face `datasets` keeps."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from counterpoise._blocks import rows_at_a_time
from counterpoise.predictions.columns import Layout
from counterpoise.predictions.digest import Source, verified
from counterpoise.predictions.prediction_file import RawTable, refusing
from counterpoise.predictions.table import PredictionFileError

_WHAT = "Arrow file"


def open_arrow(path: Path) -> RawTable:
    """Read the schema and the first rows."""
    with refusing(path, what=_WHAT), verified(path) as (source, _):
        sample = next(_batches(source), None)
        if sample is None:
            raise PredictionFileError("it has no rows")

    def batches(wanted: Sequence[str], _layout: Layout | None) -> Iterator[pa.RecordBatch]:
        names = [name for name in sample.schema.names if name in wanted]
        step = rows_at_a_time(max(1, sample.nbytes // sample.num_rows))
        for batch in _batches(source):
            yield from (batch.slice(row, step).select(names) for row in range(0, batch.num_rows, step))

    return RawTable(source=source, what=_WHAT, sample=sample, rows=None, batches=batches)


def _batches(source: Source) -> Iterator[pa.RecordBatch]:
    with source.reopened() as handle:
        is_file = handle.read(6) == b"ARROW1"
        handle.seek(0)
        reader = pa.ipc.open_file(handle) if is_file else pa.ipc.open_stream(handle)
        found = (reader.get_batch(place) for place in range(reader.num_record_batches)) if is_file else iter(reader)
        for batch in found:
            batch.validate(full=True)  # offsets that lead out of the buffers are not checked otherwise
            if batch.num_rows:
                yield batch
