"""Predictions as Parquet: written atomically with checksums and a digest, read strictly and piece by piece."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from counterpoise._addresses import as_path
from counterpoise._blocks import rows_at_a_time
from counterpoise._digests import digest_path, write_digest
from counterpoise._files import FilePath, digest_of, replacing
from counterpoise.predictions.columns import Layout
from counterpoise.predictions.compression import check_expansion
from counterpoise.predictions.digest import Source
from counterpoise.predictions.footer import Footer, read_footer
from counterpoise.predictions.prediction_file import RawTable, refusing
from counterpoise.predictions.schema import METADATA_KEY, SCHEMA, Shape, header_json, parse_header
from counterpoise.predictions.table import (
    CATEGORIES,
    MISSING_LABEL,
    Category,
    Header,
    PredictionFileError,
    Predictions,
)

_ROW_GROUP_ROWS = 1 << 17
_ROW_GROUP_VALUES = 1 << 21
_READ_BUFFERS = 1 << 22
_SAMPLE_ROWS = 1000
_SAMPLE_TEXT = 1 << 24
"""Bytes of text in the sample of a column."""
_WHAT = "Parquet file"
_SMALLEST_READ_BUFFER = 1 << 14
_SMALLEST_REQUEST = 1 << 20
_READ_WHOLE = 1 << 24
"""Bytes of a file at hand whose columns are read at once, taking no memory for what the head of a page declares."""
_FOOTER_STRINGS = 1 << 24
_FOOTER_ITEMS = 1 << 18
MOST_ROW_GROUPS = 1 << 16
"""That are written: with all columns a group takes up to 1,000 bytes of the footer, and readers take 64 MB of that."""
_ITEM_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""In memory. Text is read as codes into its distinct values."""


class PredictionWriter:
    """Appends tables to one file, which appears, whole, when the `with` block ends without an error.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "predictions.parquet"
    >>> with PredictionWriter(path) as writer:
    ...     for start in (0, 2):
    ...         writer.append(Predictions.of(logits=[[1.0, 0.0], [0.0, 2.0]], labels=[0, 1], ids=[start, start + 1]))
    >>> from counterpoise.predictions import open_predictions
    >>> open_predictions(path).rows
    4
    """

    def __init__(self, path: str | FilePath) -> None:
        self.path = as_path(path)
        if self.path.suffix.lower() != ".parquet":
            raise ValueError(f"{self.path}: predictions are written as .parquet; readers go by the suffix")
        self._stack = ExitStack()
        self._temporary: Path | None = None
        self._sink: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._rows = self._pending_rows = 0

    def __enter__(self) -> Self:
        self._temporary = self._stack.enter_context(replacing(self.path))
        return self

    def append(self, predictions: Predictions) -> None:
        """Add rows; every table has the columns, classes and header of the first. Without ids, rows are numbered on."""
        if self._temporary is None:
            raise ValueError(f"{self.path}: append inside the writer's with block")
        shape = Shape.of(predictions)
        if self._sink is None:
            self._sink = pq.ParquetWriter(
                self._temporary,
                shape.schema().with_metadata({METADATA_KEY: header_json(shape, predictions.header)}),
                compression=_compression(shape),
                use_dictionary=[*CATEGORIES],
                write_page_checksum=True,
            )
            self._stack.callback(self._sink.close)
            self._shape, self._header, self._numbered = shape, predictions.header, predictions.numbered
        if shape != self._shape:
            raise ValueError(f"{self.path}: the table has {shape}, the first one had {self._shape}")
        if predictions.header != self._header:
            raise ValueError(f"{self.path}: the table has {predictions.header}, the first one had {self._header}")
        if predictions.numbered != self._numbered:
            raise ValueError(f"{self.path}: some tables have ids and some have none; give ids= for all, or for none")
        if predictions.numbered:
            predictions = replace(predictions, ids=predictions.ids + self._rows)
        most = most_rows(shape.width)
        if self._rows + len(predictions) > most:
            raise ValueError(
                f"{self.path}: a file holds at most {most:,} rows of {shape.width:,} values; "
                "write several files, or stream the metrics"
            )
        step = _row_group_rows(shape.width)
        for start in range(0, len(predictions), step):
            self._pending.append(_record_batch(predictions.rows(start, start + step), shape))
            self._pending_rows += self._pending[-1].num_rows
            self._write_full_groups()
        self._rows += len(predictions)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        temporary, self._temporary = self._temporary, None
        if kind is not None or temporary is None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            if self._sink is None or not self._rows:
                raise ValueError(f"{self.path}: no predictions were appended")
            if self._pending:
                self._sink.write_table(_table(self._pending))
            self._sink.close()
            digest = digest_of(temporary)
            # A crash from here on leaves a file without a digest, never one with another file's.
            digest_path(self.path).unlink(missing_ok=True)
        write_digest(self.path, digest)

    def _write_full_groups(self) -> None:
        """What does not fill a group waits, so that many small tables do not become many small groups."""
        rows = _row_group_rows(self._shape.width)
        full = self._pending_rows - self._pending_rows % rows
        if full and self._sink is not None:
            table = _table(self._pending)
            self._sink.write_table(table.slice(0, full), row_group_size=rows)
            self._pending_rows -= full
            self._pending = table.slice(full).to_batches() if self._pending_rows else []


def most_rows(width: int) -> int:
    """Rows that a file can hold, of `width` values each."""
    return _row_group_rows(width) * MOST_ROW_GROUPS


def _row_group_rows(width: int) -> int:
    return min(_ROW_GROUP_ROWS, max(1, _ROW_GROUP_VALUES // width))


def write_predictions(path: str | FilePath, predictions: Predictions) -> None:
    """Write a table as one file, atomically, with its digest beside it."""
    with PredictionWriter(path) as writer:
        writer.append(predictions)


def open_parquet(source: Source) -> RawTable:
    """Check footer and columns of a file; its rows are read later, batch by batch."""
    with refusing(source.path, what=_WHAT):
        with source.reopened() as handle:
            footer = read_footer(handle, source.size)
            handle.seek(0)
            schema = _parquet_file(handle, source, buffer=_SMALLEST_READ_BUFFER).schema_arrow
        stated = _stated(schema)
        known = [name for name in schema.names if _may_be_read(schema.field(name).type)]
        # Columns that are stored as dictionaries are read so; the order of their categories may be meant.
        texts = {
            chunk.path[0]
            for chunk in footer.chunks
            if chunk.physical_type == "BYTE_ARRAY"
            and len(chunk.path) == 1
            and not pa.types.is_dictionary(schema.field(chunk.path[0]).type)
        }
        sample = _sample(source, footer, known, texts)
    # Each column has a buffer of its own.
    smallest = _SMALLEST_REQUEST if source.is_remote else _SMALLEST_READ_BUFFER
    buffer = max(smallest, _READ_BUFFERS * len(footer.group_rows) // len(footer.chunks))

    def batches(
        wanted: Sequence[str], _layout: Layout | None, *, groups: range | None = None
    ) -> Iterator[pa.RecordBatch]:
        chosen = {*wanted}
        names = [name for name in schema.names if name in chosen]
        row_bytes = _check_sizes(footer, source, names)
        dictionaries = tuple(name for name in names if name in texts)
        with source.reopened() as handle:
            file = _parquet_file(handle, source, buffer=buffer, dictionaries=dictionaries)
            rows = rows_at_a_time(row_bytes)
            found = file.iter_batches(rows, row_groups=groups, columns=names, use_threads=False)
            yield from _filled(found, rows)

    layout, header = stated or (None, None)
    return RawTable(
        source=source,
        what=_WHAT,
        sample=sample,
        rows=footer.rows,
        group_rows=footer.group_rows,
        batches=batches,
        layout=layout,
        header=header,
    )


def _filled(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of up to so many rows. Read as dictionaries, text ends a batch with its row group, however short."""
    held, count = list[pa.RecordBatch](), 0
    for batch in batches:
        if held and count + len(batch) > rows:
            yield from _table(held).combine_chunks().to_batches()
            held, count = [], 0
        held.append(batch)
        count += len(batch)
    if count:
        yield from _table(held).combine_chunks().to_batches()


def _stated(schema: pa.Schema) -> tuple[Layout, Header] | None:
    """What an own file says of itself; None of a file of another program."""
    metadata = schema.metadata or {}
    stored = metadata.get(METADATA_KEY)
    if stored is None:
        if any(SCHEMA.encode() in value for value in metadata.values()):
            raise PredictionFileError("the name of its header is damaged; restore the file or write it again")
        return None
    shape, header = parse_header(stored)
    if not schema.equals(shape.schema()):
        raise PredictionFileError("its columns are not those that its header states; write it again")
    layout = Layout(shape.kind, (shape.kind,), shape.width, members=shape.members, label=("label",), id="id")
    return replace(layout, class_names=header.class_names, descriptive={name: name for name in shape.columns}), header


def _sample(source: Source, footer: Footer, names: list[str], texts: set[str]) -> pa.RecordBatch:
    """The first rows of the columns that could mean something; text that repeats and is long stays a dictionary."""
    row_bytes = _check_sizes(footer, source, names)
    with source.reopened() as handle:
        dictionaries = tuple(name for name in names if name in texts)
        file = _parquet_file(handle, source, buffer=_SMALLEST_READ_BUFFER, dictionaries=dictionaries)
        rows = min(_SAMPLE_ROWS, rows_at_a_time(row_bytes))
        batch = next(file.iter_batches(rows, columns=names, use_threads=False), None)
        if batch is None:
            raise PredictionFileError("its pages are damaged; restore the file or write it again")
        plain = {
            name: column.dictionary_decode()
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name in dictionaries and _decoded_bytes(column) <= _SAMPLE_TEXT
        }
        columns = [plain.get(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
        return pa.record_batch(columns, batch.schema.names, metadata=file.schema_arrow.metadata)


def _decoded_bytes(column: pa.DictionaryArray) -> int:
    lengths = pc.binary_length(column.dictionary)
    return pc.sum(lengths.take(column.indices).cast(pa.int64())).as_py() or 0


def _may_be_read(kind: pa.DataType) -> bool:
    """Whether a column of this type could mean something: numbers, text, truth values and lists of them."""
    nested = pa.types.is_nested(kind)
    value = kind.value_type if nested and hasattr(kind, "value_type") else kind
    return not pa.types.is_struct(kind) and not pa.types.is_binary(value) and not pa.types.is_large_binary(value)


def _parquet_file(
    handle: pa.NativeFile, source: Source, *, buffer: int, dictionaries: tuple[str, ...] = ()
) -> pq.ParquetFile:
    return pq.ParquetFile(
        handle,
        page_checksum_verification=True,
        buffer_size=0 if source.size <= _READ_WHOLE and not source.is_remote else buffer,
        pre_buffer=False,  # it would load whole row groups, which a foreign file may have one of
        read_dictionary=[*dictionaries],
        thrift_string_size_limit=_FOOTER_STRINGS,
        thrift_container_size_limit=_FOOTER_ITEMS,
    )


def _check_sizes(footer: Footer, source: Source, names: Sequence[str]) -> int:
    """Refuse what no file of this size can hold; returns the bytes of a row of these columns."""
    rows = footer.rows
    if rows == 0:
        raise PredictionFileError("it has no rows")
    if min(footer.group_rows, default=-1) < 0 or sum(footer.group_rows) != rows:
        raise PredictionFileError(f"it declares {rows:,} rows, its parts do not add up to that; write it again")
    wanted = {*names}
    read = [chunk for chunk in footer.chunks if chunk.path[0] in wanted]
    declared = sum(max(chunk.values * _ITEM_BYTES.get(chunk.physical_type, 2), chunk.unpacked) for chunk in read)
    check_expansion(declared=declared, stored=source.size, what="it")
    return max(1, declared // rows)


def _compression(shape: Shape) -> dict[str, str]:
    """Values hardly compress: on network outputs zstd saves a tenth of the bytes and doubles the time to read them."""
    plain = f"{shape.kind}.list.element"
    return dict.fromkeys((name for name in shape.schema().names if name != shape.kind), "zstd") | {plain: "none"}


def _table(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches).unify_dictionaries()


def _record_batch(predictions: Predictions, shape: Shape) -> pa.RecordBatch:
    """A copy: Arrow would share the memory of the arrays, which a loop may fill anew before they are written."""
    schema = shape.schema()
    arrays = {
        "id": pa.array(np.array(predictions.ids), schema.field("id").type),
        "label": pa.array(np.array(predictions.labels, np.int64), mask=predictions.labels == MISSING_LABEL),
        shape.kind: pa.FixedSizeListArray.from_arrays(
            pa.array(np.array(predictions.values).reshape(-1)), type=schema.field(shape.kind).type
        ),
    }
    if arrays["id"].null_count:
        raise ValueError("ids must not be missing")
    for name in shape.columns:
        column = getattr(predictions, name)
        arrays[name] = (
            _dictionary(column) if isinstance(column, Category) else pa.array(np.array(column), schema.field(name).type)
        )
    return pa.record_batch([arrays[name] for name in schema.names], schema=schema)


def _dictionary(column: Category) -> pa.DictionaryArray:
    codes = pa.array(np.array(column.codes, np.int32), mask=column.codes < 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(column.names, pa.string()))
