"""Rows of one Parquet file, local or by its address on the hub or in a store."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from counterpoise._addresses import as_path, regular
from counterpoise._extras import require
from counterpoise._json import parsed
from counterpoise.data.chunks import UNLABELLED, Chunk, class_names
from counterpoise.data.sources import DataSource, open_file

_BUFFER = 1 << 20
"""Bytes of a column that are read ahead."""

_BYTES = "bytes"
"""Field of an image column that holds more than the bytes."""

_DOMAIN = "domain"
_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label", "labels")


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what."""

    image: str
    label: str
    domain: str | None

    @property
    def names(self) -> list[str]:
        return [self.image, self.label, *([self.domain] if self.domain else [])]


class ParquetRows:
    """One Parquet file of a source."""

    def __init__(self, source: DataSource, name: str) -> None:
        parquet = require("pyarrow.parquet", extra="train", purpose="reading Parquet files")
        self.name = str(as_path(name))
        try:
            handle = open_file(name) if "://" in name else str(regular(Path(name)))
            # Read as it is needed: a row group may be as large as the file.
            with _readable(self.name):
                self.file = parquet.ParquetFile(handle, pre_buffer=False, buffer_size=_BUFFER)
        except OSError as error:
            raise ValueError(f"{self.name} cannot be read as Parquet: {error}") from None
        schema = self.file.schema_arrow
        self.columns = columns_of(source, schema, self.name)
        self.classes = class_names(source, _stored_names(schema, self.columns.label, self.name), self.name)

    def index(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows of each row group, and what `chunks` finds it by: its number."""
        metadata = self.file.metadata
        groups = range(metadata.num_row_groups)
        return np.array([metadata.row_group(group).num_rows for group in groups], np.int64), np.arange(len(groups))

    def chunks(self, place: int, rows: npt.NDArray[np.int64], *, most: int) -> Iterator[Chunk]:
        """Some rows of a row group, by their sorted numbers in it, which are the chunks' ids too."""
        arrow = require("pyarrow", extra="train", purpose="reading Parquet files")
        first, last, names = 0, rows[-1], self.columns.names
        batches = self.file.iter_batches(most, row_groups=[place], columns=names, use_threads=False)
        for batch in _each(batches, self.name):
            here = rows[(rows >= first) & (rows < first + len(batch))]
            if len(here):
                table = arrow.Table.from_batches([batch]).take(arrow.array(here - first))
                yield chunk_of(table, self.columns, here, self.name)
            first += len(batch)
            if first > last:
                break

    def labels(self) -> npt.NDArray[np.int64]:
        return labels_in(self._column(self.columns.label))

    def domains(self) -> list[str | None]:
        """Of all rows of the file; none where there are no domains."""
        found: list[str | None] = [] if self.columns.domain is None else self._column(self.columns.domain).to_pylist()
        return found

    def _column(self, name: str) -> Any:
        with _readable(self.name):
            return self.file.read(columns=[name], use_threads=False).column(name)


def _each(batches: Iterator[Any], where: str) -> Iterator[Any]:
    """The batches; what is wrong with their bytes is said of the file, and what a reader does with them is its own."""
    while True:
        with _readable(where):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """Damaged bytes are a `ValueError` that names the file; what the system says of a disk or a network stays."""
    arrow = require("pyarrow", extra="train", purpose="reading Parquet files")
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{where} cannot be read as Parquet: {str(error).strip().splitlines()[0]}") from None


def columns_of(source: DataSource, schema: Any, where: str) -> Columns:
    """The columns of a source, checked against those that an Arrow table has."""
    types = require("pyarrow", extra="train", purpose="reading Parquet files").types
    info, names = source.info, schema.names
    columns = Columns(
        image=_column(names, (info.image,) if info.image else _IMAGE_COLUMNS, where),
        label=_column(names, (info.label,) if info.label else _LABEL_COLUMNS, where),
        domain=_column(names, (_DOMAIN,), where) if info.domains else None,
    )
    image, label = schema.field(columns.image).type, schema.field(columns.label).type
    if not (types.is_struct(image) or types.is_binary(image) or types.is_large_binary(image)):
        raise ValueError(f"{where}: column {columns.image!r} has type {image}; it must hold encoded images")
    if types.is_struct(image):
        place = image.get_field_index(_BYTES)
        if place < 0 or not (types.is_binary(image[place].type) or types.is_large_binary(image[place].type)):
            raise ValueError(f"{where}: column {columns.image!r} has no field {_BYTES!r} of bytes; its type is {image}")
    if not types.is_integer(label):
        raise ValueError(f"{where}: column {columns.label!r} has type {label}; it must hold class indices")
    return columns


def chunk_of(table: Any, columns: Columns, ids: npt.NDArray[np.int64], file: str) -> Chunk:
    """The rows of an Arrow table, whose row numbers are `ids`."""
    arrow = require("pyarrow", extra="train", purpose="reading Parquet files")
    compute = require("pyarrow.compute", extra="train", purpose="reading Parquet files")
    image = table.column(columns.image)
    if arrow.types.is_struct(image.type):
        image = compute.struct_field(image, _BYTES)
    return Chunk(image.to_pylist(), labels_in(table.column(columns.label)), ids, [file] * len(ids))


def labels_in(column: Any) -> npt.NDArray[np.int64]:
    """The labels of an Arrow column."""
    arrow = require("pyarrow", extra="train", purpose="reading Parquet files")
    compute = require("pyarrow.compute", extra="train", purpose="reading Parquet files")
    labels: npt.NDArray[np.int64] = compute.fill_null(column.cast(arrow.int64()), UNLABELLED).to_numpy()
    return labels


def _stored_names(schema: Any, label: str, where: str) -> list[str]:
    """Names of the classes that the library `datasets` wrote into a Parquet file, if it did."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        node = parsed(text)
        for key in ("info", "features", label, "names"):
            node = node.get(key, {})
    except (ValueError, AttributeError):
        node = None
    if node == {}:
        return []
    if not isinstance(node, list) or not all(isinstance(name, str) for name in node):
        raise ValueError(f"{where}: its Hugging Face metadata are damaged: they should name the classes of {label!r}")
    return node


def _column(names: list[str], known: tuple[str, ...], where: str) -> str:
    for name in known:
        if name in names:
            return name
    raise ValueError(f"{where} has no column {' or '.join(map(repr, known))}; its columns are {', '.join(names)}")
