"""Smooth calibration error (Błasiok and Nakkiran, 2024): no bins, hence no edges that a confidence may jump over.

The residuals hit - p are smoothed over the confidence axis by a Gaussian kernel reflected at 0 and 1, with the
bandwidth at which the result equals the bandwidth. On [0, 1] that kernel is diagonal in cosines,
`K(t, x) = 1 + 2 sum_k exp(-(pi k sigma)^2 / 2) cos(pi k t) cos(pi k x)`, so the samples enter only through their
cosine moments, and every bandwidth is computed from those.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

MODES = 1024
SMALLEST_BANDWIDTH = 0.0025
"""Below it the modes do not suffice: at this bandwidth the last one is damped to 1e-14."""

_QUADRATURE = 2048
_CHUNK = 1 << 12


class SmoothError(NamedTuple):
    """Value and bandwidth of a smooth calibration error; equal, unless the bandwidth is the smallest one."""

    value: Tensor
    bandwidth: Tensor


def cosine_moments(position: Tensor, weight: Tensor) -> Tensor:
    """`sum_i w_i cos(pi k x_i)` for k = 0..MODES-1, in float64.

    Positions are `[n]`, weights `[..., n]`, moments `[..., MODES]`. With k = 32 a + b they are cosines of sums: 64
    cosines and 64 sines of each position give all of them, by two products of matrices.
    """
    steps = math.isqrt(MODES)
    fine = torch.arange(steps, dtype=torch.float64, device=position.device).unsqueeze(-1)
    moments = torch.zeros(*weight.shape[:-1], steps, steps, dtype=torch.float64, device=position.device)
    for x, w in zip(torch.split(position.double(), _CHUNK), torch.split(weight.double(), _CHUNK, dim=-1), strict=True):
        angle = math.pi * x * fine
        coarse, scaled = steps * angle, w.unsqueeze(-2)
        moments += (scaled * torch.cos(coarse)) @ torch.cos(angle).T - (scaled * torch.sin(coarse)) @ torch.sin(angle).T
    return moments.flatten(-2)


def smooth_calibration_error(moments: Tensor, samples: float) -> SmoothError:
    """The fixed point sigma = mean over t of `abs(smoothed residual at t)`, from the moments of the residuals.

    The integral over t is the mean over 2,048 midpoints. The error decreases with the bandwidth, so bisection finds
    the fixed point; where it lies below `SMALLEST_BANDWIDTH`, the value at that bandwidth is given.
    """
    scaled = moments / samples
    low, high = SMALLEST_BANDWIDTH, 1.0
    if _smoothed(scaled, low).abs().mean() <= low:
        bandwidth = low
    else:
        for _ in range(45):
            middle = 0.5 * (low + high)
            if _smoothed(scaled, middle).abs().mean() > middle:
                low = middle
            else:
                high = middle
        bandwidth = 0.5 * (low + high)
    value = _smoothed(scaled, bandwidth).abs().mean()
    return SmoothError(value, torch.tensor(bandwidth, dtype=torch.float64))


def smooth_noise_floor(variance_moments: Tensor, samples: float, bandwidth: float) -> Tensor:
    """Expected smooth error of a calibrated model at this bandwidth, from the moments of `p (1 - p)`.

    The square of a Gaussian kernel is a Gaussian of 1/sqrt(2) of its width over `2 sigma sqrt(pi)`, which gives the
    variance at each t; the mean absolute value of normal noise is sqrt(2/pi) of its deviation.
    """
    narrow = max(bandwidth / math.sqrt(2), SMALLEST_BANDWIDTH)
    density = _smoothed(variance_moments / samples, narrow).clamp(min=0)
    variance = density / (2 * bandwidth * math.sqrt(math.pi) * samples)
    return (math.sqrt(2 / math.pi) * variance.sqrt()).mean()


def _smoothed(moments: Tensor, bandwidth: float) -> Tensor:
    """The smoothed curve at the midpoints `(j + 1/2) / Q`, `[Q]`: a cosine transform, by a Fourier transform of 2 Q."""
    mode = torch.arange(MODES, dtype=torch.float64, device=moments.device)
    damping = torch.exp(-0.5 * (math.pi * bandwidth * mode) ** 2)
    damped = torch.where(mode == 0, 1.0, 2.0) * damping * moments
    shifted = damped * torch.exp(-0.5j * math.pi / _QUADRATURE * mode)
    smoothed: Tensor = torch.fft.fft(shifted, n=2 * _QUADRATURE)[:_QUADRATURE].real
    return smoothed
