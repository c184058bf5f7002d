"""The row groups of a split of Parquet files or WebDataset shards, and who reads which of them in an epoch.

An epoch is one sequence of rows: the row groups in a keyed order, one after the other. Each reader (a worker of a rank)
has a range of it. All of it is arithmetic on the row counts in the files' footers, so any batch is found without
reading the row groups before its own. Nothing here grows with the rows but what is asked for by row numbers.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterpoise._addresses import as_path
from counterpoise.data.chunks import CHUNK, Chunk, Progress, Rows, first_difference, require_row_numbers
from counterpoise.data.keyed import ROW_GROUPS, permutation
from counterpoise.data.parquet import ParquetRows
from counterpoise.data.rows import hub_files, hub_split, numbered_classes
from counterpoise.data.sources import WHOLE, DataSource, stored_split
from counterpoise.data.tars import TarRows

IN_ROW_GROUPS = ("parquet", "hub", "webdataset")
"""Kinds of sources whose rows are in files of row groups."""

OPENED_TOGETHER = 16
"""Files whose footers are read at a time: most of it is waiting, where they are far away."""


class FileRows(Protocol):
    """The rows of one file, in row groups."""

    name: str
    classes: tuple[str, ...]

    def index(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows of each row group, and what `chunks` finds it by."""
        ...

    def chunks(self, place: int, rows: npt.NDArray[np.int64], *, most: int) -> Iterator[Chunk]:
        """Some rows of a row group, by their sorted numbers in it, which are the chunks' ids too."""
        ...

    def labels(self) -> npt.NDArray[np.int64]: ...

    def domains(self) -> list[str | None]: ...


@dataclass(frozen=True)
class Split:
    """The rows of a split, in files of row groups.

    Attributes:
        source: of the rows.
        files: in the order of the rows.
        starts: number of the first row group of each file, and of all row groups, int64 `[F + 1]`.
        places: what each file finds a row group by, int64 `[G]`.
        firsts: row number of the first row of each row group, and of all rows, int64 `[G + 1]`.
        classes: names of the classes.
        among: sorted numbers of the rows that alone take part; None for all.
        left_out: sorted numbers of some of them that do not; None for none.
    """

    source: DataSource
    files: tuple[str, ...]
    starts: Tensor
    places: Tensor
    firsts: Tensor
    classes: tuple[str, ...]
    among: Tensor | None = None
    left_out: Tensor | None = None

    @property
    def rows(self) -> int:
        return int(self.firsts[-1])

    @cached_property
    def counts(self) -> Tensor:
        """Rows of each row group that take part, int64 `[G]`."""
        before = self.firsts if self.among is None else torch.searchsorted(self.among, self.firsts)
        if self.left_out is not None:
            before = before - torch.searchsorted(self.left_out, self.firsts)
        return before.diff()

    @property
    def taking_part(self) -> int:
        return int(self.counts.sum())

    def ids(self, row_group: int) -> Tensor:
        """Row numbers of those of a row group that take part."""
        edges = self.firsts[row_group : row_group + 2]
        ids = torch.arange(*edges.tolist()) if self.among is None else _between(self.among, edges)
        return ids if self.left_out is None else ids[~torch.isin(ids, _between(self.left_out, edges))]

    def without(self, excluded: Tensor) -> "Split":
        """The same split with some more rows, by their numbers, left out."""
        require_row_numbers(excluded, self.rows)
        known = excluded if self.left_out is None else torch.cat([self.left_out, excluded.cpu()])
        gone = torch.unique(known.cpu())
        return replace(self, left_out=gone if self.among is None else gone[torch.isin(gone, self.among)])

    def only(self, chosen: Tensor) -> "Split":
        """The same split with some of its rows, by their numbers, and no others."""
        require_row_numbers(chosen, self.rows)
        kept = torch.unique(chosen.cpu())
        for rows, wanted in ((self.among, True), (self.left_out, False)):
            kept = kept if rows is None else kept[torch.isin(kept, rows) == wanted]
        return replace(self, among=kept, left_out=None)

    def head(self, rows: int) -> "Split":
        """The same split as if its files ended after so many of the rows that take part; before any is left out."""
        if self.among is not None:
            return replace(self, among=self.among[:rows])
        rows = min(rows, self.rows)
        groups = int(torch.searchsorted(self.firsts, rows))
        firsts = torch.cat([self.firsts[:groups], torch.tensor([rows])])
        return replace(self, firsts=firsts, places=self.places[:groups], starts=self.starts.clamp(max=groups))

    def numbers(self, positions: Tensor) -> Tensor:
        """Row numbers of those at some positions of all that take part; before any is left out."""
        return positions if self.among is None else self.among[positions]


class ReaderRange(NamedTuple):
    """What one reader reads: positions [start, stop) of the sequence, from its batch number `first` on."""

    start: int
    stop: int
    first: int


@dataclass(frozen=True)
class EpochOrder:
    """The rows of an epoch in the order in which they are read.

    Attributes:
        split: that is read.
        order: numbers of the row groups, without those of which no row takes part.
        ends: position after the last row of each row group in `order`.
    """

    split: Split
    order: Tensor
    ends: Tensor

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0


def open_rows(source: DataSource, name: str) -> FileRows:
    """One file of a source."""
    return TarRows(source, name) if source.kind == "webdataset" else ParquetRows(source, name)


def open_split(source: DataSource, split: str, *, domain: str | None = None, progress: Progress | None = None) -> Split:
    """Read the footers of a split, and of its rows only the domains, or the labels where nothing names the classes.

    The footers of a WebDataset are its indexes or, where it has none, the headers of its samples. `progress` is called
    with the files read and the files there are.
    """
    stored = stored_split(source, split, domain)
    if source.kind not in IN_ROW_GROUPS:
        raise ValueError(
            f"{source.info.name} at {source.location} is neither Parquet nor a WebDataset, which alone can be streamed"
        )
    every = source.files or hub_files(source)
    key = stored if source.files else hub_split(source, stored)
    if key not in every:
        raise ValueError(f"{source.location} has no split {key!r}; it has {', '.join(map(repr, every))}")

    def footer(name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], tuple[str, ...], list[str | None]]:
        file = open_rows(source, name)
        return (*file.index(), file.classes, file.domains() if split != WHOLE else [])

    sizes, places, domains = [], [], []
    named: dict[tuple[str, ...], str] = {}
    pool = ThreadPoolExecutor(OPENED_TOGETHER)
    try:
        for name, (rows, place, classes, found) in zip(every[key], pool.map(footer, every[key]), strict=True):
            sizes.append(rows)
            places.append(place)
            named.setdefault(classes, str(as_path(name)))
            domains += found
            if progress is not None:
                progress(len(sizes), len(every[key]))
    finally:
        pool.shutdown(cancel_futures=True)
    firsts = np.concatenate([[0], *sizes]).cumsum()
    if not firsts[-1]:
        raise ValueError(f"{source.info.name}, split {split!r} at {source.location} has no rows")
    chosen = np.flatnonzero((np.array(domains) == domain) == (split == "test")) if domains else None
    return Split(
        source,
        files=every[key],
        starts=torch.tensor([0, *map(len, sizes)]).cumsum(0),
        places=torch.from_numpy(np.concatenate(places)),
        firsts=torch.from_numpy(firsts),
        classes=_classes(source, key, named, every),
        among=None if chosen is None else torch.from_numpy(chosen),
    )


def class_counts(split: Split) -> Tensor:
    """How many of the rows that take part each class has, int64 `[K]`; no image is read."""
    found = torch.zeros(len(split.classes), dtype=torch.int64)
    for number, name in enumerate(split.files):
        groups = range(*split.starts[number : number + 2].tolist())
        if not int(split.counts[groups.start : groups.stop].sum()):
            continue
        rows = torch.cat([split.ids(group) for group in groups]) - split.firsts[groups.start]
        labels = torch.tensor(open_rows(split.source, name).labels())[rows]
        # What is no label of a class is refused with its row, when it is read.
        found += torch.bincount(labels[(labels >= 0) & (labels < len(found))], minlength=len(found))
    return found


def rows_of(split: Split) -> Rows:
    """The rows of a split that take part, in their stored order."""
    rows = epoch_order(split, seed=0, epoch=0, shuffle=False)
    return Rows(split.rows, len(rows), split.classes, read_range(rows, 0, len(rows)))


def epoch_order(split: Split, *, seed: int, epoch: int, shuffle: bool) -> EpochOrder:
    """The row groups in the order of an epoch."""
    count = len(split.places)
    order = permutation(seed, epoch, count, ROW_GROUPS) if shuffle else torch.arange(count)
    order = order[split.counts[order] > 0]
    return EpochOrder(split, order, split.counts[order].cumsum(0))


def reader_ranges(
    rows: int, *, batch: int, rank: int, world: int, readers: int, consumed: int, drop_last: bool
) -> tuple[int, list[ReaderRange]]:
    """Batches that a rank has in an epoch, and what its readers read after `consumed` of them, in the order of turns.

    Readers take turns, so batch k comes from reader k modulo their number. With `drop_last` every rank has
    `rows // batch` batches and the last `rows % batch` rows of the sequence are left out; else ranks share all rows,
    and the last batch of the last reader may be short.

    >>> reader_ranges(10, batch=2, rank=0, world=1, readers=2, consumed=0, drop_last=True)
    (5, [ReaderRange(start=0, stop=6, first=0), ReaderRange(start=6, stop=10, first=0)])
    >>> reader_ranges(10, batch=2, rank=0, world=1, readers=2, consumed=3, drop_last=True)
    (5, [ReaderRange(start=6, stop=10, first=1), ReaderRange(start=0, stop=6, first=2)])
    """
    local = batch // world
    if drop_last:
        start, stop = (edge * (rows // batch) * local for edge in (rank, rank + 1))
    else:
        start, stop = (edge * rows // world for edge in (rank, rank + 1))
    batches = -(-(stop - start) // local)
    each, rest = divmod(batches, readers)
    found = []
    for turn in range(consumed, consumed + readers):
        reader = turn % readers
        begin = start + (reader * each + min(reader, rest)) * local
        end = begin + (each + (reader < rest)) * local
        found.append(ReaderRange(begin, min(end, stop), turn // readers))
    return batches, found


def read_range(rows: EpochOrder, start: int, stop: int) -> Iterator[Chunk]:
    """The rows at positions [start, stop) of a sequence, still encoded."""
    split, most = rows.split, min(CHUNK, stop - start)
    opened: FileRows | None = None
    file = ""
    turn = int(torch.searchsorted(rows.ends, start, right=True))
    while start < stop:
        row_group, end = int(rows.order[turn]), int(rows.ends[turn])
        ids = split.ids(row_group).numpy()
        ids = ids[len(ids) - (end - start) :][: stop - start]
        name = split.files[int(torch.searchsorted(split.starts, row_group, right=True)) - 1]
        if opened is None or file != name:
            opened, file = open_rows(split.source, name), name
        first = int(split.firsts[row_group])
        for chunk in opened.chunks(int(split.places[row_group]), ids - first, most=most):
            yield chunk._replace(ids=chunk.ids + first)
        start += len(ids)
        turn += 1


def _between(numbers: Tensor, edges: Tensor) -> Tensor:
    start, stop = torch.searchsorted(numbers, edges).tolist()
    return numbers[start:stop]


def _classes(
    source: DataSource, own: str, named: Mapping[tuple[str, ...], str], every: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Names of the classes of a split, which its files must agree on; else of another split; else numbers.

    Args:
        source: of the split.
        own: name of the split, as it is stored.
        named: for each list of names, empty ones too, the first of its files that has it.
        every: the files of each split of the source.
    """
    stated = {names: file for names, file in named.items() if names}
    if not stated:
        others = (open_rows(source, name).classes for key, split in every.items() if key != own for name in split)
        files = (open_rows(source, name) for split in every.values() for name in split)
        return next(filter(None, others), ()) or numbered_classes((file.name, file.labels()) for file in files)
    (names, first), *rest = stated.items()
    for found, other in rest:
        raise ValueError(
            f"{other} names other classes than {first}, or in another order: {first_difference(found, names)}; write "
            "both with the same names"
        )
    return names
