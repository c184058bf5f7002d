"""Random crop and flip, keyed by (seed, epoch, sample id) alone, and normalisation; of whole batches, on any device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from counterpoise.data.keyed import AUGMENTATION, keyed_integers


@dataclass(frozen=True)
class Augmentation:
    """The usual training augmentation of small images.

    Attributes:
        padding: black pixels on each side, from which a window of the original size is cropped.
        flip: mirror half of the images, left to right, by chance.
    """

    padding: int
    flip: bool

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must not be negative, got {self.padding}")

    def __call__(self, images: Tensor, ids: Tensor, *, seed: int, epoch: int) -> Tensor:
        """Augment uint8 images `[b, C, H, W]` of the samples `ids [b]`; each by its own key, whatever is beside it."""
        positions = 2 * self.padding + 1
        # One draw of every (top, left, mirrored) there is.
        draw = keyed_integers(seed, epoch, ids, AUGMENTATION, high=2 * positions**2)
        mirrored = draw % 2 if self.flip else torch.zeros_like(draw)
        draw = draw // 2
        return cropped(images, top=draw // positions, left=draw % positions, mirrored=mirrored, padding=self.padding)


def cropped(images: Tensor, *, top: Tensor, left: Tensor, mirrored: Tensor, padding: int) -> Tensor:
    """Pad `[b, C, H, W]` with zeros, crop a window of H x W at `(top, left)`, and mirror it where `mirrored` is 1.

    The result is in channels-last memory. Windows are rows of contiguous bytes there, which `index_select` copies
    whole; that is several times faster on a CPU than indexing by several tensors. A mirrored window is taken from a
    mirrored image, so that rows stay whole.
    """
    batch, channels, height, width = images.shape
    rows = images.permute(0, 2, 3, 1)
    padded = images.new_zeros(2, batch, height + 2 * padding, width + 2 * padding, channels)
    inner = padded[:, :, padding : padding + height, padding : padding + width]
    inner[0] = rows
    inner[1] = rows.flip(2)
    _, of_image, of_row, of_pixel, _ = padded.stride()
    column = torch.where(mirrored == 1, 2 * padding - left, left)
    start = (mirrored * batch + torch.arange(batch, device=images.device)) * of_image
    start = start + top * of_row + column * of_pixel
    starts = start[:, None] + torch.arange(height, device=images.device) * of_row
    length = width * channels
    every_row = padded.as_strided((padded.numel() - length + 1, length), (1, 1))
    windows = every_row.index_select(0, starts.reshape(-1))
    return windows.view(batch, height, width, channels).permute(0, 3, 1, 2)


def normalised(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """`(x / 255 - mean) / std` per channel of uint8 images `[b, C, H, W]`; float32 in channels-last memory.

    >>> normalised(torch.full((1, 1, 1, 2), 255, dtype=torch.uint8), [0.5], [0.25])
    tensor([[[[2., 2.]]]])
    """
    batch, channels, height, width = images.shape
    scale, shift = _affine(tuple(mean), tuple(std), height * width, images.device)
    flat = images.permute(0, 2, 3, 1).reshape(batch, -1).float().mul_(scale).add_(shift)
    return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)


@lru_cache(maxsize=16)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], pixels: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """`x * scale + shift` normalises; a number for each value of an image, for a broadcast over 3 is a loop of 3."""
    means, stds = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    scale, shift = 1 / (255 * stds), -means / stds
    return scale.repeat(pixels).float().to(device), shift.repeat(pixels).float().to(device)
