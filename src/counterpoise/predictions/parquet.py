"""Predictions as Parquet: written atomically with checksums and a digest, read strictly and piece by piece."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise._blocks import rows_at_a_time
from counterpoise._files import digest_of, replacing
from counterpoise.predictions.digest import Source, digest_path, verified, write_digest
from counterpoise.predictions.footer import Footer, read_footer
from counterpoise.predictions.layout import DESCRIPTIVE, Layout, find_layout, predictions_of
from counterpoise.predictions.limits import check_expansion
from counterpoise.predictions.prediction_file import PredictionFile, notices_of, refusing
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
_SMALLEST_READ_BUFFER = 1 << 14
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
    >>> open_parquet(path).rows
    4
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
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
        """Add rows; every table has the columns, classes and header of the first."""
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
            self._shape, self._header = shape, predictions.header
        if shape != self._shape:
            raise ValueError(f"{self.path}: the table has {shape}, the first one had {self._shape}")
        if predictions.header != self._header:
            raise ValueError(f"{self.path}: the table has {predictions.header}, the first one had {self._header}")
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


def write_predictions(path: str | Path, predictions: Predictions) -> None:
    """Write a table as one file, atomically, with its digest beside it."""
    with PredictionWriter(path) as writer:
        writer.append(predictions)


@dataclass(frozen=True)
class _Contents:
    """What the footer of a file says."""

    layout: Layout
    has_header: bool
    header: Header
    classes: int
    members: int | None
    rows: int
    batch: int
    columns: tuple[str, ...]
    dictionaries: tuple[str, ...]
    buffer: int


def open_parquet(path: Path) -> PredictionFile:
    """Check digest, footer and columns of a file; its rows are read later, batch by batch."""
    with refusing(path, what="Parquet file"), verified(path) as (source, opened):
        contents = _contents(source, read_footer(opened, source.size))

    def read() -> Iterator[Predictions]:
        row = 0
        with refusing(path, what="Parquet file"), source.reopened() as handle:
            file = _parquet_file(handle, buffer=contents.buffer, dictionaries=contents.dictionaries)
            for batch in file.iter_batches(contents.batch, columns=[*contents.columns], use_threads=False):
                if batch.num_rows == 0:
                    continue
                yield predictions_of(
                    batch,
                    layout=contents.layout,
                    header=contents.header,
                    classes=contents.classes,
                    members=contents.members,
                    first_row=row,
                )
                row += batch.num_rows
            if row != contents.rows:
                raise PredictionFileError(f"it declares {contents.rows:,} rows and holds {row:,}; write it again")

    return PredictionFile(
        path=path,
        kind=contents.layout.kind,
        classes=contents.classes,
        members=contents.members,
        rows=contents.rows,
        header=contents.header,
        has_ids="id" in contents.columns,
        digest=source.digest,
        notices=notices_of(source, contents.layout.ignored, has_header=contents.has_header),
        read=read,
    )


def _contents(source: Source, footer: Footer) -> _Contents:
    with source.reopened() as handle:
        file = _parquet_file(handle, buffer=_SMALLEST_READ_BUFFER)
        schema = file.schema_arrow
        metadata = schema.metadata or {}
        stored = metadata.get(METADATA_KEY)
        if stored is None and any(SCHEMA.encode() in value for value in metadata.values()):
            raise PredictionFileError("the name of its header is damaged; restore the file or write it again")
        if stored is None:
            layout, members = find_layout(schema.names), None
            header = Header(class_names=layout.class_names)
        else:
            shape, header = parse_header(stored)
            if not schema.equals(shape.schema()):
                raise PredictionFileError("its columns are not those that its header states; write it again")
            layout, members = Layout(shape.kind, (shape.kind,), None, ()), shape.members
        list_size = _list_size(schema, layout)
        values = _check_sizes(footer, source, layout=layout, list_size=list_size)
        width = _width(file, layout, list_size)
    names = tuple(name for name in schema.names if name not in layout.ignored)
    texts = {chunk.path for chunk in footer.chunks if chunk.physical_type == "BYTE_ARRAY"}
    return _Contents(
        layout=layout,
        has_header=stored is not None,
        header=header,
        classes=width // (members or 1),
        members=members,
        rows=footer.rows,
        # The first row of a foreign file may be its shortest.
        batch=rows_at_a_time(_value_bytes(schema, layout) * max(width, values // footer.rows)),
        columns=names,
        dictionaries=tuple(name for name in names if name in DESCRIPTIVE and (name,) in texts),
        # Each column has a buffer of its own.
        buffer=max(_SMALLEST_READ_BUFFER, _READ_BUFFERS * len(footer.group_rows) // len(footer.chunks)),
    )


def _parquet_file(handle: pa.OSFile, *, buffer: int, dictionaries: tuple[str, ...] = ()) -> pq.ParquetFile:
    return pq.ParquetFile(
        handle,
        page_checksum_verification=True,
        buffer_size=buffer,
        pre_buffer=False,  # it would load whole row groups, which a foreign file may have one of
        read_dictionary=[*dictionaries],
        thrift_string_size_limit=_FOOTER_STRINGS,
        thrift_container_size_limit=_FOOTER_ITEMS,
    )


def _check_sizes(footer: Footer, source: Source, *, layout: Layout, list_size: int | None) -> int:
    """Refuse what no file of this size can hold; returns how many values the columns of predictions declare."""
    rows = footer.rows
    if rows == 0:
        raise PredictionFileError("it has no rows")
    if min(footer.group_rows, default=-1) < 0 or sum(footer.group_rows) != rows:
        raise PredictionFileError(f"it declares {rows:,} rows, its parts do not add up to that; write it again")
    read = [chunk for chunk in footer.chunks if chunk.path[0] not in layout.ignored]
    values = sum(chunk.values for chunk in read if chunk.path[0] in layout.columns)
    values = max(values, rows * (list_size or len(layout.columns)))
    declared = sum(max(chunk.values * _ITEM_BYTES.get(chunk.physical_type, 2), chunk.unpacked) for chunk in read)
    check_expansion(declared=max(declared, 2 * values), stored=source.size, what="it")
    return values


def _value_bytes(schema: pa.Schema, layout: Layout) -> int:
    """Of one prediction in memory."""
    kind = schema.field(layout.columns[0]).type
    kind = kind if layout.columns != (layout.kind,) else kind.value_type
    return int(kind.bit_width) // 8 if pa.types.is_floating(kind) else 8


def _list_size(schema: pa.Schema, layout: Layout) -> int | None:
    """Values a row where the type of the column says so."""
    kind = schema.field(layout.columns[0]).type
    return kind.list_size if pa.types.is_fixed_size_list(kind) else None


def _width(file: pq.ParquetFile, layout: Layout, list_size: int | None) -> int:
    """Values a row; where nothing states it, as many as the first row has."""
    if layout.columns != (layout.kind,):
        return len(layout.columns)
    kind = file.schema_arrow.field(layout.kind).type
    if list_size is None and not pa.types.is_list(kind) and not pa.types.is_large_list(kind):
        raise PredictionFileError(
            f"column {layout.kind!r} has type {kind}; it must be a list of floating point numbers"
        )
    if list_size is None:
        first = next(file.iter_batches(1, columns=[layout.kind], use_threads=False)).column(0)[0]
        list_size = len(first) if first.is_valid else 0
    if not list_size:
        raise PredictionFileError(f"row 0, column {layout.kind!r} is empty; every row needs a value for each class")
    return list_size


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
