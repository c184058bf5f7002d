"""Rows of image files and of the hub's copies, and the classes of a source whose files name none."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise._extras import require
from counterpoise.data.chunks import CHUNK, UNLABELLED, Chunk, Rows, class_names, numbers_to
from counterpoise.data.digits import digit_rows
from counterpoise.data.parquet import Columns, chunk_of, columns_of, labels_in
from counterpoise.data.sources import FILES, ROOT_VARIABLE, WHOLE, DataSource, pictures_in, stored_split
from counterpoise.data.tables import parts_of, read_table, require_files

_FILES = 50
"""Image files that are held at a time; they may be photographs of some megabytes."""


def read_rows(source: DataSource, split: str, *, domain: str | None = None) -> Rows:
    """Open a split of image files, or the hub's copy of one; a domain is left out of `train`, and is `test`."""
    stored = stored_split(source, split, domain)
    if source.kind == "scikit-learn":
        return digit_rows(source.info, split)
    if source.kind in FILES:
        return _file_rows(image_files(source, stored), source)
    return _hub_rows(source, stored, split=split, domain=domain)


def hub_files(source: DataSource) -> dict[str, tuple[str, ...]]:
    """Addresses of the Parquet files of each split of a hub set, to be read in place."""
    builder = _hub_builder(source)
    files = {str(name): tuple(files) for name, files in (builder.config.data_files or {}).items()}
    if not all(file.endswith(".parquet") for split in files.values() for file in split):
        raise ValueError(f"{source.location} is not stored as Parquet, which alone can be streamed from the hub")
    return files


def hub_digest(source: DataSource) -> str:
    """What tells one commit of a hub set from another, with and without the network."""
    builder = _hub_builder(source)
    return f"{builder.config_id} {builder.hash}"


def hub_split(source: DataSource, stored: str) -> str:
    """The hub's name of a split."""
    return "train" if source.info.domains else source.info.hub_splits.get(stored, stored)


def numbered_classes(labels: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Names for classes that nothing names: numbers up to the largest label in any split, so that splits agree.

    Args:
        labels: of each file, with its name.
    """
    largest, where = max((int(found.max(initial=UNLABELLED)), file) for file, found in labels)
    return numbers_to(largest, where=where)


def image_files(source: DataSource, stored: str) -> list[tuple[Path, int | None]]:
    """Paths and labels, None where there is none: by class and path, or in the order of the table's rows.

    A folder without class folders holds images without labels.
    """
    (place,) = source.files[stored]
    classes = source.info.classes
    if source.kind == "folder" and not classes:
        return [(path, None) for path in sorted(pictures_in(place, ""))]
    if source.kind == "folder":
        return [(path, label) for label, name in enumerate(classes) for path in sorted(pictures_in(place, name))]
    table = read_table(place)
    require_files(table, place)
    labels = {name: label for label, name in enumerate(classes)}
    splits = table.splits or [WHOLE] * len(table.paths)
    rows = zip(table.paths, table.labels or [""] * len(table.paths), splits, strict=True)
    return [(path, labels.get(label)) for path, label, split in rows if split == stored]


def _hub_builder(source: DataSource) -> Any:
    with _reaching_the_hub(source) as datasets:
        return datasets.load_dataset_builder(source.location, source.info.hub_config)


def _hub_rows(source: DataSource, stored: str, *, split: str, domain: str | None) -> Rows:
    def loaded(split: str | None) -> Any:
        with _reaching_the_hub(source) as datasets:
            return datasets.load_dataset(source.location, source.info.hub_config, split=split)

    dataset = loaded(hub_split(source, stored))
    columns = columns_of(source, dataset.features.arrow_schema, source.location)
    names = class_names(source, getattr(dataset.features[columns.label], "names", ()), source.location)
    if not names:
        every = (labels_in(each.data.column(columns.label)) for each in loaded(None).values())
        names = numbered_classes((source.location, labels) for labels in every)
    tables = dataset.with_format("arrow").iter(CHUNK)
    chunks = _chunks(tables, columns, file=source.location, split=split, domain=domain)
    return Rows(len(dataset), len(dataset), names, chunks)


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


def _chunks(tables: Iterable[Any], columns: Columns, *, file: str, split: str, domain: str | None) -> Iterator[Chunk]:
    first = 0
    for table in tables:
        ids = np.arange(first, first + len(table))
        first += len(table)
        if columns.domain is not None and split != WHOLE:
            chosen = (np.array(table.column(columns.domain).to_pylist()) == domain) == (split == "test")
            table, ids = table.filter(chosen), ids[chosen]
        if len(ids):
            yield chunk_of(table, columns, ids, file)


def _bytes_of(path: Path) -> bytes | OSError | None:
    try:
        return path.read_bytes()
    except OSError as error:
        return error


def _file_rows(files: Sequence[tuple[Path, int | None]], source: DataSource) -> Rows:
    """Image files, read as they are needed."""

    def chunks() -> Iterator[Chunk]:
        for first in range(0, len(files), _FILES):
            some = files[first : first + _FILES]
            images = [_bytes_of(path) for path, _ in some]
            labels = np.array([UNLABELLED if label is None else label for _, label in some], np.int64)
            yield Chunk(images, labels, np.arange(first, first + len(some)), [str(path) for path, _ in some])

    names = relative_names([path for path, _ in files], source)
    unique = names if len({*names}) == len(names) else ()  # ids tell rows apart, and a table may name a file twice
    return Rows(len(files), len(files), source.info.classes, chunks(), unique)


def relative_names(files: Sequence[Path], source: DataSource) -> tuple[str, ...]:
    """Paths of image files from the folder or the table on."""
    place = Path(parts_of(source.location)[0]).expanduser() if source.kind == "table" else Path(source.location)
    folder = place.parent if source.kind == "table" else place
    paths = (path.relative_to(folder) if path.is_relative_to(folder) else path for path in files)
    # Bytes of a name that are no UTF-8 cannot be written to a file of predictions.
    return tuple(os.fsencode(path.as_posix()).decode(errors="replace") for path in paths)
