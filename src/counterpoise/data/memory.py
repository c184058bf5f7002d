"""A loader of images in memory: augmented on the device, resumable at any batch, the same on any number of ranks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from counterpoise.data.augment import Augmentation, normalised
from counterpoise.data.balance import balanced
from counterpoise.data.images import Images
from counterpoise.data.keyed import permutation
from counterpoise.data.transforms import Mixing, Transforms
from counterpoise.data.whole import WholeImages
from counterpoise.data.workers import in_workers


class Batch(NamedTuple):
    """Normalised images, float32 `[b, C, H, W]` in channels-last memory; labels and sample ids, int64 `[b]`.

    Labels of images that were mixed are soft, float32 `[b, K]`.
    """

    images: Tensor
    labels: Tensor
    ids: Tensor


class Position:
    """How far an epoch is, in delivered batches: the state of a loader, and what it resumes from."""

    def __init__(self) -> None:
        self.epoch = 0
        self.consumed = 0
        self._resuming = False

    def set_epoch(self, epoch: int) -> None:
        """Another epoch starts at its first batch; the one that is under way goes on."""
        if epoch != self.epoch:
            self.epoch, self.consumed, self._resuming = epoch, 0, False

    def load(self, *, epoch: int, consumed: int) -> None:
        """The next iteration goes on after `consumed` batches."""
        self.epoch, self.consumed, self._resuming = epoch, consumed, True

    def start(self, batches: int) -> int:
        """The first batch of an iteration: after those consumed if a state was loaded, else 0."""
        if not self._resuming or self.consumed >= batches:
            self.consumed = 0
        self._resuming = False
        return self.consumed


class MemoryLoader:
    """Batches of images in memory, in an order and with an augmentation that (seed, epoch, sample id) decide alone.

    Batches, their order and their pixels do not depend on the number of ranks, on the device, or on an interruption.
    Call `set_epoch` before each epoch, or each has the same order.

    Args:
        images: the samples.
        batch: samples a step over all ranks; each rank takes every `world`-th row of it.
        seed: of order and augmentation.
        augmentation: of whole batches on the device; None for evaluation.
        shuffle: a new order every epoch.
        drop_last: leave the rows out that do not fill a batch; which ones changes with the order. Without it no row is
            lost or repeated, and ranks may differ by a row, or at the end by a batch.
        rank: of this process.
        world: number of processes; it must divide `batch`.
        device: where the images are kept and augmented.
        transforms: of single images, before `augmentation`; the images are then kept in the memory of the host.
        workers: processes that do so; 0 does it in this one. The images are the same.
        mixing: of whole batches, after all else. A rank mixes its own share of a batch with itself.
        balance: draw each class equally often, some samples more than once in an epoch and others not at all.
    """

    def __init__(
        self,
        images: Images,
        *,
        batch: int,
        seed: int,
        augmentation: Augmentation | None,
        shuffle: bool,
        drop_last: bool,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
        transforms: Transforms | None = None,
        workers: int = 0,
        mixing: Mixing | None = None,
        balance: bool = False,
    ) -> None:
        check_shares(batch=batch, rank=rank, world=world)
        self.images = images
        self.batch = batch
        self.seed = seed
        self.augmentation = augmentation
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.rank = rank
        self.world = world
        self.transforms = transforms
        self.workers = workers
        self.mixing = mixing
        self.balance = balance
        self._position = Position()
        self._kept: Tensor | None = None
        self.to(device)

    def to(self, device: torch.device | str) -> "MemoryLoader":
        """Keep the samples on a device; batches come from there."""
        self.device = torch.device(device)
        kept = self.device if self.transforms is None else "cpu"
        # Rows of contiguous bytes, which are selected several times faster than by planes.
        self._pixels = self.images.pixels.permute(0, 2, 3, 1).contiguous().to(kept)
        self._labels, self._ids = self.images.labels.to(kept), self.images.ids.to(kept)
        self._draws: list[_Draw] = []
        self._transformed: DataLoader[Tensor] | None = None
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose order and augmentation; another epoch than the present one starts at its first batch."""
        self._position.set_epoch(epoch)

    def use_only(self, kept: Tensor | None) -> None:
        """Leave samples out from the next iteration on: bool `[n]`, true for the rows of `images` that take part."""
        if kept is not None and (kept.dtype != torch.bool or kept.shape != (len(self.images),)):
            raise ValueError(
                f"kept must be a bool for each of {len(self.images)} images, got {kept.dtype} of {list(kept.shape)}"
            )
        self._kept = kept

    def state_dict(self) -> dict[str, Any]:
        """The epoch, the batches of it that were delivered, and their size."""
        return {"epoch": self._position.epoch, "consumed": self._position.consumed, "batch": self.batch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after the batches that were delivered when the state was taken, with batches of the same size."""
        if state_dict["batch"] != self.batch:
            raise ValueError(
                f"the state counts batches of {state_dict['batch']}, this loader has batches of {self.batch}: resume "
                f"with {state_dict['batch']}, or start at the next epoch"
            )
        self._position.load(epoch=state_dict["epoch"], consumed=state_dict["consumed"])

    def close(self) -> None:
        """End the processes that transform images; another iteration starts new ones."""
        self._transformed = None

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        rows = len(self.images) if self._kept is None else int(self._kept.sum())
        return batches_of(rows, batch=self.batch, rank=self.rank, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        batches = len(self)
        first = self._position.start(batches)
        epoch = self._position.epoch
        every_row, every_key = self._order(epoch)
        shares = [
            slice(number * self.batch + self.rank, (number + 1) * self.batch, self.world)
            for number in range(first, batches)
        ]
        rows, keys = [every_row[share] for share in shares], [every_key[share] for share in shares]
        for number, pixels in enumerate(self._pixels_of(rows, keys, epoch)):
            self._position.consumed = first + number + 1
            yield prepared(
                pixels,
                self._labels[rows[number]],
                self._ids[rows[number]],
                keys=keys[number],
                device=self.device,
                augmentation=self.augmentation,
                mean=self.images.mean,
                std=self.images.std,
                mixing=self.mixing,
                seed=self.seed,
                epoch=epoch,
                number=first + number,
            )

    def _order(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Rows of an epoch, and for each the key of its augmentation."""
        rows = torch.arange(len(self.images), device=self._ids.device)
        if self._kept is not None:
            rows = rows[self._kept.to(rows.device)]
        if self.balance:
            chosen, keys = balanced(self._labels[rows].cpu(), self._ids[rows].cpu(), seed=self.seed, epoch=epoch)
            return rows[chosen.to(rows.device)], keys.to(rows.device)
        if self.shuffle:
            rows = rows[permutation(self.seed, epoch, self._ids[rows])]
        return rows, self._ids[rows]

    def _pixels_of(self, rows: Sequence[Tensor], keys: Sequence[Tensor], epoch: int) -> Iterable[Tensor]:
        """Pixels of batches, uint8 `[b, C, H, W]`."""
        if self.transforms is None:
            return (_selected(self._pixels, some) for some in rows)
        self._draws[:] = [_Draw(some.numpy(), their.numpy(), epoch) for some, their in zip(rows, keys, strict=True)]
        if self._transformed is None:
            whole = self.images.whole if self.transforms.takes_own_size else None
            dataset = _Transformed(self._pixels if whole is None else whole, self.transforms, self.seed)
            self._transformed = in_workers(dataset, indices=self._draws, workers=self.workers, device=self.device)
        return self._transformed


class _Draw(NamedTuple):
    """A batch to be transformed, as it is sent to a worker: its rows among all images, their keys, and the epoch."""

    rows: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    epoch: int


@dataclass(frozen=True, eq=False)
class _Transformed(Dataset[Tensor]):
    """Transforms of draws from all images, uint8 `[n, H, W, C]` or of unequal shapes."""

    pixels: Tensor | WholeImages
    transforms: Transforms
    seed: int

    def __getitem__(self, draw: _Draw) -> Tensor:
        pixels, keys = self.pixels, torch.from_numpy(draw.keys)
        images: Iterable[Tensor]
        if isinstance(pixels, WholeImages):
            images = (pixels[row] for row in draw.rows.tolist())
        else:
            images = _selected(pixels, torch.from_numpy(draw.rows))
        return self.transforms(images, keys, seed=self.seed, epoch=draw.epoch)


def _selected(pixels: Tensor, rows: Tensor) -> Tensor:
    return pixels.index_select(0, rows).permute(0, 3, 1, 2)


def prepared(
    pixels: Tensor,
    labels: Tensor,
    ids: Tensor,
    *,
    keys: Tensor,
    device: torch.device,
    augmentation: Augmentation | None,
    mean: Sequence[float],
    std: Sequence[float],
    mixing: Mixing | None,
    seed: int,
    epoch: int,
    number: int,
) -> Batch:
    """What is done on the device to uint8 images `[b, C, H, W]`, batch `number` of an epoch."""
    pixels, labels, ids, keys = (each.to(device, non_blocking=True) for each in (pixels, labels, ids, keys))
    if augmentation is not None:
        pixels = augmentation(pixels, keys, seed=seed, epoch=epoch)
    images = normalised(pixels, mean, std)
    if mixing is not None:
        images, labels = mixing(images, labels, seed=seed, epoch=epoch, number=number)
    return Batch(images, labels, ids)


def batches_of(rows: int, *, batch: int, rank: int, drop_last: bool) -> int:
    """Batches that a rank has of some rows, of which it takes every so many of each batch."""
    whole, rest = divmod(rows, batch)
    return whole + (0 if drop_last else int(rest > rank))


def check_shares(*, batch: int, rank: int, world: int) -> None:
    """Refuse a global batch that ranks cannot share evenly."""
    if batch < 1 or world < 1 or batch % world:
        raise ValueError(f"a batch of {batch} cannot be shared evenly by {world} ranks; choose a multiple of {world}")
    if not 0 <= rank < world:
        raise ValueError(f"rank must be in [0, {world}), got {rank}")
