"""A loader for sets that do not fit into memory: Parquet files or WebDataset shards, read window by window."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from counterpoise.data.augment import Augmentation
from counterpoise.data.chunks import Chunk, regrouped
from counterpoise.data.decode import decoded_chunk, decoded_images
from counterpoise.data.images import check_labels, require_labels
from counterpoise.data.keyed import permutation
from counterpoise.data.memory import Batch, Position, check_shares, prepared
from counterpoise.data.row_groups import (
    EpochOrder,
    ReaderRange,
    Split,
    epoch_order,
    open_split,
    read_range,
    reader_ranges,
)
from counterpoise.data.sources import resolve
from counterpoise.data.transforms import Mixing, Transforms
from counterpoise.data.workers import in_workers

Pixels = tuple[Tensor, Tensor, Tensor]
"""Pixels uint8 `[b, C, H, W]`, labels and ids of a batch, before what is done on the device."""


class StreamLoader:
    """Batches of a split that stays on disk or on the hub; the protocol is that of `MemoryLoader`, without pruning.

    In an epoch the row groups of the files come in an order keyed by (seed, epoch), and each reader permutes windows of
    consecutive rows, so two rows can only meet in a batch if they are stored near each other or their row groups
    follow each other: files whose rows are sorted by class should be shuffled once when they are written. What an
    image becomes is keyed by (seed, epoch, sample id), as in memory.

    Order is promised for one number of ranks, of workers, one batch and one window; a state is refused by others. The
    number of delivered batches, with `drop_last` the same on all ranks, is the whole state, and each rank finds its
    place from it: nothing before the row group of the window that is under way is read again.

    Args:
        name_or_path: see `resolve`; the set must be stored as Parquet, or as a WebDataset.
        split: of the set.
        batch: samples a step over all ranks.
        seed: of order and augmentation.
        augmentation: of whole batches on the device; None for evaluation.
        shuffle: a new order every epoch.
        drop_last: leave the last `rows % batch` rows of the epoch's sequence out, so that all batches are full on all
            ranks; which rows they are changes with the order. Without it no row is lost or repeated.
        workers: processes that read, decode and transform; 0 does so in this one.
        window: rows that a worker holds encoded and permutes.
        exclude: ids of rows to leave out, such as those for validation, 8 bytes each.
        root: folder of the local sets.
        domain: for sets of domains: tested on, and left out of training.
        size: resize the shorter side to it and crop the centre.
        labelled: refuse rows without a label.
        mean: of each channel, to normalise with; by default the set's.
        std: of each channel, likewise.
        rank: of this process.
        world: number of processes; it must divide `batch`.
        device: where batches are augmented.
        transforms: of single images, before `augmentation`. A random crop is taken from the image as it is stored, and
            then resized to `size`.
        mixing: of whole batches, after all else. A rank mixes its own share of a batch with itself.
        opened: the split, where it is open already.
    """

    def __init__(
        self,
        name_or_path: str | Path,
        split: str,
        *,
        batch: int,
        seed: int,
        augmentation: Augmentation | None,
        shuffle: bool,
        drop_last: bool,
        workers: int = 0,
        window: int = 2000,
        exclude: Tensor | None = None,
        root: Path | None = None,
        domain: str | None = None,
        size: int | None = None,
        labelled: bool = False,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
        transforms: Transforms | None = None,
        mixing: Mixing | None = None,
        opened: Split | None = None,
    ) -> None:
        check_shares(batch=batch, rank=rank, world=world)
        if window < 1 or workers < 0:
            raise ValueError(f"window must be at least 1 and workers at least 0, got {window} and {workers}")
        opened = opened or open_split(resolve(name_or_path, root=root), split, domain=domain)
        if exclude is not None:
            opened = opened.without(exclude)
        if not opened.taking_part:
            raise ValueError(f"of {opened.source.info.name}, split {split!r}, no row is left to be read")
        info = opened.source.info
        self.name, self.note, self.flip, self.classes = info.name, info.note, info.flip, opened.classes
        self.mean, self.std = mean or info.mean, std or info.std
        self.batch = batch
        self.seed = seed
        self.augmentation = augmentation
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.workers = workers
        self.window = window
        self.size = size
        self.labelled = labelled
        self.rank = rank
        self.world = world
        self.transforms = transforms
        self.mixing = mixing
        self._split = opened
        self._position = Position()
        self.to(device)

    def to(self, device: torch.device | str) -> "StreamLoader":
        """Augment batches on a device; they come from there."""
        self.device = torch.device(device)
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose order and augmentation; another epoch than the present one starts at its first batch."""
        self._position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The epoch, the batches of it that were delivered on each rank, and what the order depends on."""
        return {"epoch": self._position.epoch, "consumed": self._position.consumed, **self._layout()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after the batches that were delivered when the state was taken, on the same layout of readers."""
        for name, here in self._layout().items():
            if state_dict[name] != here:
                raise ValueError(
                    f"the state was taken with {name} = {state_dict[name]}, this stream has {name} = {here}; the order "
                    f"of a stream depends on it, so resume with {state_dict[name]}, or start at the next epoch"
                )
        self._position.load(epoch=state_dict["epoch"], consumed=state_dict["consumed"])

    def close(self) -> None:
        """Nothing is left to be ended: the processes of an iteration end with it."""

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return self._reader_ranges(self._split.taking_part, consumed=0)[0]

    def __iter__(self) -> Iterator[Batch]:
        consumed, epoch = self._position.start(len(self)), self._position.epoch
        rows = epoch_order(self._split, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
        reader = _Reader(
            rows=rows,
            ranges=self._reader_ranges(len(rows), consumed=consumed)[1],
            batch=self.batch // self.world,
            window=self.window,
            size=self.size,
            shape=self._shape,
            labelled=self.labelled,
            shuffle=self.shuffle,
            transforms=self.transforms,
            seed=self.seed,
            epoch=epoch,
        )
        loader = in_workers(reader, workers=self.workers, device=self.device)
        for number, (pixels, labels, ids) in enumerate(loader, start=consumed):
            batch = prepared(
                pixels,
                labels,
                ids,
                keys=ids,
                device=self.device,
                augmentation=self.augmentation,
                mean=self.mean,
                std=self.std,
                mixing=self.mixing,
                seed=self.seed,
                epoch=epoch,
                number=number,
            )
            self._position.consumed = number + 1
            yield batch

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        """Of the first stored image, `[H, W, C]`: readers that each knew their own rows only could disagree."""
        first = next(read_range(epoch_order(self._split, seed=0, epoch=0, shuffle=False), 0, 1))
        return decoded_chunk(first, channels=self._split.source.info.channels, size=self.size, shape=None).shape[1:]

    def _layout(self) -> dict[str, int]:
        return {"world": self.world, "workers": self._readers, "batch": self.batch, "window": self.window}

    @property
    def _readers(self) -> int:
        return max(self.workers, 1)

    def _reader_ranges(self, rows: int, *, consumed: int) -> tuple[int, list[ReaderRange]]:
        return reader_ranges(
            rows,
            batch=self.batch,
            rank=self.rank,
            world=self.world,
            readers=self._readers,
            consumed=consumed,
            drop_last=self.drop_last,
        )


def sample_ids(name_or_path: str | Path, split: str, *, root: Path | None = None, domain: str | None = None) -> Tensor:
    """Row numbers of a split that can be streamed, int64 `[n]`; no image is read."""
    opened = open_split(resolve(name_or_path, root=root), split, domain=domain)
    return opened.numbers(torch.arange(opened.taking_part))


@dataclass(frozen=True)
class _Reader(IterableDataset[Pixels]):
    """What one rank reads of an epoch; each worker has a range of it.

    Attributes:
        rows: the epoch's sequence.
        ranges: of the workers, in the order in which they deliver.
        batch: rows of a batch on this rank.
        window: rows that are permuted together.
        size: pixels a side to bring the images to.
        shape: that all images have, as they are stored or of this size.
        labelled: refuse rows without a label.
        shuffle: permute windows; False for the stored order.
        transforms: of single images.
        seed: of permutation and transforms.
        epoch: of permutation and transforms.
    """

    rows: EpochOrder
    ranges: list[ReaderRange]
    batch: int
    window: int
    size: int | None
    shape: tuple[int, ...]
    labelled: bool
    shuffle: bool
    transforms: Transforms | None
    seed: int
    epoch: int

    def __iter__(self) -> Iterator[Pixels]:
        worker = get_worker_info()
        own = self.ranges[worker.id if worker is not None else 0]
        split = self.rows.split
        for chunk in regrouped(self._permuted(own), self.batch):
            pixels = self._pixels(chunk)
            labels, ids = torch.from_numpy(chunk.labels), torch.from_numpy(chunk.ids)
            check_labels(labels, ids, classes=len(split.classes), where=chunk.files)
            if self.labelled:
                require_labels(labels, ids, where=chunk.files)
            yield pixels, labels, ids

    def _pixels(self, chunk: Chunk) -> Tensor:
        """Decoded and transformed, uint8 `[b, C, H, W]`."""
        channels, ids = self.rows.split.source.info.channels, torch.from_numpy(chunk.ids)
        if self.transforms is not None and self.transforms.takes_own_size and self.size is not None:
            # One at a time: they may be photographs of many megabytes.
            stored = decoded_images(chunk, channels=channels, size=None)
            images = (torch.tensor(image).permute(2, 0, 1) for image in stored)
            return self.transforms(images, ids, seed=self.seed, epoch=self.epoch)
        pixels = decoded_chunk(chunk, channels=channels, size=self.size, shape=self.shape)
        squares = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        if self.transforms is None:
            return squares
        return self.transforms(squares, ids, seed=self.seed, epoch=self.epoch)

    def _permuted(self, own: ReaderRange) -> Iterator[Chunk]:
        """The windows of a range from the one on that holds the first row to deliver."""
        consumed = own.first * self.batch
        skip = consumed % self.window
        for window in regrouped(read_range(self.rows, own.start + consumed - skip, own.stop), self.window):
            ids = torch.from_numpy(window.ids)
            order = permutation(self.seed, self.epoch, ids) if self.shuffle else torch.arange(len(ids))
            yield window.part(order.numpy()[skip:])
            skip = 0
