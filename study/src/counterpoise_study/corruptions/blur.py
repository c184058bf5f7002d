"""Blurs. Images are floats in [0, 1], `[n, 3, size, size]`."""

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from counterpoise_study.corruptions.draws import Draws
from counterpoise_study.corruptions.filters import (
    correlated,
    gathered,
    line_blurred,
    separable,
    smoothed,
    zoom_matrix,
)
from counterpoise_study.corruptions.levels import quantised


def gaussian_blur(images: Tensor, _draws: Draws, deviation: float) -> Tensor:
    """A Gaussian filter."""
    return smoothed(images, deviation)


def defocus_blur(images: Tensor, _draws: Draws, radius: float, deviation: float) -> Tensor:
    """A disk of that radius in pixels, itself smoothed by a Gaussian of three taps."""
    return correlated(images, disk(radius, deviation))


def glass_blur(images: Tensor, draws: Draws, deviation: float, rounds: int) -> Tensor:
    """Smooth, move each pixel by 0 or 1 to the right and by 0 or 1 down, once or twice, smooth again.

    The published generator visits the pixels from the last to the first, and means to swap each with one up to a step
    to the left and above. Its swap is of views, so it only copies that one here; and because that one is never visited
    before, a round is one gather. The first two rows and columns stay.
    """
    size = images.shape[-1]
    place = torch.arange(size)
    moves = (place[:, None] > 1) & (place > 1)
    glass = quantised(smoothed(images, deviation)).float() / 255
    for _ in range(rounds):
        rows, columns = ((draws.uniform(2, size, size) < 0.5) & moves).long().unbind(1)
        glass = gathered(glass, place[:, None] - rows, place - columns)
    return smoothed(glass, deviation)


def motion_blur(images: Tensor, draws: Draws, radius: int, deviation: float) -> Tensor:
    """A line at an angle of up to 45 degrees from the horizontal."""
    return line_blurred(images, draws.uniform(1, low=-45.0, high=45.0), radius=radius, deviation=deviation)


def zoom_blur(images: Tensor, _draws: Draws, zooms: int) -> Tensor:
    """The mean of the image and of it at the zooms 1.00, 1.01, 1.02, and so on."""
    total = images.clone()
    # The published steps, with their last bits: at 1.25 they decide to which side a half is rounded.
    for factor in np.arange(1, 2, 0.01)[:zooms].tolist():
        total += separable(images, zoom_matrix(images.shape[-1], factor))
    return total / (zooms + 1)


@lru_cache(maxsize=16)
def disk(radius: float, deviation: float) -> Tensor:
    """A smoothed disk whose weights sum to one, of odd side.

    >>> disk(0.3, 0.4)
    tensor([[0.0016, 0.0371, 0.0016],
            [0.0371, 0.8450, 0.0371],
            [0.0016, 0.0371, 0.0016]])
    """
    half = int(radius) + 1
    place = torch.arange(-half, half + 1, dtype=torch.float32)
    inside = (place[:, None] ** 2 + place**2 <= radius**2).float()
    taps = torch.softmax(-(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float32) ** 2) / (2 * deviation**2), 0)
    return F.conv2d((inside / inside.sum())[None, None], (taps[:, None] * taps)[None, None], padding=1)[0, 0]
