"""Intervals of the difference of two models on the same samples, from sums over the samples.

What both models find hard cancels in the difference of each sample; only samples on which they differ count. Where
these are few, `value +- 1.96 standard errors` is far too narrow: models that agree on all of 2,000 samples would agree
on all others.
"""

import math

import torch
from torch import Tensor

from counterpoise.functional.intervals import (
    DEFAULT_LEVEL,
    Interval,
    mean_interval,
    normal_quantile,
    proportion_interval,
)

HIGHEST_POWER = 4


def paired_accuracy_interval(gained: float, lost: float, count: float, *, level: float = DEFAULT_LEVEL) -> Interval:
    """Interval of the second model's accuracy minus the first's: Newcombe's square-and-add of two proportions.

    Of n samples, b (`gained`) are right in the second model alone and c (`lost`) in the first alone. With the limits
    [l, u] of p = b / n and [l', u'] of p' = c / n (`proportion_interval`), and the correlation r of the two counts:

        low  = p - p' - sqrt((p - l)^2 - 2 r (p - l) (u' - p') + (u' - p')^2)
        high = p - p' + sqrt((u - p)^2 - 2 r (u - p) (p' - l') + (p' - l')^2)

    It excludes 0 only where McNemar's mid-p value is below 1 - level. By enumeration at n = 2,000 it covers at least
    95.0% whatever the two rates are (at n = 20, 93.5%); Tango's score interval covers 93.1%, and excludes 0 at 4
    against 0, where the exact McNemar test has p = 0.125; Wald's covers 2% where a discordant sample is rare.

    References: R. G. Newcombe, "Improved confidence intervals for the difference between binomial proportions based on
    paired data", Stat. Med. 17 (1998); G. Y. Zou and A. Donner, "Construction of confidence limits about effect
    measures", Stat. Med. 27 (2008).

    >>> low, high = paired_accuracy_interval(4, 0, 2000)
    >>> round(low, 5), round(high, 5)
    (-0.00041, 0.00513)
    """
    second, first = (proportion_interval(part, count, level=level) for part in (gained, lost))
    p, q = gained / count, lost / count
    spread = math.sqrt(p * (1 - p) * q * (1 - q))
    correlation = -p * q / spread if spread > 0 else 0.0

    def distance(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one**2 - 2 * correlation * one * other + other**2))

    return Interval(
        max(-1.0, p - q - distance(p - second.low, first.high - q)),
        min(1.0, p - q + distance(second.high - p, q - first.low)),
    )


def bounded_interval(value: float, interval: Interval, *, bound: float) -> Interval:
    """The limits of a difference within -bound and bound, from those of an interval that knows no bounds.

    As of Wilson's interval, the standard error is taken at the limit and not at the value: that of a mean of numbers
    -bound and bound falls with `sqrt(bound^2 - x^2)`. A limit at the distance h from the value d becomes the solution x
    of `(x - d)^2 = h^2 (bound^2 - x^2) / (bound^2 - d^2)` on its side of d. Short intervals hardly change.

    >>> low, high = bounded_interval(0.3, Interval(-1.18, 1.78), bound=1.0)
    >>> round(low, 2), round(high, 2)
    (-0.74, 0.92)
    """
    if math.isinf(bound):
        return interval
    d = value / bound
    spread = 1 - d**2
    if spread <= 0:  # nothing lies beyond it
        return Interval(max(-bound, interval.low), min(bound, interval.high))

    def limit(distance: float) -> float:
        ratio = (distance / bound) ** 2 / spread
        return bound * (d + math.copysign(math.sqrt(ratio * (ratio + spread)), distance)) / (1 + ratio)

    return Interval(limit(interval.low - value), limit(interval.high - value))


def power_sums(values: Tensor) -> Tensor:
    """Sums of the powers 0 to 4 of values `[n]`, `[5]` in float64: what `paired_mean_interval` needs. They add up.

    >>> power_sums(torch.tensor([1.0, -2.0]))
    tensor([ 2., -1.,  5., -7., 17.], dtype=torch.float64)
    """
    powers = torch.arange(HIGHEST_POWER + 1, device=values.device).unsqueeze(-1)
    return (values.double() ** powers).sum(-1)


def paired_mean_interval(sums: Tensor, *, level: float = DEFAULT_LEVEL) -> Interval:
    """Interval of the mean m of paired differences d (of NLL, Brier score, confidence minus hit), from `power_sums`.

    `m -+ z sqrt(v / n (1 + z^2 k / n))` with the variance v and the kurtosis k of d. The size of the differences that
    make up most of v is sqrt(k v), so this is the normal interval of the n samples and z^2 more, half of them so much
    above m and half below: what Agresti and Coull add to a proportion, and Bonett and Price to a paired one. With many
    differences k / n vanishes. Skewed differences have the limits of `mean_interval` where these lie further out.
    Without any difference the interval has no width, since their size is not known. An infinite difference, as of an
    infinite NLL, leaves no variance to estimate: NaN.

    Reference: D. G. Bonett and R. M. Price, "Adjusted Wald confidence interval for a difference of binomial proportions
    based on paired data", J. Educ. Behav. Stat. 37 (2012).

    >>> low, high = paired_mean_interval(power_sums(torch.tensor([1.0] * 3 + [-1.0] * 2 + [0.0] * 995)))
    >>> round(low, 5), round(high, 5)
    (-0.00483, 0.00683)
    """
    count, *totals = sums.tolist()
    if count < 2 or not all(map(math.isfinite, totals)):
        return Interval(math.nan, math.nan)
    mean, second, third, fourth = (total / count for total in totals)
    variance = max(0.0, second - mean**2)
    if variance == 0:
        return Interval(mean, mean)
    central_fourth = fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4
    # Of any n values it lies between 1 and n; where they hardly differ, the moment is rounding.
    kurtosis = min(count, max(1.0, central_fourth / variance**2))
    z = normal_quantile(level)
    half = z * math.sqrt(variance / (count - 1) * (1 + z**2 * kurtosis / count))
    skewed = mean_interval(totals[0], totals[1], totals[2], count, level=level)
    return Interval(min(mean - half, skewed.low), max(mean + half, skewed.high))


def jackknife_interval(value: float, left_out: Tensor, *, room: float = 0.0, level: float = DEFAULT_LEVEL) -> Interval:
    """`value -+ t s`, where s is the standard error by the delete-a-group jackknife; NaN where that is.

    Args:
        value: difference of all samples.
        left_out: differences with each group of samples left out, `[G]`.
        room: at least so much on either side. The jackknife sees only differences that some sample shows. A rate of n
            samples, such as a false positive rate, moves in steps of 1 / n, and below one step it sees nothing.
        level: nominal coverage.
    """
    half = max(jackknife_quantile(level, groups=len(left_out)) * jackknife_error(left_out), room)  # NaN stays
    return Interval(value - half, value + half)


def jackknife_error(left_out: Tensor) -> float:
    """`sqrt((G - 1) / G sum_g (v_g - mean v)^2)` of the values `[G]` with each group left out; NaN where one is.

    >>> jackknife_error(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    1.1547005383792515
    """
    groups = len(left_out)
    return float(((left_out - left_out.mean()) ** 2).sum().mul((groups - 1) / groups).sqrt())


def jackknife_quantile(level: float, *, groups: int) -> float:
    """Central quantile of Student's t with `groups - 1` degrees of freedom, by its expansion around the normal one.

    >>> round(jackknife_quantile(0.95, groups=100), 3)
    1.984
    """
    z, degrees = normal_quantile(level), groups - 1
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
