"""The row groups of a split of Parquet files, and who reads which of them in an epoch.

An epoch is one sequence of rows: the row groups in a keyed order, one after the other. Each reader (a worker of a rank)
has a range of it. All of it is arithmetic on the row counts in the files' footers, so any batch is found without
reading the row groups before its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise._extras import require
from counterpoise.data.keyed import ROW_GROUPS, permutation
from counterpoise.data.rows import (
    CHUNK,
    Chunk,
    ParquetRows,
    Rows,
    chunk_of,
    classes_of,
    hub_files,
    hub_split,
    labels_in,
    require_row_numbers,
)
from counterpoise.data.sources import WHOLE, DataSource, stored_split


class RowGroup(NamedTuple):
    """One row group: its file, its number there, the row number of its first row in the split, and its rows."""

    file: str
    group: int
    first: int
    rows: int


@dataclass(frozen=True)
class Split:
    """The rows of a split, in Parquet files.

    Attributes:
        source: of the rows.
        row_groups: all row groups, in the order of the rows.
        classes: names of the classes.
        kept: bool for each row, true where it takes part; None for all.
    """

    source: DataSource
    row_groups: tuple[RowGroup, ...]
    classes: tuple[str, ...]
    kept: Tensor | None

    @property
    def rows(self) -> int:
        """Rows in the files, whether they take part or not."""
        return self.row_groups[-1].first + self.row_groups[-1].rows

    @property
    def taking_part(self) -> int:
        """Rows of an epoch."""
        return self.rows if self.kept is None else int(self.kept.sum())

    def ids(self, row_group: RowGroup) -> Tensor:
        """Row numbers of those of a row group that take part."""
        ids = torch.arange(row_group.first, row_group.first + row_group.rows)
        return ids if self.kept is None else ids[self.kept[row_group.first : row_group.first + row_group.rows]]

    def without(self, excluded: Tensor) -> "Split":
        """The same split with some more rows, by their numbers, left out."""
        return self._narrowed(~self._at(excluded))

    def only(self, chosen: Tensor) -> "Split":
        """The same split with some of its rows, by their numbers, and no others."""
        return self._narrowed(self._at(chosen))

    def _at(self, ids: Tensor) -> Tensor:
        require_row_numbers(ids, self.rows)
        found = torch.zeros(self.rows, dtype=torch.bool)
        found[ids.cpu()] = True
        return found

    def _narrowed(self, kept: Tensor) -> "Split":
        return replace(self, kept=kept if self.kept is None else kept & self.kept)


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


def open_split(source: DataSource, split: str, *, domain: str | None = None) -> Split:
    """Read the footers of a split, and of its rows only the domains, or the labels where nothing names the classes."""
    stored = stored_split(source, split, domain)
    if source.kind not in ("parquet", "hub"):
        raise ValueError(f"{source.info.name} at {source.location} is no Parquet, which alone can be streamed")
    every = source.files or hub_files(source)
    key = stored if source.files else hub_split(source, stored)
    if key not in every:
        raise ValueError(f"{source.location} has no split {key!r}; it has {', '.join(map(repr, every))}")
    row_groups: list[RowGroup] = []
    domains: list[str | None] = []
    named: dict[str, tuple[str, ...]] = {}
    first = 0
    for file in (ParquetRows(source, name) for name in every[key]):
        named[file.name] = file.classes
        for group in range(file.file.metadata.num_row_groups):
            row_groups.append(RowGroup(file.name, group, first, file.file.metadata.row_group(group).num_rows))
            first += row_groups[-1].rows
        if file.columns.domain is not None and split != WHOLE:
            domains += file.column(file.columns.domain).to_pylist()
    if first == 0:
        raise ValueError(f"{source.info.name}, split {split!r} at {source.location} has no rows")
    kept = torch.tensor([(each == domain) == (split == "test") for each in domains]) if domains else None
    return Split(source, tuple(row_groups), classes_of(source, named, every), kept)


def labels_of(split: Split) -> Tensor:
    """Labels of the rows of a split that take part, int64 `[n]`; nothing else is read."""
    names = dict.fromkeys(row_group.file for row_group in split.row_groups)
    files = (ParquetRows(split.source, name) for name in names)
    labels = torch.cat([torch.tensor(labels_in(file.column(file.columns.label))) for file in files])
    return labels if split.kept is None else labels[split.kept]


def rows_in_place(source: DataSource, split: str, *, domain: str | None, ids: Tensor | None) -> Rows:
    """What `read_rows` gives, read from the files where they are, without the row groups that hold none of `ids`."""
    opened = open_split(source, split, domain=domain)
    rows = epoch_order(opened if ids is None else opened.only(ids), seed=0, epoch=0, shuffle=False)
    return Rows(opened.rows, opened.classes, read_range(rows, 0, len(rows)))


def epoch_order(split: Split, *, seed: int, epoch: int, shuffle: bool) -> EpochOrder:
    """The row groups in the order of an epoch."""
    count = len(split.row_groups)
    order = permutation(seed, epoch, count, ROW_GROUPS) if shuffle else torch.arange(count)
    rows = torch.tensor([each.rows if split.kept is None else len(split.ids(each)) for each in split.row_groups])
    order = order[rows[order] > 0]
    return EpochOrder(split, order, rows[order].cumsum(0))


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
    most = min(CHUNK, stop - start)
    arrow = require("pyarrow", extra="train", purpose="reading Parquet files")
    opened: ParquetRows | None = None
    turn = int(torch.searchsorted(rows.ends, start, right=True))
    while start < stop:
        row_group, end = rows.split.row_groups[int(rows.order[turn])], int(rows.ends[turn])
        ids = rows.split.ids(row_group).numpy()
        ids = ids[len(ids) - (end - start) :][: stop - start]
        if opened is None or opened.name != row_group.file:
            opened = ParquetRows(rows.split.source, row_group.file)
        first, last = row_group.first, ids[-1]
        for table in opened.tables(row_group.group, most=most):
            here = ids[(ids >= first) & (ids < first + len(table))]
            if len(here):
                yield chunk_of(table.take(arrow.array(here - first)), opened.columns, here, opened.name)
            first += len(table)
            if first > last:
                break
        start += len(ids)
        turn += 1
