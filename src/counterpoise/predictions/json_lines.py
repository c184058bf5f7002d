"""Predictions from JSON lines: one object a sample, whose names are those of columns; within objects, as `a.b`."""

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.json as pa_json

from counterpoise.predictions.compression import opened, read_bytes
from counterpoise.predictions.digest import Source
from counterpoise.predictions.prediction_file import RawTable, table_of_batches
from counterpoise.predictions.table import PredictionFileError

_BLOCK_BYTES = 1 << 23
_NULL_LINE = re.compile(rb"(?:^|[\r\n])(?:\xef\xbb\xbf)?\s*null")


def open_json_lines(source: Source) -> RawTable:
    """Read the first block."""
    return table_of_batches(source, _batches, what="file of JSON lines")


def _batches(source: Source) -> Iterator[pa.RecordBatch]:
    with opened(source) as handle, pa.PythonFile(_WithoutNullLines(handle), mode="r") as checked:
        options = pa_json.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
        with pa_json.open_json(checked, read_options=options) as batches:
            for batch in batches:
                batch.validate(full=True)  # Arrow's offsets of lists that begin with null lead out of the values
                if batch.num_rows:
                    yield from _flattened(batch)


def _flattened(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The same with a column for each name within objects; nothing where no column is left."""
    table = pa.Table.from_batches([batch])
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches


class _WithoutNullLines:
    """The bytes of a file, refused at a line that is null: where it begins a block, Arrow ends the process."""

    def __init__(self, handle: pa.NativeFile) -> None:
        self._handle, self._line, self.closed = handle, b"", False

    def read(self, size: int) -> bytes:
        data = read_bytes(self._handle, size)
        seen = self._line + data
        # The search for a word is a hundred times faster than the pattern, and most files have none.
        if b"null" in seen and _NULL_LINE.search(seen):
            raise PredictionFileError("a line of it is null; a line is an object, such as {...}: remove that line")
        # What has begun the last line, as far as that could still become null.
        begun = seen[max(seen.rfind(b"\n"), seen.rfind(b"\r")) + 1 :].lstrip()
        self._line = b"\n" + begun[:8]
        return data

    def close(self) -> None:
        self.closed = True
