"""Contrast, colour, geometry and compression. Images are floats in [0, 1], `[n, 3, size, size]`."""

import io

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from counterpoise._extras import require
from counterpoise.data.decode import open_image
from counterpoise_study.corruptions.draws import Draws
from counterpoise_study.corruptions.filters import gaussian_matrix, separable
from counterpoise_study.corruptions.levels import quantised


def contrast(images: Tensor, _draws: Draws, factor: float) -> Tensor:
    """`(x - m) factor + m`, m the mean of each channel of each image."""
    mean = images.mean((2, 3), keepdim=True)
    return (images - mean) * factor + mean


def brightness(images: Tensor, _draws: Draws, gain: float) -> Tensor:
    """The value of HSV, `v = max(r, g, b)`, grows by `gain`; hue and saturation, so the channels' ratios, stay."""
    value = images.amax(1, keepdim=True)
    ratio = torch.where(value > 0, images / value, 1.0)
    return ratio * (value + gain).clamp(max=1.0)


def saturate(images: Tensor, _draws: Draws, factor: float, gain: float) -> Tensor:
    """The saturation of HSV, `s = 1 - min / v`, becomes `factor s + gain`; hue and value stay.

    Grey has the hue of red, as is usual, so that a gain reddens it.
    """
    value, least = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = value - least
    red = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float32).view(1, 3, 1, 1)
    depth = torch.where(chroma > 0, (value - images) / chroma, red)
    saturation = torch.where(value > 0, chroma / value, 0.0)
    return value * (1 - (factor * saturation + gain).clamp(0, 1) * depth)


def elastic_transform(images: Tensor, draws: Draws, strength: float, deviation: float, skew: float) -> Tensor:
    """Move three points of the image by up to `skew` and the plane with them, then each pixel by a smooth random field.

    All three constants are fractions of the image's side. The field is uniform noise in [-1, 1) under a Gaussian
    filter of `deviation`, times `strength`.
    """
    size = images.shape[-1]
    place = torch.arange(size, dtype=torch.float32)
    middle, arm = size // 2, size // 3
    corners = middle + arm * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], dtype=torch.float32)
    moved = corners + draws.uniform(3, 2, low=-skew * size, high=skew * size)
    # Solved for the map back, from the new place of a pixel to its old one, because that is what sampling needs.
    back = torch.linalg.solve(F.pad(moved, (0, 1), value=1.0), corners.expand_as(moved))[..., None, None]
    x, y = (back[:, 0] * place + back[:, 1] * place[:, None] + back[:, 2]).unbind(1)
    warped = _sampled(images, 2 * x / (size - 1) - 1, 2 * y / (size - 1) - 1, align_corners=True)
    if strength == 0:
        return warped
    noise = draws.uniform(2, size, size, low=-1.0, high=1.0)
    field = separable(noise, gaussian_matrix(size, deviation * size, truncate=3.0, mirrored=True)) * (strength * size)
    x, y = place + field[:, 0], place[:, None] + field[:, 1]
    return _sampled(warped, (2 * x + 1) / size - 1, (2 * y + 1) / size - 1, align_corners=False)


def pixelate(images: Tensor, _draws: Draws, scale: float) -> Tensor:
    """Down to `scale` of the side and up again, by box filters."""
    image = require("PIL.Image", extra="train", purpose="the pixelate corruption")
    size = images.shape[-1]
    small, box = (int(scale * size),) * 2, image.Resampling.BOX
    rows = [image.fromarray(pixels).resize(small, box).resize((size, size), box) for pixels in _as_rows(images)]
    return _from_rows(np.stack(rows))


def jpeg_compression(images: Tensor, _draws: Draws, quality: int) -> Tensor:
    """JPEG of that quality, with Pillow's default of halved chroma."""
    image = require("PIL.Image", extra="train", purpose="the JPEG corruption")

    def through(pixels: np.ndarray) -> np.ndarray:
        file = io.BytesIO()
        image.fromarray(pixels).save(file, "JPEG", quality=quality)
        return np.asarray(open_image(file))

    return _from_rows(np.stack([through(pixels) for pixels in _as_rows(images)]))


def _sampled(images: Tensor, x: Tensor, y: Tensor, *, align_corners: bool) -> Tensor:
    """Bilinear, with mirrored borders: about the centres of the border pixels, or about their outer edges."""
    grid = torch.stack((x, y), -1)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=align_corners)


def _as_rows(images: Tensor) -> np.ndarray:
    return quantised(images).permute(0, 2, 3, 1).contiguous().numpy()


def _from_rows(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
