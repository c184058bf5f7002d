"""Linear filters over images `[n, c, size, size]`: separable ones as matrices, small kernels, lines at an angle.

Every sum runs within one image and in an order that does not depend on the batch, so an image comes out with the same
bits in any batch.
"""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_NEGLIGIBLE = 1e-6
"""All taps below this weight together would move a pixel by less than a hundredth of a grey level."""


def separable(images: Tensor, matrix: Tensor) -> Tensor:
    """`A X A^T` for each channel."""
    # One product of fixed shape per channel: a single large product could sum in another order for another batch.
    planes = images.flatten(0, 1)
    left = matrix.expand(len(planes), *matrix.shape)
    return torch.bmm(torch.bmm(left, planes), left.mT).view_as(images)


def smoothed(images: Tensor, deviation: float) -> Tensor:
    """Gaussian filter, cut at four deviations, with the border pixels continued outwards."""
    return separable(images, gaussian_matrix(images.shape[-1], deviation))


@lru_cache(maxsize=64)
def gaussian_matrix(size: int, deviation: float, *, truncate: float = 4.0, mirrored: bool = False) -> Tensor:
    """The Gaussian filter along one axis, `[size, size]`; beyond the border is its pixel, or the mirror image.

    >>> gaussian_matrix(3, 0.6, truncate=2.0)
    tensor([[0.8336, 0.1664, 0.0000],
            [0.1664, 0.6672, 0.1664],
            [0.0000, 0.1664, 0.8336]])
    """
    radius = int(truncate * deviation + 0.5)
    steps = torch.arange(-radius, radius + 1)
    weights = torch.softmax(-(steps.double() ** 2) / (2 * deviation**2), 0)
    source = torch.arange(size)[:, None] + steps
    if mirrored:
        source = source % (2 * size)
        source = torch.minimum(source, 2 * size - 1 - source)
    else:
        source = source.clamp(0, size - 1)
    filled = torch.zeros(size, size, dtype=torch.double).scatter_add_(1, source, weights.expand(size, -1))
    return filled.float()


@lru_cache(maxsize=64)
def zoom_matrix(size: int, factor: float) -> Tensor:
    """Linear interpolation of the middle `size / factor` pixels of an axis to the whole of it, `[size, size]`."""
    cropped = math.ceil(size / factor)
    zoomed = round(cropped * factor)
    first, trimmed = (size - cropped) // 2, (zoomed - size) // 2
    place = torch.arange(trimmed, trimmed + size, dtype=torch.double) * ((cropped - 1) / (zoomed - 1))
    below = place.floor().long().clamp(max=cropped - 2)
    matrix = torch.zeros(size, size, dtype=torch.double)
    matrix.scatter_(1, (first + below)[:, None], (1 - (place - below))[:, None])
    matrix.scatter_(1, (first + below + 1)[:, None], (place - below)[:, None])
    return matrix.float()


def correlated(images: Tensor, kernel: Tensor) -> Tensor:
    """`sum_ij kernel[i, j] X[y + i - r, x + j - r]` for a kernel of side 2 r + 1, mirrored about the border pixels."""
    size, radius = images.shape[-1], kernel.shape[-1] // 2
    padded = F.pad(images, (radius,) * 4, mode="reflect")
    result = torch.zeros_like(images)
    for down, right in (kernel.abs() > _NEGLIGIBLE).nonzero().tolist():
        result += kernel[down, right] * padded[..., down : down + size, right : right + size]
    return result


def line_blurred(images: Tensor, angles: Tensor, *, radius: int, deviation: float) -> Tensor:
    """Motion along a line: half a Gaussian that starts at the pixel and follows its image's angle, `[n, 1]` in degrees.

    As ImageMagick has it: `2 radius + 1` whole-pixel steps, the border pixels continued outwards.
    """
    size = images.shape[-1]
    steps = torch.arange(2 * radius + 1)
    weights = torch.softmax(-(steps.double() ** 2) / (2 * deviation**2), 0)
    turn = torch.deg2rad(angles.double())
    across, along = turn.cos(), turn.sin()
    place = torch.arange(size)
    result = torch.zeros_like(images)
    for step, weight in enumerate(weights.tolist()):
        if weight < _NEGLIGIBLE:
            break
        columns = (place + (step * across - 0.5).ceil().long()).clamp(0, size - 1)
        rows = (place + (step * along - 0.5).ceil().long()).clamp(0, size - 1)
        result += weight * gathered(images, rows[:, :, None], columns[:, None, :])
    return result


def gathered(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`X[:, rows, columns]` of each image; the indices broadcast to `[n, size, size]` and serve all channels."""
    index = (rows * images.shape[-1] + columns).flatten(1)
    planes = images.flatten(2)
    return planes.gather(2, index[:, None, :].expand_as(planes)).view_as(images)
