"""Evidence that may be looked at any number of times: e-processes by betting, and exact limits to bet against.

The variables x lie in [0, 1], and the null hypothesis is that their mean, given what came before, is at most m. A
fortune that stakes the fraction b of itself on each x is multiplied by `1 - b + b x / m`, whose mean is then at most 1:
the fortune is a nonnegative supermartingale, and by Ville's inequality it ever reaches 1 / alpha with probability alpha
at most. That the mean is at least m is the same of 1 - x and 1 - m.

Bets are fixed, so a fortune hangs on how often each x was seen, not on the order, and x may come late. A change begins
somewhere: `start_weight` spreads one unit over the windows that a fortune can begin in, and the sum of all fortunes
and of what is not staked yet is an e-process too (an e-detector that keeps its level for ever).

A mean of few samples has limits of the same kind, from its first two moments alone (`highest_mean`).

References: X. Fan, I. Grama and Q. Liu, "Exponential inequalities for martingales with applications", EJP 2015.
I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024.
J. Shin, A. Ramdas and A. Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", NEJSDS
2023. J. Ville, "Étude critique de la notion de collectif", 1939.
"""

import math

import numpy as np
import torch
from torch import Tensor

from counterpoise.functional.proportions import Limits

BETS = tuple(2.0**-power for power in range(1, 9))
"""Fractions of a fortune that are staked, each with an equal share of the unit: large ones find large changes soon."""

_BISECTIONS = 60
_MOST = 0.9
"""Largest fraction that `highest_mean` stakes, with half of the unit: it decides where nothing has been lost yet."""


def log_wealth(counts: Tensor, values: Tensor, mean: Tensor) -> Tensor:
    """Log of the product of `1 - b + b x / m`, for each of `BETS`, of values x that were seen so many times.

    Args:
        counts: `[..., N, C]`, how often each value was seen in each of N windows.
        values: `[C]` in [0, 1].
        mean: `[...]` m in (0, 1], the largest mean of the null hypothesis.

    Returns:
        `[..., N, len(BETS)]`.

    >>> counts, values, mean = torch.tensor([[1.0, 2.0]]), torch.tensor([0.0, 1.0]), torch.tensor(0.5)
    >>> log_wealth(counts, values, mean)[0, 0].exp()  # (1 - 1/2) (1 - 1/2 + 1/2 / 0.5)^2
    tensor(1.1250)
    """
    bets = torch.tensor(BETS, dtype=mean.dtype)
    return counts @ torch.log1p(bets * (values[:, None] / mean[..., None, None] - 1))


def share_log_wealth(hits: Tensor, trials: Tensor, share: Tensor) -> Tensor:
    """`log_wealth` of x that are 1 or 0, for Q shares at once.

    Args:
        hits: `[..., N, Q]`, how often each x was 1.
        trials: `[..., N, 1]` or `[..., N, Q]`.
        share: `[..., Q]` in (0, 1], the largest of the null hypotheses.

    Returns:
        `[..., N, Q, len(BETS)]`.
    """
    bets = torch.tensor(BETS, dtype=share.dtype)
    hit, miss = torch.log1p(bets * (1 / share[..., None, :, None] - 1)), torch.log1p(-bets)
    return hits[..., None] * hit + (trials - hits)[..., None] * miss


def start_weight(windows: int) -> float:
    """Share of the unit that is staked in the first so many windows: `1 - 1 / log2(n + 2)`.

    So the n-th window has about `0.7 / (n log2(n)^2)`, and all windows together 1.

    >>> start_weight(0), start_weight(2), round(start_weight(10**6), 2)
    (0.0, 0.5, 0.95)
    """
    return 1 - 1 / math.log2(windows + 2)


def mean_limits(counts: Tensor, values: Tensor, *, error: float) -> Limits:
    """Confidence limits of a mean of values in [0, 1], each of which errs with probability `error` at most.

    The lower one is the largest mean m that a fortune staked against "at most m" refutes, by Markov's inequality.

    Args:
        counts: `[..., C]`, how often each value was seen.
        values: `[C]` in [0, 1].
        error: of each limit.

    >>> counts, values = torch.tensor([30.0, 70.0]), torch.tensor([0.0, 1.0])
    >>> low, high = mean_limits(counts, values, error=0.025)
    >>> round(float(low), 2), round(float(high), 2)
    (0.53, 0.83)
    """
    return Limits(_lower_mean(counts, values, error), 1 - _lower_mean(counts, 1 - values, error))


def highest_mean(mean: float, mean_square: float, count: float, *, largest: float, error: float) -> float:
    """Upper confidence limit of the mean of values x of at most `largest`; it errs with probability `error` at most.

    It is the least m that is refuted by fortunes `1 + b (m - x) / (largest - m)`, b of which is staked on each sample.
    Since `log(1 + y) >= y + y^2 (log(1 - b) + b) / b^2` for `y >= -b` (Fan, Grama and Liu), two moments are enough.

    >>> round(highest_mean(0.0, 0.0, 100, largest=1.0, error=0.05), 3)  # no error in 100 samples
    0.041
    """
    if not all(map(math.isfinite, (mean, mean_square, largest))):
        return math.inf
    bets = np.array((_MOST, *BETS))
    shares, curves = np.log([0.5, *(0.5 / len(BETS) for _ in BETS)]), np.log1p(-bets) + bets
    low, high = mean, max(mean, largest)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        room = largest - middle
        if room <= 1e-9 * (largest - mean):
            return high
        gain, spread = (middle - mean) / room, (mean_square - 2 * middle * mean + middle**2) / room**2
        wealth = np.logaddexp.reduce(shares + count * (bets * gain + curves * spread))
        low, high = (low, middle) if wealth >= -math.log(error) else (middle, high)
    return high


def _lower_mean(counts: Tensor, values: Tensor, error: float) -> Tensor:
    """By bisection: wealth falls as m rises."""
    counts, values = counts.double(), values.double()
    low = torch.zeros(counts.shape[:-1], dtype=torch.float64)
    high = (counts @ values) / counts.sum(-1)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        wealth = log_wealth(counts[..., None, :], values, middle.clamp(min=1e-300)).squeeze(-2)
        refuted = wealth.logsumexp(-1) - math.log(len(BETS)) >= -math.log(error)
        low, high = torch.where(refuted, middle, low), torch.where(refuted, high, middle)
    return low
