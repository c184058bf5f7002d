"""Exact confidence limits of proportions."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_NEWTON_STEPS, _MOST_TERMS = 40, 20_000
_TERMS_AT_ONCE = 32


class Limits(NamedTuple):
    """Lower and upper confidence limits, of the same shape."""

    low: Tensor
    high: Tensor


def clopper_pearson(hits: Tensor, trials: Tensor, *, error: float) -> Limits:
    """Exact confidence limits `[...]` of proportions, each of which errs with probability `error` at most.

    The lower limit is the p for which `hits` or more have the probability `error`.

    Reference: C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial", Biometrika 1934.

    >>> low, high = clopper_pearson(torch.tensor([0.0, 9.0]), torch.tensor([10.0, 10.0]), error=0.025)
    >>> torch.stack([low, high]).round(decimals=4).tolist()
    [[0.0, 0.555], [0.3085, 0.9975]]
    """
    return Limits(_lower(hits, trials, error), 1 - _lower(trials - hits, trials, error))


def _lower(hits: Tensor, trials: Tensor, error: float) -> Tensor:
    """By Newton's method: the logarithm of the tail is concave in p, so that iterates rise to the root from below."""
    n, a = trials.double(), hits.double().clamp(min=1)
    b = n - a + 1
    # At this p the tail is at most `error`: n! / (a! (n-a)!) p^a bounds it.
    choose = torch.lgamma(n + 1) - torch.lgamma(a + 1) - torch.lgamma(n - a + 1)
    p = torch.exp((math.log(error) - choose) / a)
    for _ in range(_NEWTON_STEPS):
        tail = _log_beta_tail(p, a, b)
        density = (a - 1) * p.log() + (b - 1) * torch.log1p(-p) - _log_beta(a, b)
        step = (math.log(error) - tail) * torch.exp(tail - density)
        p = p + step.clamp(min=0)
        if bool((step <= 1e-13 * p).all()):
            break
    return torch.where(hits > 0, p, 0.0)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def _log_beta_tail(p: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Log of the regularised incomplete beta function for p below its mean: P(X >= a) of a + b - 1 trials.

    The sum of the binomial terms as a series, each of which is the one before times p / (1 - p) (b - i) / (a + i).
    """
    odds = p / (1 - p)
    first = (a * p.log()) + (b - 1) * torch.log1p(-p) - _log_beta(a, b) - a.log()
    total, term = torch.ones_like(p), torch.ones_like(p)
    for start in range(1, _MOST_TERMS, _TERMS_AT_ONCE):
        index = torch.arange(start, start + _TERMS_AT_ONCE, dtype=p.dtype, device=p.device)
        ratios = odds[..., None] * ((b[..., None] - index) / (a[..., None] + index)).clamp(min=0)
        terms = term[..., None] * ratios.cumprod(-1)
        total, term = total + terms.sum(-1), terms[..., -1]
        if bool((term <= 1e-15 * total).all()):
            break
    return first + total.log()
