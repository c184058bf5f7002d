"""The corruptions by name, with the constants of the published generator of CIFAR-10-C and CIFAR-100-C."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from counterpoise._choices import SEVERITIES as SEVERITIES
from counterpoise._choices import require_corruption
from counterpoise_study.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from counterpoise_study.corruptions.digital import (
    brightness,
    contrast,
    elastic_transform,
    jpeg_compression,
    pixelate,
    saturate,
)
from counterpoise_study.corruptions.draws import Draws
from counterpoise_study.corruptions.frost_textures import frost
from counterpoise_study.corruptions.levels import quantised
from counterpoise_study.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from counterpoise_study.corruptions.weather import fog, snow, spatter

TITLE = "CIFAR-C-style"
"""What tables call it: the published constants, but not the published pixels."""

_SMALLEST_SIDE = 8
"""Pixels. Smaller images have no room for some of the filters."""

_BLOCK_VALUES = 1 << 18

Constants = tuple[float, ...]


@dataclass(frozen=True)
class Corruption:
    """A way to spoil an image.

    Attributes:
        apply: `apply(images, draws, *constants)` takes and returns floats in [0, 1], `[n, 3, size, size]`.
        constants: those of each severity.
    """

    apply: Callable[..., Tensor]
    constants: tuple[Constants, Constants, Constants, Constants, Constants]


CORRUPTIONS: Mapping[str, Corruption] = {
    "gaussian_noise": Corruption(gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))),
    "shot_noise": Corruption(shot_noise, ((500,), (250,), (100,), (75,), (50,))),
    "impulse_noise": Corruption(impulse_noise, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "defocus_blur": Corruption(defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))),
    "glass_blur": Corruption(glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "motion_blur": Corruption(motion_blur, ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))),
    "zoom_blur": Corruption(zoom_blur, ((7,), (12,), (16,), (21,), (26,))),
    "snow": Corruption(
        snow,
        (
            (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
            (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
        ),
    ),
    "frost": Corruption(frost, ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": Corruption(fog, ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))),
    "brightness": Corruption(brightness, ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,))),
    "contrast": Corruption(contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
    "elastic_transform": Corruption(
        elastic_transform,
        ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": Corruption(pixelate, ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,))),
    "jpeg_compression": Corruption(jpeg_compression, ((80,), (65,), (58,), (50,), (40,))),
    "speckle_noise": Corruption(speckle_noise, ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,))),
    "gaussian_blur": Corruption(gaussian_blur, ((0.4,), (0.6,), (0.7,), (0.8,), (1.0,))),
    "spatter": Corruption(
        spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0.0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0.0),
            (0.65, 0.3, 1.0, 0.69, 0.5, 0.0),
            (0.65, 0.1, 0.7, 0.69, 0.0, 0.6),
            (0.65, 0.1, 0.5, 0.68, 0.0, 0.6),
        ),
    ),
    "saturate": Corruption(saturate, ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))),
}


def require_corruptible(shape: Sequence[int]) -> None:
    """`ValueError` if images of this shape, `[C, H, W]`, cannot be corrupted."""
    channels, height, width = shape
    if channels != 3 or height != width or width < _SMALLEST_SIDE:
        raise ValueError(
            f"images to be corrupted must have 3 channels and be square with at least {_SMALLEST_SIDE} pixels a side, "
            f"got {list(shape)}"
        )


def corrupted(pixels: Tensor, corruption: str, severity: int, *, seed: int, ids: Tensor | None = None) -> Tensor:
    """Square images of bytes `[n, 3, size, size]`, corrupted; bytes of the same shape.

    CIFAR-C-style: the constants are those of the published CIFAR generator and the effects follow it, but the random
    numbers and the frost are others. Lengths are in pixels and were chosen for a side of 32 (only those of
    `elastic_transform` and `pixelate` are fractions of it), so larger images are blurred less for their size.

    What happens to an image depends on the image, `seed`, the corruption, the severity and its id alone, so any split
    into batches gives the same pixels. No global random state is read or changed.

    Args:
        pixels: uint8, in the memory of the CPU.
        corruption: a name in `CORRUPTIONS`.
        severity: 1 (least) to 5.
        seed: another seed gives other noise.
        ids: int64 `[n]`, one for each image; by default its place in the batch.

    >>> grey = torch.full((1, 3, 32, 32), 128, dtype=torch.uint8)
    >>> corrupted(grey, "brightness", 5, seed=0)[0, :, 0, 0]
    tensor([204, 204, 204], dtype=torch.uint8)
    """
    require_corruption(corruption, severity)
    if pixels.dtype != torch.uint8 or pixels.ndim != 4:
        raise ValueError(f"pixels must be uint8 of shape [n, 3, size, size], got {pixels.dtype} {list(pixels.shape)}")
    require_corruptible(pixels.shape[1:])
    if ids is None:
        ids = torch.arange(len(pixels))
    if ids.dtype != torch.int64 or ids.shape != pixels.shape[:1]:
        raise ValueError(f"ids must be int64 of shape [{len(pixels)}], got {ids.dtype} {list(ids.shape)}")
    apply, constants = CORRUPTIONS[corruption].apply, CORRUPTIONS[corruption].constants[severity - 1]
    purpose = f"{seed} {corruption} {severity}"
    result = torch.empty(pixels.shape, dtype=torch.uint8)
    # Blocks that stay in the processor's cache, and bound the memory of large images.
    size = max(1, _BLOCK_VALUES // pixels[0].numel()) if len(pixels) else 1
    for start in range(0, len(pixels), size):
        block = slice(start, start + size)
        images = pixels[block].contiguous().float() / 255
        result[block] = quantised(apply(images, Draws(purpose, ids[block]), *constants))
    return result
