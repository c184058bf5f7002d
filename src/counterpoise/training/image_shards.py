"""Images in many files, each read by itself and batch by batch; one in an object store is copied here for it."""

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from shutil import copyfileobj

import numpy as np
import numpy.typing as npt
from torch import Tensor

from counterpoise._addresses import as_path
from counterpoise._files import FilePath
from counterpoise.data.chunks import Chunk, Rows
from counterpoise.data.fingerprint import digest_of, file_digests, fingerprint
from counterpoise.data.row_groups import OPENED_TOGETHER, FileRows, open_rows, open_split, rows_of
from counterpoise.data.rows import read_rows
from counterpoise.data.sources import WHOLE, DataSource, resolve, stored_split

_IN_FILES = ("parquet", "webdataset")
_PIECE = 1 << 23


@dataclass(frozen=True, eq=False)
class ImageShard:
    """One file of a split, or the whole of a split that is not in files of rows.

    Attributes:
        source: that it is of.
        split: that it is of.
        path: of the file, or what the source is called.
        domain: that it is of, in a set of domains.
        size: of the file in bytes; 0 of a whole split.
        rows: in it, where they are known beforehand.
        first: row number of its first row in the split.
        only: numbers of the rows that are predicted; None for all.
        called: what the rows are called, if not as the split.
    """

    source: DataSource
    split: str
    path: FilePath
    domain: str | None = None
    size: int = 0
    rows: int | None = None
    first: int = 0
    only: npt.NDArray[np.int64] | None = None
    called: str | None = None

    @property
    def is_file(self) -> bool:
        return _is_in_files(self.source)

    @contextmanager
    def opened(self, most: int) -> Iterator[Rows]:
        with self._opened(most) as rows:
            yield rows if self.only is None else replace(rows, chunks=_chosen(rows.chunks, self.only))

    @contextmanager
    def _opened(self, most: int) -> Iterator[Rows]:
        if not self.is_file:
            yield _whole(self.source, self.split, self.domain)
            return
        with _local(self.path) as path:
            try:
                file = open_rows(self.source, str(path))
                count = int(file.index()[0].sum())
                yield Rows(count, count, file.classes, self._chunks(file, most))
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), str(self.path))) from None

    def _chunks(self, file: FileRows, most: int) -> Iterator[Chunk]:
        first = self.first
        for rows, place in zip(*file.index(), strict=True):
            for chunk in file.chunks(int(place), np.arange(rows), most=most):
                yield chunk._replace(ids=chunk.ids + first, files=[str(self.path)] * len(chunk.ids))
            first += int(rows)


def image_shards(
    data: str | Path,
    split: str | None,
    *,
    domain: str | None = None,
    root: Path | None = None,
    only: Tensor | None = None,
    called: str | None = None,
) -> list[ImageShard]:
    """The files of a split that hold images, in order.

    Args:
        data: as `counterpoise.data.resolve` takes it: a folder or an address of Parquet files or tar shards, or another
            set, which is one shard.
        split: of it; None for `test`, or for all of a set that is not divided.
        domain: of it, for sets of domains, which are one shard.
        root: folder of the local sets.
        only: numbers of some of its rows, of which alone there are shards.
        called: what these are called.
    """
    shards = _every_shard(data, split, domain=domain, root=root)
    if only is None:
        return shards
    rows = np.sort(only.numpy())
    ends = [math.inf if shard.rows is None else shard.first + shard.rows for shard in shards]
    parts = [rows[(rows >= shard.first) & (rows < end)] for shard, end in zip(shards, ends, strict=True)]
    chosen = zip(shards, parts, strict=True)
    return [replace(shard, rows=len(part), only=part, called=called) for shard, part in chosen if len(part)]


def content_digests(shards: Sequence[ImageShard]) -> list[str]:
    """What tells the images of each shard of a split from others: their content, and which of its rows are meant."""
    if shards[0].is_file:
        found = file_digests(shard.path for shard in shards)
    else:
        found = [fingerprint(shard.source, shard.split, domain=shard.domain) for shard in shards]
    rows = [[] if shard.only is None else list(map(str, shard.only)) for shard in shards]
    return [
        digest_of([digest, *shard.source.info.classes, *some])
        for digest, shard, some in zip(found, shards, rows, strict=True)
    ]


def _every_shard(data: str | Path, split: str | None, *, domain: str | None, root: Path | None) -> list[ImageShard]:
    source = resolve(data, root=root)
    undivided = set(source.files) == {WHOLE} or source.info.domains
    chosen = split or (WHOLE if undivided and domain is None else "test")
    stored = stored_split(source, chosen, domain)
    if not _is_in_files(source):
        return [ImageShard(source, chosen, Path(source.location), domain)]
    pool = ThreadPoolExecutor(OPENED_TOGETHER)
    alone = replace(source, files={})  # a shard is sent to others, and need not know of thousands
    try:
        shards = list(pool.map(lambda name: _sized(alone, chosen, name), source.files[stored]))
    finally:
        pool.shutdown(cancel_futures=True)
    firsts = accumulate((shard.rows or 0 for shard in shards), initial=0)
    found = [replace(shard, first=first) for shard, first in zip(shards, firsts, strict=False) if shard.rows]
    if not found:
        raise ValueError(f"{source.info.name}, split {chosen!r} at {source.location} has no rows")
    return found


def _is_in_files(source: DataSource) -> bool:
    """Whether a split is in files of rows of its own; that of a set of domains is a choice of the rows of all."""
    return source.kind in _IN_FILES and not source.info.domains


def _whole(source: DataSource, split: str, domain: str | None) -> Rows:
    if source.kind in _IN_FILES:
        return rows_of(open_split(source, split, domain=domain))
    return read_rows(source, split, domain=domain)


def _chosen(chunks: Iterable[Chunk], only: npt.NDArray[np.int64]) -> Iterator[Chunk]:
    parts = (chunk.part(np.isin(chunk.ids, only)) for chunk in chunks)
    return (part for part in parts if len(part.ids))


def _sized(source: DataSource, split: str, name: str) -> ImageShard:
    path = as_path(name)
    size = path.stat().st_size if isinstance(path, Path) else path.identity()[0]
    return ImageShard(source, split, path, None, size, int(open_rows(source, name).index()[0].sum()))


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
