"""Encoded images and labels, chunk by chunk, from wherever a source has them; nothing is decoded here."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from counterpoise._extras import require
from counterpoise.data.sources import ROOT_VARIABLE, WHOLE, Source, stored_split

UNLABELLED: Final = -1
CHUNK: Final = 1000
"""Rows that are held encoded at a time."""

_DOMAIN = "domain"
_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label", "labels")
_PICTURES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))


class Chunk(NamedTuple):
    """Some rows: encoded images, labels (-1 where there is none), row numbers in the stored split, and their place."""

    images: list[bytes | None]
    labels: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    where: str

    def part(self, rows: slice | npt.NDArray[Any]) -> "Chunk":
        """Some of the rows: a slice, or their positions."""
        positions = np.arange(len(self.ids))[rows]
        return Chunk([self.images[row] for row in positions], self.labels[rows], self.ids[rows], self.where)


@dataclass(frozen=True)
class Rows:
    """The rows of a split, to be read once.

    Attributes:
        total: how many are stored, of which a domain selects some.
        classes: names of the classes; empty where nothing tells them.
        chunks: the rows that were asked for.
    """

    total: int
    classes: tuple[str, ...]
    chunks: Iterator[Chunk]


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what."""

    image: str
    label: str
    domain: str | None

    @property
    def names(self) -> list[str]:
        """Those to be read."""
        return [self.image, self.label, *([self.domain] if self.domain else [])]


def read_rows(source: Source, split: str, *, domain: str | None = None) -> Rows:
    """Open a split; `domain` leaves one domain out of `train` and makes it the `test` split."""
    stored = stored_split(source, split, domain)
    if source.kind == "folder":
        return _folder_rows(source, stored)
    if source.kind == "hub":
        with _reaching_the_hub(source, stored) as (datasets, name):
            dataset = datasets.load_dataset(source.location, source.info.hub_config, split=name)
        columns = columns_of(source, dataset.features.arrow_schema, source.location)
        names = getattr(dataset.features[columns.label], "names", ())
        tables = dataset.with_format("arrow").iter(CHUNK)
        chunks = _chunks(tables, columns, first=0, where=source.location, split=split, domain=domain)
        return Rows(len(dataset), class_names(source, names, source.location), chunks)
    files = source.files[stored]

    def every_chunk() -> Iterator[Chunk]:
        first = 0
        for name in files:
            file = ParquetRows(source, name)
            yield from _chunks(file.tables(), file.columns, first=first, where=name, split=split, domain=domain)
            first += file.rows

    classes = ParquetRows(source, files[0]).classes or numbered_classes(source, files)
    return Rows(sum(ParquetRows(source, name).rows for name in files), classes, every_chunk())


class ParquetRows:
    """One Parquet file of a source, local or by its address on the hub."""

    def __init__(self, source: Source, name: str) -> None:
        arrow = require("pyarrow", extra="train", purpose="reading Parquet files")
        parquet = require("pyarrow.parquet", extra="train", purpose="reading Parquet files")
        try:
            handle = require("fsspec", extra="train", purpose="the hub").open(name).open() if "://" in name else name
            self.file = parquet.ParquetFile(handle, pre_buffer=False)
        except (OSError, arrow.ArrowInvalid) as error:
            raise ValueError(f"{name} cannot be read as Parquet: {error}") from None
        self.name = name
        self.rows: int = self.file.metadata.num_rows
        schema = self.file.schema_arrow
        self.columns = columns_of(source, schema, name)
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        self.classes = class_names(source, features.get(self.columns.label, {}).get("names", ()), name)

    def tables(self, group: int | None = None) -> Iterator[Any]:
        """Arrow tables of at most `CHUNK` rows, of one row group or of all."""
        arrow = require("pyarrow", extra="train", purpose="reading Parquet files")
        groups = None if group is None else [group]
        for batch in self.file.iter_batches(CHUNK, row_groups=groups, columns=self.columns.names, use_threads=False):
            yield arrow.Table.from_batches([batch])

    def column(self, name: str) -> Any:
        """A whole column as Arrow has it; not for the images."""
        return self.file.read(columns=[name], use_threads=False).column(name)


def numbered_classes(source: Source, files: Iterable[str]) -> tuple[str, ...]:
    """Names for classes that nothing names: numbers up to the largest label in any split, so that splits agree."""
    compute = require("pyarrow.compute", extra="train", purpose="reading Parquet files")
    every = [name for split in source.files.values() for name in split] or files
    opened = (ParquetRows(source, name) for name in every)
    largest = (compute.max(file.column(file.columns.label)).as_py() for file in opened)
    return tuple(str(index) for index in range(max(UNLABELLED if label is None else label for label in largest) + 1))


def hub_files(source: Source, stored: str) -> tuple[str, ...]:
    """Addresses of the Parquet files of a hub set's split, to be read in place."""
    with _reaching_the_hub(source, stored) as (datasets, split):
        builder = datasets.load_dataset_builder(source.location, source.info.hub_config)
    files = {str(name): tuple(files) for name, files in (builder.config.data_files or {}).items()}
    if split not in files:
        raise ValueError(f"{source.location} has no split {split!r}; it has {', '.join(map(repr, files))}")
    if not all(file.endswith(".parquet") for file in files[split]):
        raise ValueError(f"{source.location} is not stored as Parquet, which alone can be streamed")
    return files[split]


@contextmanager
def _reaching_the_hub(source: Source, stored: str) -> Iterator[tuple[Any, str]]:
    """The library `datasets` and the hub's name of a split; what goes wrong says where else the rows may be."""
    datasets = require("datasets", extra="train", purpose="reading data sets of the hub")
    split = "train" if source.info.domains else source.info.hub_splits.get(stored, stored)
    try:
        yield datasets, split
    except OSError as error:
        local = (
            f"there is no folder {source.missing}; set {ROOT_VARIABLE} to a folder with "
            f"{source.info.name}/{split}*.parquet, or "
            if source.missing
            else ""
        )
        raise ValueError(
            f"split {split!r} of {source.location!r} cannot be loaded from the Hugging Face hub: {error}; "
            f"{local}connect to the network once, after which the hub's cache holds it"
        ) from None


def regrouped(chunks: Iterable[Chunk], size: int) -> Iterator[Chunk]:
    """The same rows in chunks of `size`, of which the last may be shorter."""
    held: list[Chunk] = []
    for chunk in chunks:
        start = 0
        while start < len(chunk.ids):
            part = chunk.part(slice(start, start + size - sum(len(each.ids) for each in held)))
            held.append(part)
            start += len(part.ids)
            if sum(len(each.ids) for each in held) == size:
                yield _joined(held)
                held = []
    if held:
        yield _joined(held)


def columns_of(source: Source, schema: Any, where: str) -> Columns:
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
    if not types.is_integer(label):
        raise ValueError(f"{where}: column {columns.label!r} has type {label}; it must hold class indices")
    return columns


def class_names(source: Source, stored: Iterable[str], where: str) -> tuple[str, ...]:
    """Names from the table, else those that the rows came with; where both are there they must agree."""
    names, known = tuple(stored), source.info.classes
    if names and known and names != known:
        raise ValueError(
            f"{where} names other classes than {source.info.title} has, or in another order: "
            f"{', '.join(names[:10])} instead of {', '.join(known[:10])}"
        )
    return known or names


def _chunks(
    tables: Iterable[Any], columns: Columns, *, first: int, where: str, split: str, domain: str | None
) -> Iterator[Chunk]:
    for table in tables:
        ids = np.arange(first, first + len(table))
        first += len(table)
        if columns.domain is not None and split != WHOLE:
            chosen = (np.array(table.column(columns.domain).to_pylist()) == domain) == (split == "test")
            table, ids = table.filter(chosen), ids[chosen]
        if len(ids):
            yield chunk_of(table, columns, ids, where)


def chunk_of(table: Any, columns: Columns, ids: npt.NDArray[np.int64], where: str) -> Chunk:
    """The rows of an Arrow table, whose row numbers are `ids`."""
    arrow = require("pyarrow", extra="train", purpose="reading Parquet files")
    compute = require("pyarrow.compute", extra="train", purpose="reading Parquet files")
    image, label = table.column(columns.image), table.column(columns.label)
    if arrow.types.is_struct(image.type):
        image = compute.struct_field(image, "bytes")
    labels = compute.fill_null(label, UNLABELLED).to_numpy().astype(np.int64)
    return Chunk(image.to_pylist(), labels, ids, where)


def _joined(chunks: list[Chunk]) -> Chunk:
    return Chunk(
        images=[image for chunk in chunks for image in chunk.images],
        labels=np.concatenate([chunk.labels for chunk in chunks]),
        ids=np.concatenate([chunk.ids for chunk in chunks]),
        where=chunks[0].where,
    )


def _folder_rows(source: Source, stored: str) -> Rows:
    """Images below the class folders, in the order of class and path, without hidden ones."""
    (folder,) = source.files[stored]
    classes = source.info.classes
    files = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((Path(folder) / name).rglob("*"))
        if path.suffix.lower() in _PICTURES
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]

    def chunks() -> Iterator[Chunk]:
        for first in range(0, len(files), CHUNK):
            some = files[first : first + CHUNK]
            images: list[bytes | None] = [path.read_bytes() for path, _ in some]
            labels = np.array([label for _, label in some], np.int64)
            yield Chunk(images, labels, np.arange(first, first + len(some)), folder)

    return Rows(len(files), classes, chunks())


def _column(names: list[str], known: tuple[str, ...], where: str) -> str:
    for name in known:
        if name in names:
            return name
    raise ValueError(f"{where} has no column {' or '.join(map(repr, known))}; its columns are {', '.join(names)}")
