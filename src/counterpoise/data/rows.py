"""Encoded images and labels, chunk by chunk, from wherever a source has them; nothing is decoded here."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from counterpoise._extras import require
from counterpoise.data.files import image_files
from counterpoise.data.sets import MISSPELT
from counterpoise.data.sources import FILES, ROOT_VARIABLE, WHOLE, DataSource, stored_split

UNLABELLED: Final = -1
CHUNK: Final = 1000
"""Rows that are held encoded at a time."""

MOST_CLASSES: Final = 10_000_000
"""Without names; a larger label stands for something else, and so many names would not fit into memory."""

_FILES = 50
"""Image files that are held at a time; they may be photographs of some megabytes."""

_BUFFER = 1 << 20
"""Bytes of a column that are read ahead."""

_BYTES = "bytes"
"""Field of an image column that holds more than the bytes."""

_DOMAIN = "domain"
_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label", "labels")


class Chunk(NamedTuple):
    """Some rows: encoded images (or why one was not read), labels (-1: none), row numbers in the split, and files."""

    images: list[bytes | OSError | None]
    labels: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    files: list[str]

    def part(self, rows: slice | npt.NDArray[Any]) -> "Chunk":
        """Some of the rows: a slice, or their positions."""
        positions = np.arange(len(self.ids))[rows]
        return Chunk(
            images=[self.images[row] for row in positions],
            labels=self.labels[rows],
            ids=self.ids[rows],
            files=[self.files[row] for row in positions],
        )


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


def read_rows(source: DataSource, split: str, *, domain: str | None = None) -> Rows:
    """Open a split; `domain` leaves one domain out of `train` and makes it the `test` split."""
    stored = stored_split(source, split, domain)
    if source.kind in FILES:
        return _file_rows(image_files(source, stored), source.info.classes)
    if source.kind == "hub":
        return _hub_rows(source, stored, split=split, domain=domain)
    files = source.files[stored]

    def every_chunk() -> Iterator[Chunk]:
        first = 0
        for name in files:
            file = ParquetRows(source, name)
            yield from _chunks(file.tables(), file.columns, first=first, file=name, split=split, domain=domain)
            first += file.rows

    total, named = 0, {}
    for file in (ParquetRows(source, name) for name in files):  # one after the other: there may be thousands
        total += file.rows
        named[file.name] = file.classes
    return Rows(total, classes_of(source, named, source.files), every_chunk())


class ParquetRows:
    """One Parquet file of a source, local or by its address on the hub."""

    def __init__(self, source: DataSource, name: str) -> None:
        arrow = require("pyarrow", extra="train", purpose="reading Parquet files")
        parquet = require("pyarrow.parquet", extra="train", purpose="reading Parquet files")
        try:
            handle = require("fsspec", extra="train", purpose="the hub").open(name).open() if "://" in name else name
            # Read as it is needed: a row group may be as large as the file.
            self.file = parquet.ParquetFile(handle, pre_buffer=False, buffer_size=_BUFFER)
        except (OSError, arrow.ArrowInvalid) as error:
            raise ValueError(f"{name} cannot be read as Parquet: {error}") from None
        self.name = name
        self.rows: int = self.file.metadata.num_rows
        schema = self.file.schema_arrow
        self.columns = columns_of(source, schema, name)
        self.classes = class_names(source, _stored_names(schema, self.columns.label, name), name)

    def tables(self, group: int | None = None, *, most: int = CHUNK) -> Iterator[Any]:
        """Arrow tables of at most so many rows, of one row group or of all."""
        arrow = require("pyarrow", extra="train", purpose="reading Parquet files")
        groups = None if group is None else [group]
        for batch in self.file.iter_batches(most, row_groups=groups, columns=self.columns.names, use_threads=False):
            yield arrow.Table.from_batches([batch])

    def column(self, name: str) -> Any:
        """A whole column as Arrow has it; not for the images."""
        return self.file.read(columns=[name], use_threads=False).column(name)


def classes_of(
    source: DataSource, named: Mapping[str, tuple[str, ...]], every: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Names of the classes of a split, which its files must agree on; else of another split; else numbers.

    Args:
        source: of the split.
        named: what each of its files calls the classes; empty where it does not say.
        every: the files of each split of the source.
    """
    first = next((file for file, names in named.items() if names), None)
    if first is None:
        files = [name for split in every.values() for name in split]
        others = (ParquetRows(source, name).classes for name in files if name not in named)
        opened = (ParquetRows(source, name) for name in files)
        return next(filter(None, others), ()) or _numbered(
            (file.name, file.column(file.columns.label)) for file in opened
        )
    for other, names in named.items():
        if names and names != named[first]:
            raise ValueError(
                f"{other} names other classes than {first}, or in another order: "
                f"{first_difference(names, named[first])}; write both with the same names"
            )
    return named[first]


def first_difference(names: Sequence[str], expected: Sequence[str]) -> str:
    """Where two different lists of names differ first.

    >>> first_difference(("cat", "cow", "dog"), ("cat", "dog"))
    "class 1 is 'cow' instead of 'dog'"
    >>> first_difference(("cat",), ("cat", "dog"))
    "class 1 is missing instead of 'dog'"
    """
    pairs = enumerate(itertools.zip_longest(names, expected))
    index, pair = next((index, pair) for index, pair in pairs if pair[0] != pair[1])
    found, wanted = ("missing" if name is None else repr(name) for name in pair)
    return f"class {index} is {found} instead of {wanted}"


def require_row_numbers(ids: Tensor, rows: int) -> None:
    """Refuse ids that no stored row has."""
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
        raise ValueError(f"ids must be row numbers in [0, {rows}), got {int(ids.min())} to {int(ids.max())}")


def hub_files(source: DataSource) -> dict[str, tuple[str, ...]]:
    """Addresses of the Parquet files of each split of a hub set, to be read in place."""
    with _reaching_the_hub(source) as datasets:
        builder = datasets.load_dataset_builder(source.location, source.info.hub_config)
    files = {str(name): tuple(files) for name, files in (builder.config.data_files or {}).items()}
    if not all(file.endswith(".parquet") for split in files.values() for file in split):
        raise ValueError(f"{source.location} is not stored as Parquet, which alone can be streamed")
    return files


def hub_split(source: DataSource, stored: str) -> str:
    """The hub's name of a split."""
    return "train" if source.info.domains else source.info.hub_splits.get(stored, stored)


def _hub_rows(source: DataSource, stored: str, *, split: str, domain: str | None) -> Rows:
    def loaded(split: str | None) -> Any:
        with _reaching_the_hub(source) as datasets:
            return datasets.load_dataset(source.location, source.info.hub_config, split=split)

    dataset = loaded(hub_split(source, stored))
    columns = columns_of(source, dataset.features.arrow_schema, source.location)
    names = class_names(source, getattr(dataset.features[columns.label], "names", ()), source.location)
    if not names:
        names = _numbered((source.location, each.data.column(columns.label)) for each in loaded(None).values())
    tables = dataset.with_format("arrow").iter(CHUNK)
    chunks = _chunks(tables, columns, first=0, file=source.location, split=split, domain=domain)
    return Rows(len(dataset), names, chunks)


@contextmanager
def _reaching_the_hub(source: DataSource) -> Iterator[Any]:
    """The library `datasets`; what goes wrong says where else the rows may be."""
    datasets = require("datasets", extra="train", purpose="reading data sets of the hub")
    try:
        yield datasets
    except OSError as error:
        wanted = ", ".join(source.info.domains) or f"{hub_split(source, 'train')}, {hub_split(source, 'test')}"
        stored = f"; set {ROOT_VARIABLE} to a folder with {source.info.name}/, whose Parquet files start with {wanted}"
        raise ValueError(
            f"there is no folder {source.missing}, and {source.location!r} cannot be loaded from the Hugging Face "
            f"hub: {error}{stored if source.info.hub else ''}; or connect to the network once, after which the hub's "
            "cache holds it"
        ) from None


def _numbered(labels: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Names for classes that nothing names: numbers up to the largest label in any split, so that splits agree."""
    compute = require("pyarrow.compute", extra="train", purpose="reading Parquet files")
    found = ((compute.max(column).as_py(), file) for file, column in labels)
    largest, where = max((UNLABELLED if label is None else label, file) for label, file in found)
    return numbers_to(largest, where=where)


def numbers_to(largest: int, *, where: str) -> tuple[str, ...]:
    """Names of classes that have none: numbers up to the largest label."""
    if largest >= MOST_CLASSES:
        raise ValueError(
            f"{where}: a label is {largest}; without names of the classes, labels are below {MOST_CLASSES:,}, and "
            f"{UNLABELLED} stands for a sample without a label"
        )
    return tuple(str(index) for index in range(largest + 1))


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


def class_names(source: DataSource, stored: Iterable[str], where: str) -> tuple[str, ...]:
    """Names from the table, else those that the rows came with; where both are there they must agree."""
    names, known = tuple(stored), source.info.classes
    spelt = tuple(MISSPELT.get(name, name) for name in names)
    if names and known and spelt != known:
        raise ValueError(
            f"{where} names other classes than {source.info.title} has, or in another order: "
            f"{first_difference(spelt, known)}"
        )
    return known or names


def _stored_names(schema: Any, label: str, where: str) -> list[str]:
    """Names of the classes that the library `datasets` wrote into a Parquet file, if it did."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        node = json.loads(text)
        for key in ("info", "features", label, "names"):
            node = node.get(key, {})
    except (ValueError, AttributeError, RecursionError):
        node = None
    if node == {}:
        return []
    if not isinstance(node, list) or not all(isinstance(name, str) for name in node):
        raise ValueError(f"{where}: its Hugging Face metadata are damaged: they should name the classes of {label!r}")
    return node


def _chunks(
    tables: Iterable[Any], columns: Columns, *, first: int, file: str, split: str, domain: str | None
) -> Iterator[Chunk]:
    for table in tables:
        ids = np.arange(first, first + len(table))
        first += len(table)
        if columns.domain is not None and split != WHOLE:
            chosen = (np.array(table.column(columns.domain).to_pylist()) == domain) == (split == "test")
            table, ids = table.filter(chosen), ids[chosen]
        if len(ids):
            yield chunk_of(table, columns, ids, file)


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


def _joined(chunks: list[Chunk]) -> Chunk:
    return Chunk(
        images=[image for chunk in chunks for image in chunk.images],
        labels=np.concatenate([chunk.labels for chunk in chunks]),
        ids=np.concatenate([chunk.ids for chunk in chunks]),
        files=[file for chunk in chunks for file in chunk.files],
    )


def _bytes_of(path: Path) -> bytes | OSError | None:
    try:
        return path.read_bytes()
    except OSError as error:
        return error


def _file_rows(files: Sequence[tuple[Path, int | None]], classes: tuple[str, ...]) -> Rows:
    """Image files, read as they are needed."""

    def chunks() -> Iterator[Chunk]:
        for first in range(0, len(files), _FILES):
            some = files[first : first + _FILES]
            images = [_bytes_of(path) for path, _ in some]
            labels = np.array([UNLABELLED if label is None else label for _, label in some], np.int64)
            yield Chunk(images, labels, np.arange(first, first + len(some)), [str(path) for path, _ in some])

    return Rows(len(files), classes, chunks())


def _column(names: list[str], known: tuple[str, ...], where: str) -> str:
    for name in known:
        if name in names:
            return name
    raise ValueError(f"{where} has no column {' or '.join(map(repr, known))}; its columns are {', '.join(names)}")
