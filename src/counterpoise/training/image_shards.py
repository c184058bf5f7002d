"""Images in many files, each read by itself and batch by batch; one in an object store is copied here for it."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from shutil import copyfileobj

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise._addresses import Address, as_path
from counterpoise._files import FilePath
from counterpoise.data.rows import Chunk, ParquetRows, chunk_of, read_rows
from counterpoise.data.sets import ImageSet
from counterpoise.data.sources import WHOLE, DataSource, resolve, stored_split
from counterpoise.data.tables import SPLIT_NAMES

SUFFIX = ".parquet"
_OPENED_TOGETHER = 16
"""Files whose footers are read at a time: most of it is waiting, where they are far away."""
_PIECE = 1 << 23


@dataclass(frozen=True, eq=False)
class ImageShard:
    """One file of a split, or the whole of a split that is not in files of rows.

    Attributes:
        source: that it is of.
        split: that it is of.
        path: of the file, or what the source is called.
        size: of the file in bytes; 0 of a whole split.
        rows: in it, where they are known beforehand.
        first: row number of its first row in the split.
    """

    source: DataSource
    split: str
    path: FilePath
    size: int = 0
    rows: int | None = None
    first: int = 0

    @contextmanager
    def opened(self, most: int) -> Iterator[tuple[tuple[str, ...], Iterator[Chunk]]]:
        """Names of the classes, if it tells them, and its rows, at most so many at a time, still encoded."""
        if self.source.kind != "parquet":
            rows = read_rows(self.source, self.split)
            yield rows.classes, rows.chunks
            return
        with _local(self.path) as path:
            try:
                file = ParquetRows(self.source, str(path))
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), str(self.path))) from None
            yield file.classes, self._chunks(file, most)

    def _chunks(self, file: ParquetRows, most: int) -> Iterator[Chunk]:
        row = self.first
        for table in file.tables(most=most):
            yield chunk_of(table, file.columns, np.arange(row, row + len(table)), str(self.path))
            row += len(table)


def image_shards(data: str | FilePath, split: str | None, *, root: Path | None = None) -> list[ImageShard]:
    """The files of a split, in order, with the rows that they hold.

    Args:
        data: as `counterpoise.data.resolve` takes it, or the address of Parquet files in an object store: of a folder,
            a pattern, or one file.
        split: of it; None for `test`, or for all of a set that is not divided.
        root: folder of the local sets.
    """
    path = as_path(data)
    if isinstance(path, Address):
        source, places = _in_store(path)
    else:
        source = resolve(data if isinstance(data, str) else path, root=root)
        places = {name: tuple((Path(file), None) for file in files) for name, files in source.files.items()}
    if source.info.domains or source.kind == "scikit-learn":
        raise ValueError(f"{source.info.name} cannot be predicted in shards: name a file with --out FILE.parquet")
    chosen = split or (WHOLE if set(source.files) == {WHOLE} else "test")
    stored = stored_split(source, chosen, None)
    if source.kind != "parquet":
        return [ImageShard(source, chosen, Path(source.location))]
    found = [
        ImageShard(source, chosen, file, file.stat().st_size if isinstance(file, Path) else size or file.identity()[0])
        for file, size in places[stored]
    ]
    return _numbered(found)


def _numbered(shards: list[ImageShard]) -> list[ImageShard]:
    """With rows, and without those that have none."""
    pool = ThreadPoolExecutor(_OPENED_TOGETHER)
    try:
        rows = list(pool.map(lambda shard: _rows(shard.path), shards))
    finally:
        pool.shutdown(cancel_futures=True)
    firsts = accumulate(rows, initial=0)
    numbered = (
        replace(shard, rows=count, first=first) for shard, count, first in zip(shards, rows, firsts, strict=False)
    )
    if not any(rows):
        raise ValueError(f"{shards[0].source.location}, split {shards[0].split!r} has no rows")
    return [shard for shard in numbered if shard.rows]


def _rows(path: FilePath) -> int:
    try:
        with path.open("rb") as file:
            return int(pq.read_metadata(file).num_rows)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None


def _in_store(address: Address) -> tuple[DataSource, dict[str, tuple[tuple[FilePath, int | None], ...]]]:
    """The Parquet files at an address by the split that their names start with; all of them where none does."""
    if "*" in address.name:
        listed = address.matches()
    else:
        listed = [(address, None)] if address.suffix.lower() == SUFFIX else address.listed()
    every = [(each, size) for each, size in listed if each.suffix.lower() == SUFFIX and not each.name.startswith(".")]
    if not every:
        raise ValueError(f"{address} holds no Parquet files of images")
    places: dict[str, tuple[tuple[FilePath, int | None], ...]] = {}
    if len(every) > 1:
        for start, split in SPLIT_NAMES.items():
            own = tuple(each for each in every if each[0].name.startswith(start))
            places |= {split: own} if own and split not in places else {}
    places = places or {WHOLE: tuple(every)}
    folder = address.parent if "*" in address.name else address
    name = folder.stem or str(folder)
    info = ImageSet(name=name, title=name, image="", label="", classes=(), size=None)
    files = {split: tuple(str(path) for path, _ in own) for split, own in places.items()}
    return DataSource(info, "parquet", str(address), files), places


@contextmanager
def _local(path: FilePath) -> Iterator[Path]:
    """A file of this machine: what is in a store, copied in one pass."""
    if isinstance(path, Path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="counterpoise-") as folder:
        copy = Path(folder) / path.name
        with path.open() as file, copy.open("wb") as target:
            copyfileobj(file, target, _PIECE)
        yield copy
