"""Predictions from Arrow files and streams: Feather, `pyarrow.ipc`, and what Hugging Face `datasets` keeps."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from counterpoise.predictions.compression import check_expansion
from counterpoise.predictions.digest import Source
from counterpoise.predictions.prediction_file import RawTable, table_of_batches


def open_arrow(source: Source) -> RawTable:
    """Read the schema and the first rows."""
    return table_of_batches(source, _batches, what="Arrow file")


def _batches(source: Source) -> Iterator[pa.RecordBatch]:
    with _justified(source), source.reopened() as handle:
        is_file = handle.read(6) == b"ARROW1"
        handle.seek(0)
        reader = pa.ipc.open_file(handle) if is_file else pa.ipc.open_stream(handle)
        found = (reader.get_batch(place) for place in range(reader.num_record_batches)) if is_file else iter(reader)
        for batch in found:
            batch.validate(full=True)  # offsets that lead out of the buffers are not checked otherwise
            if batch.num_rows:
                yield batch


@contextmanager
def _justified(source: Source) -> Iterator[None]:
    """Memory that the bytes of a file cannot justify is a fault of the file; lengths of its buffers may be damaged."""
    try:
        yield
    except pa.ArrowMemoryError as error:
        if size := re.search(r"size (\d+)", str(error)):
            check_expansion(declared=int(size[1]), stored=source.size, what="it")
        raise
