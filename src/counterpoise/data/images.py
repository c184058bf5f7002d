"""Image sets that fit into memory, as uint8 tensors that are decoded once."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterpoise._arrays import class_indices
from counterpoise.data.chunks import UNLABELLED, Progress, Rows, numbers_to, require_row_numbers
from counterpoise.data.decode import Survey, surveyed_chunk
from counterpoise.data.row_groups import IN_ROW_GROUPS, open_split, rows_of
from counterpoise.data.rows import read_rows
from counterpoise.data.sets import ImageSet
from counterpoise.data.sources import resolve
from counterpoise.data.whole import WholeImages


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images in memory.

    Attributes:
        pixels: uint8 `[n, C, H, W]`, best in channels-last memory, which the augmentation works on.
        labels: int64 `[n]`, -1 where a sample has none.
        ids: int64 `[n]`, row numbers in the set as it is stored; augmentation and order are keyed by them.
        classes: names of the classes.
        mean: of each channel, of pixels scaled to [0, 1].
        std: of each channel, likewise.
        name: of the set.
        note: what a reader of a result must know of the set.
        flip: whether a mirrored image is still of its class.
        names: of all rows of the set as it is stored, by their numbers; empty where they have none.
        whole: the same images without a cropped border, for random crops of them; None if they are not kept.
    """

    pixels: Tensor
    labels: Tensor
    ids: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str = "images"
    note: str = ""
    flip: bool = True
    names: Sequence[str] = ()
    whole: WholeImages | None = None

    def __post_init__(self) -> None:
        rows = len(self.pixels)
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise ValueError(
                f"pixels must be uint8 of shape [n, C, H, W], got {self.pixels.dtype} of {list(self.pixels.shape)}"
            )
        if self.labels.shape != (rows,) or self.ids.shape != (rows,):
            raise ValueError(f"{rows} images need as many labels and ids, got {len(self.labels)} and {len(self.ids)}")
        if not len(self.mean) == len(self.std) == self.pixels.shape[1]:
            raise ValueError(
                f"images of {self.pixels.shape[1]} channels need a mean and a std for each, "
                f"got {len(self.mean)} and {len(self.std)}"
            )
        if not all(each > 0 for each in self.std):
            raise ValueError(f"a standard deviation of each channel must be positive, got {self.std}")
        check_labels(self.labels, self.ids, classes=len(self.classes), where=[self.name] * rows)

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, indices: Tensor) -> "Images":
        """The rows at these positions, in this order, under their old ids."""
        return replace(
            self,
            # Selected as rows of contiguous bytes; indexing would rearrange the memory.
            pixels=self.pixels.permute(0, 2, 3, 1).index_select(0, indices).permute(0, 3, 1, 2),
            labels=self.labels[indices],
            ids=self.ids[indices],
            whole=None if self.whole is None else self.whole.take(indices),
        )

    @property
    def digest(self) -> str:
        """Of the pixels, labels and classes, in hexadecimal."""
        found = hashlib.blake2b(json.dumps([list(self.pixels.shape), *self.classes]).encode(), digest_size=16)
        for tensor in (self.labels, self.pixels.permute(0, 2, 3, 1)):
            found.update(tensor.cpu().contiguous().numpy().data)
        return found.hexdigest()

    @classmethod
    def of(
        cls,
        pixels: Any,
        labels: Any = None,
        *,
        classes: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        name: str = "images",
        note: str = "",
        flip: bool = True,
    ) -> "Images":
        """Images from a uint8 tensor or array, NCHW or NHWC with 1 or 3 channels (NCHW where both fit).

        Without `classes` they are numbered up to the largest label; without `mean` and `std` they are measured, so give
        those of the training images with test images.

        >>> images = Images.of(torch.zeros(2, 8, 8, 1, dtype=torch.uint8), [0, 1], mean=[0.0], std=[1.0])
        >>> images.pixels.shape, images.classes
        (torch.Size([2, 1, 8, 8]), ('0', '1'))
        """
        dtype = getattr(pixels, "dtype", type(pixels))
        if dtype not in (torch.uint8, np.uint8):
            raise ValueError(f"pixels must be a tensor or array of uint8, values from 0 to 255, got {dtype}")
        # Torch takes neither reversed nor read-only arrays as they are.
        tensor = pixels if isinstance(pixels, Tensor) else torch.from_numpy(np.require(pixels, requirements=["C", "W"]))
        if tensor.ndim != 4 or not {1, 3} & {tensor.shape[1], tensor.shape[3]}:
            raise ValueError(
                f"pixels must have shape [n, C, H, W] or [n, H, W, C] with C = 1 or 3, got {list(tensor.shape)}"
            )
        if not tensor.numel():
            raise ValueError(f"pixels are empty: their shape is {list(tensor.shape)}")
        rows = tensor.permute(0, 2, 3, 1) if tensor.shape[1] in (1, 3) else tensor
        count = torch.Size([len(rows)])
        indices = torch.full(count, UNLABELLED) if labels is None else class_indices(labels, count)
        if classes is None:
            classes = numbers_to(int(indices.max()), where=name)
        if mean is None or std is None:
            measured = channel_statistics(rows)
            mean, std = measured[0] if mean is None else mean, measured[1] if std is None else std
        return cls(
            pixels=rows.contiguous().permute(0, 3, 1, 2),
            labels=indices,
            ids=torch.arange(len(rows)),
            classes=tuple(classes),
            mean=tuple(mean),
            std=tuple(std),
            name=name,
            note=note,
            flip=flip,
        )


def load_images(
    name_or_path: str | Path,
    split: str,
    *,
    root: Path | None = None,
    domain: str | None = None,
    ids: Tensor | None = None,
    limit: int | None = None,
    size: int | None = None,
    in_place: bool = False,
    whole: bool = False,
    survey: Survey | None = None,
    progress: Progress | None = None,
) -> Images:
    """Read and decode a split.

    Args:
        name_or_path: see `resolve`.
        split: `train`, `test`, or another that the set has; `all` of what is not divided.
        root: folder of the local sets; by default the environment variable COUNTERPOISE_DATA.
        domain: for sets of domains: tested on, and left out of training.
        ids: only the rows with these numbers, in their stored order.
        limit: the first rows only.
        size: resize the shorter side to it and crop the centre; needed where images differ in size.
        in_place: read Parquet files of the hub where they are, without a copy of the whole set in the hub's cache.
        whole: with `size`, keep a copy of each image that is resized but not cropped, too.
        survey: filled with what is found; it may ask to leave out what cannot be decoded.
        progress: called with the rows read and the rows there are.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 row, got {limit}")
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    source = resolve(name_or_path, root=root)
    if source.kind not in IN_ROW_GROUPS or (source.kind == "hub" and not in_place):
        rows = read_rows(source, split, domain=domain)
        rows = rows if ids is None else _selected(rows, ids)
    else:
        opened = open_split(source, split, domain=domain)
        rows = rows_of(opened if ids is None else opened.only(ids))
    where = f"{source.info.name}, split {split!r} at {source.location}"
    return decoded_rows(
        rows, source.info, limit=limit, size=size, whole=whole, survey=survey, progress=progress, where=where
    )


def decoded_rows(
    rows: Rows,
    info: ImageSet,
    *,
    where: str,
    size: int | None,
    limit: int | None = None,
    whole: bool = False,
    survey: Survey | None = None,
    progress: Progress | None = None,
) -> Images:
    """Some rows in memory; arguments are those of `load_images`, and what errors call the rows."""
    most = rows.most if limit is None else min(limit, rows.most)
    survey = survey or Survey()
    pixels: npt.NDArray[np.uint8] | None = None
    labels: list[npt.NDArray[np.int64]] = []
    found: list[npt.NDArray[np.int64]] = []
    filled, entire, shapes = 0, bytearray(), list[tuple[int, ...]]()
    for chunk in rows.chunks:
        if progress is not None:
            progress(int(chunk.ids[0]), rows.stored)
        chunk = chunk.part(slice(most - filled))
        shape = None if pixels is None else pixels.shape[1:]
        decoded, chunk, borders = surveyed_chunk(
            chunk, channels=info.channels, size=size, shape=shape, survey=survey, whole=whole and size is not None
        )
        for image in borders:
            entire += image.tobytes()
            shapes.append(image.shape)
        if len(chunk.ids):
            if pixels is None:
                pixels = np.empty((most, *decoded.shape[1:]), np.uint8)
            pixels[filled : filled + len(decoded)] = decoded
            filled += len(decoded)
            labels.append(chunk.labels)
            found.append(chunk.ids)
        if filled == most:
            break
    if progress is not None:
        progress(rows.stored, rows.stored)
    if pixels is None:
        damaged = f"; the first that cannot be read: {survey.unreadable[0]}" if survey.unreadable else ""
        raise ValueError(f"{where} has no such rows{damaged}")
    images = _images_of(info, rows.classes, pixels[:filled], np.concatenate(labels), np.concatenate(found))
    return replace(images, names=rows.names, whole=WholeImages.of(entire, shapes) if shapes else None)


def _selected(rows: Rows, ids: Tensor) -> Rows:
    """Some of the rows, by their numbers."""
    require_row_numbers(ids, rows.stored)
    parts = (chunk.part(np.isin(chunk.ids, ids.numpy())) for chunk in rows.chunks)
    return replace(rows, most=min(rows.most, len(ids)), chunks=(part for part in parts if len(part.ids)))


def require_labels(labels: Tensor, ids: Tensor, *, where: Sequence[str]) -> None:
    """Refuse samples without a label, which nothing can be learned from, by the place and the row of the first."""
    missing = torch.nonzero(labels == UNLABELLED)
    if len(missing):
        row = int(missing[0])
        raise ValueError(
            f"{where[row]}: row {int(ids[row])} has no label ({len(missing)} of {len(labels)} have none); "
            "train on labelled images only"
        )


def check_labels(labels: Tensor, ids: Tensor, *, classes: int, where: Sequence[str]) -> None:
    """Refuse labels that no class has, by the place and the row of the first."""
    wrong = torch.nonzero((labels < UNLABELLED) | (labels >= classes))
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"{where[row]}: the label of row {int(ids[row])} is {int(labels[row])}, outside [0, {classes}); "
            f"{UNLABELLED} stands for a sample without a label"
        )


def channel_statistics(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 `[n, H, W, C]`, scaled to [0, 1]; exact sums."""
    counts = torch.stack([torch.bincount(channel.reshape(-1), minlength=256) for channel in pixels.unbind(-1)]).double()
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = counts @ values / counts.sum(1)
    variance = (counts * (values - mean[:, None]) ** 2).sum(1) / counts.sum(1)
    return tuple(mean.tolist()), tuple(variance.sqrt().clamp_min(1 / 255).tolist())


def _images_of(
    info: ImageSet,
    classes: tuple[str, ...],
    pixels: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int64],
) -> Images:
    return Images(
        pixels=torch.from_numpy(pixels).permute(0, 3, 1, 2),
        labels=torch.from_numpy(labels),
        ids=torch.from_numpy(ids),
        classes=classes,
        mean=info.mean,
        std=info.std,
        name=info.name,
        note=info.note,
        flip=info.flip,
    )
