"""Frost. The published corruption blends in crops of photographs of ice; these textures are drawn."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from counterpoise_study.corruptions.draws import Draws

_SIDE, _TEXTURES, _FERNS = 256, 5, 100
_SHADE, _ICE = (0.10, 0.15, 0.21), (0.94, 0.97, 1.0)
"""RGB of the dark between the crystals, and of the crystals."""


def frost(images: Tensor, draws: Draws, keep: float, ice: float) -> Tensor:
    """`keep x + ice t`, t a random crop of a random texture."""
    size = images.shape[-1]
    which, down, right = (draws.uniform(3) * torch.tensor([_TEXTURES, _SIDE, _SIDE])).long().unbind(1)
    rows, columns = ((start[:, None] + torch.arange(size)) % _SIDE for start in (down, right))
    crops = textures()[which[:, None, None], rows[:, :, None], columns[:, None, :]]
    return keep * images + ice * crops.permute(0, 3, 1, 2)


@lru_cache(maxsize=1)
def textures() -> Tensor:
    """Ferns of ice over clouds, `[textures, side, side, 3]` in [0, 1]; they repeat without a seam."""
    generator = np.random.Generator(np.random.Philox(key=0))
    drawn = [_texture(generator) for _ in range(_TEXTURES)]
    return torch.from_numpy(np.stack(drawn).astype(np.float32))


def _texture(generator: np.random.Generator) -> np.ndarray:
    ferns = generator.random((_FERNS, 4, 1, 1))
    root = _SIDE * (ferns[:, 0] + 1j * ferns[:, 1])
    heading = np.exp(2j * np.pi * ferns[:, 2])
    length = 10 + 70 * ferns[:, 3]
    along = np.arange(0, 80, 0.5)
    stems = (root + heading * along)[along < length]
    # Ice branches at 60 degrees, and its branches get shorter towards the tip.
    knot = along[::8, None]
    grown = along < 0.45 * (length - knot)
    branches = [(root + heading * (knot + along * np.exp(1j * turn)))[grown] for turn in (np.pi / 3, -np.pi / 3)]
    points = np.concatenate([stems, *branches])
    cells = np.floor(points.imag).astype(int) % _SIDE * _SIDE + np.floor(points.real).astype(int) % _SIDE
    crystals = _smooth(np.bincount(cells, minlength=_SIDE**2).reshape(_SIDE, _SIDE), 0.7)
    clouds = np.zeros((_SIDE, _SIDE))
    for width in (3, 9, 27):
        layer = _smooth(generator.standard_normal((_SIDE, _SIDE)), width)
        clouds += layer / layer.std()
    level = 1 / (1 + np.exp(-(2.5 * crystals + 1.2 * clouds - 2)))
    return np.asarray(_SHADE) * (1 - level[..., None]) + np.asarray(_ICE) * level[..., None]


def _smooth(plane: np.ndarray, deviation: float) -> np.ndarray:
    """A Gaussian filter on the torus."""
    frequency = 2 * np.pi * np.fft.fftfreq(_SIDE)
    gain = np.exp(-(frequency**2) * deviation**2 / 2)
    return np.asarray(np.fft.ifft2(np.fft.fft2(plane) * gain * gain[:, None]).real)
