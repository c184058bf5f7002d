"""Noise on single values. Images are floats in [0, 1], `[n, 3, size, size]`; what leaves the range is clipped later."""

from torch import Tensor

from counterpoise_study.corruptions.draws import Draws


def gaussian_noise(images: Tensor, draws: Draws, deviation: float) -> Tensor:
    """`x + deviation z`."""
    return images + deviation * draws.normal(*images.shape[1:])


def shot_noise(images: Tensor, draws: Draws, photons: float) -> Tensor:
    """`Poisson(photons x) / photons`: photons are counted, and white is `photons` of them."""
    return draws.poisson(photons * images) / photons


def impulse_noise(images: Tensor, draws: Draws, amount: float) -> Tensor:
    """Values become 0 or 1, each with the probability amount / 2; channels are hit one by one."""
    chance = draws.uniform(*images.shape[1:])
    return images.masked_fill(chance < amount / 2, 0.0).masked_fill(chance >= 1 - amount / 2, 1.0)


def speckle_noise(images: Tensor, draws: Draws, deviation: float) -> Tensor:
    """`x + x deviation z`."""
    return images + images * deviation * draws.normal(*images.shape[1:])
