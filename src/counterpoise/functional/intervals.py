"""Confidence intervals, each with the method that fits its metric.

`level` is the nominal coverage. Accuracy: Wilson. Means (NLL, Brier score): normal and Hall. Mean gap: normal and
Wilson. Calibration errors: `calibration_error_interval`, whose estimand is the population value of the binned error.
AUROC: DeLong. Other ranking metrics: bootstrap. Differences of two models on the same samples: `functional.paired`.
"""

import math
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterpoise._choices import DEFAULT_LEVEL as DEFAULT_LEVEL
from counterpoise.functional.calibration import (
    BinSums,
    brier_calibration,
    error_terms,
    gap_deviation,
)
from counterpoise.functional.detection import LARGEST_DETECTION_ERROR, RankCounts, auroc, merged_groups, rates
from counterpoise.functional.proportions import clopper_pearson

BOOTSTRAP_RESAMPLES = 1000
BOOTSTRAP_GROUPS = 1024
"""A bootstrap merges neighbouring scores into at most this many groups; its point estimate does not."""
_FEW_FOR_WILSON = 100
"""Hits from which on Wilson's interval is good to half of its error again, on either side."""
_BLOCK = 100
"""Resamples that are measured at a time: so many stay in the processor's cache."""


class Interval(NamedTuple):
    """Lower and upper limit."""

    low: float
    high: float


def normal_quantile(level: float) -> float:
    """Z with a central normal probability of `level`: 1.96 for 0.95."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    return float(torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64, device="cpu")))


def wilson_interval(hits: float, count: float, *, level: float = DEFAULT_LEVEL) -> Interval:
    """Wilson's score interval of a proportion.

    >>> low, high = wilson_interval(9, 10)
    >>> round(low, 4), round(high, 4)
    (0.5958, 0.9821)
    """
    z2 = normal_quantile(level) ** 2
    centre = (hits + z2 / 2) / (count + z2)
    half = math.sqrt(z2 * (hits * (count - hits) / count + z2 / 4)) / (count + z2)
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def proportion_interval(hits: float, count: float, *, level: float = DEFAULT_LEVEL) -> Interval:
    """Wilson's interval, and with few hits or few others the exact one too, whichever limit lies further out.

    With few, one side of Wilson's errs more often than it says; both sides together do not.

    >>> low, high = proportion_interval(10, 10)
    >>> round(low, 4), round(high, 4)
    (0.6915, 1.0)
    """
    low, high = wilson_interval(hits, count, level=level)
    if min(hits, count - hits) > _FEW_FOR_WILSON:
        return Interval(low, high)
    exact = clopper_pearson(*torch.tensor([hits, count], dtype=torch.float64, device="cpu"), error=(1 - level) / 2)
    return Interval(min(low, float(exact.low)), max(high, float(exact.high)))


def mean_interval(
    total: float, total_of_squares: float, total_of_cubes: float, count: float, *, level: float = DEFAULT_LEVEL
) -> Interval:
    """Interval of a mean m, from the sums of x, x^2 and x^3: the normal one and Hall's for skewed values, together.

    The normal limits are `m -+ z s` with the standard error s. Where few values are large, as the NLL of a model with
    few errors, a sample that holds too few of them has too low a mean and too small a spread, both at once. Hall's
    transformation corrects for the skewness g of the mean: `m - s T(z)` and `m - s T(-z)` with
    `T(x) = 3 / g (cbrt(1 + g (x - g / 6)) - 1)`. Of each kind the outer limit is taken; without skewness they agree.
    One value has no variance: NaN.

    Reference: P. Hall, "On the removal of skewness by transformation", J. R. Stat. Soc. B 54 (1992).

    >>> low, high = mean_interval(12.0, 12.0, 12.0, 1000)  # twelve values of 1, the others 0
    >>> round(low, 4), round(high, 4)
    (0.0052, 0.0209)
    """
    if count < 2:
        return Interval(math.nan, math.nan)
    z, mean = normal_quantile(level), total / count
    variance = max(0.0, total_of_squares / count - mean**2)
    if variance == 0:
        return Interval(mean, mean)
    error = math.sqrt(variance / (count - 1))
    third_moment = total_of_cubes / count - 3 * mean * total_of_squares / count + 2 * mean**3
    # Of any n values it lies within -1 and 1; where they hardly differ, the moment is rounding.
    skewness = min(1.0, max(-1.0, third_moment / variance**1.5 / math.sqrt(count)))
    below, above = max(z, _hall_quantile(z, skewness)), max(z, -_hall_quantile(-z, skewness))
    return Interval(mean - error * below, mean + error * above)


def _hall_quantile(z: float, skewness: float) -> float:
    if abs(skewness) < 1e-6:  # its limit; the quotient would be rounding
        return z
    return 3 / skewness * (math.cbrt(1 + skewness * (z - skewness / 6)) - 1)


def calibration_error_interval(sums: BinSums, *, level: float = DEFAULT_LEVEL) -> Interval:
    """Interval of the population value of a binned calibration error, from `[B]` sums, or classwise from `[K, B]`.

    A plug-in error is a sum of absolute values of noisy gaps d_b (deviation s_b): too large by up to 0.8 s_b a bin, so
    value +- 1.96 standard errors misses the truth. This interval is built around the sign cross-fit estimate T of
    `debiased_calibration_error` (before its cut at 0):

    - low = T - z se: T is never biased upwards;
    - high = T + sum_b 2 a_b Phi(-a_b / sqrt(2) / s_b) + z se: the sum bounds the downward bias, taken at
      a_b = max(abs(d_b), 1.05 s_b), from where on it falls with the size of the gap;
    - se comes from the variance of the estimator's terms (a function of gap over deviation, see `_term_variance`) and
      their multinomial covariance. In the upper limit it is at least what no error in N samples leaves open, so that
      a model without a single error does not get an interval of width 0. With few errors it is also at least what
      `mean_gap_interval` leaves open: the error cannot be below the mean gap.

    Over classes the gaps of one sample are dependent; twice the sum of the classes' variances bounds theirs. A few
    errors are spread so thinly over classes and bins that each gap by itself looks like noise. Their sums do not: the
    upper limit is at least that of the error of all classes pooled, and of the error with each class in one bin, which
    the classwise error cannot be below either (`_coarse_limit`).

    Both limits are cut to [0, 1]. Coverage by simulation: `python -m benchmarks.coverage`.
    """
    z = normal_quantile(level)
    classes = sums.count.shape[0] if sums.count.ndim == 2 else 1
    terms = error_terms(sums)
    dependence = math.sqrt(2) if classes > 1 else 1.0
    low = float(terms.estimate.sum()) - z * dependence * math.sqrt(float(terms.variance_near_zero.sum().clamp(min=0)))
    half = z * dependence * math.sqrt(float(terms.variance.sum().clamp(min=0)))
    high = float((terms.estimate + terms.bias).sum()) + max(half, none_seen(_samples(sums), level=level))
    high = max(high, float(_largest_gap(sums, level=level)) if classes == 1 else _coarse_limit(sums, level=level))
    return Interval(min(1.0, max(0.0, low / classes)), min(1.0, max(0.0, high / classes)))


def calibration_error_interval_by_class(sums: BinSums, *, level: float = DEFAULT_LEVEL) -> tuple[Tensor, Tensor]:
    """`calibration_error_interval` of each class by itself: limits `[K]` from `[K, B]` sums."""
    z = normal_quantile(level)
    terms = error_terms(sums)
    low = terms.estimate - z * terms.variance_near_zero.clamp(min=0).sqrt()
    half = (z * terms.variance.clamp(min=0).sqrt()).clamp(min=none_seen(_samples(sums), level=level))
    high = torch.maximum(terms.estimate + terms.bias + half, _largest_gap(sums, level=level))
    return low.clamp(0, 1), high.clamp(0, 1)


def mean_gap_interval(sums: BinSums, *, level: float = DEFAULT_LEVEL) -> Interval:
    """Interval of the mean confidence minus the accuracy: the normal one, and Wilson's of the error rate, together.

    The variance of a hit is that of `hit - p` in both, and at least that of a calibrated model. With many errors the
    two are one. With few, the normal upper limit is too low (without an error there is hardly any), and Wilson's lower
    limit too high.
    """
    low, high = _gap_limits(sums, level=level)
    return Interval(float(low), float(high))


def _gap_limits(sums: BinSums, *, level: float) -> tuple[Tensor, Tensor]:
    """`mean_gap_interval` of `[..., B]` sums, `[...]` each."""
    z2, samples = normal_quantile(level) ** 2, sums.samples
    gap, wrong = -sums.gap.sum(-1), 1 - sums.hits.sum(-1) / samples
    observed = sums.squared_residual.sum(-1) / samples - gap**2
    variance = torch.maximum(observed, sums.calibrated_variance.sum(-1) / samples)
    normal = (z2 * variance / samples).sqrt()
    centre = gap + z2 * (0.5 - wrong) / (samples + z2)
    half = (z2 * (variance * samples + z2 / 4)).sqrt() / (samples + z2)
    low, high = torch.minimum(gap - normal, centre - half), torch.maximum(gap + normal, centre + half)
    return low.clamp_min(-1), high.clamp_max(1)


def _largest_gap(sums: BinSums, *, level: float) -> Tensor:
    """Of `[..., B]` sums, the largest mean gap that few errors, or few hits, leave open; 0 where there are more."""
    low, high = _gap_limits(sums, level=level)
    hits = sums.hits.sum(-1)
    few = torch.minimum(hits, sums.samples - hits) < _FEW
    return torch.where(few, torch.maximum(-low, high), 0.0)


def _coarse_limit(sums: BinSums, *, level: float) -> float:
    """Upper limit of the sum over classes of their errors, from `[K, B]` sums, at two coarser resolutions.

    - All classes pooled: `L = sum_b abs(sum_k d_kb)`. An error is one sample too few in a bin of the predicted class
      and one too many in a bin of the label's, so it moves L by u = 2 / N. The limit is the score interval's for such
      a count, `L + u z^2 / 2 + z sqrt(V + (u z / 2)^2)`, with V twice the sum of the variances of all gaps.
    - Each class in one bin, as by `calibration_error_interval`.
    """
    z, unit = normal_quantile(level), 2 / _samples(sums)
    variance = 2 * float((gap_deviation(sums) ** 2).sum())
    pooled = float(sums.gap.sum(0).abs().sum()) + unit * z**2 / 2 + z * math.hypot(math.sqrt(variance), unit * z / 2)
    terms = error_terms(sums.map(lambda each: each.sum(-1, keepdim=True)))
    by_class = float((terms.estimate + terms.bias).sum()) + z * math.sqrt(2 * float(terms.variance.sum().clamp(min=0)))
    return max(pooled, by_class)


_FEW = 50
"""Errors whose number is still so skewed that a normal upper limit is too low."""


def none_seen(samples: float, *, level: float) -> float:
    """The error rate that no error in so many samples leaves open."""
    return -math.log((1 - level) / 2) / samples


def _samples(sums: BinSums) -> float:
    return float(sums.samples.reshape(-1)[0])


def maximum_error_interval(sums: BinSums, *, level: float = DEFAULT_LEVEL) -> Interval:
    """Interval of the maximum calibration error, from the accuracy interval of every occupied bin.

    Wilson intervals at a level shared among the bins (Bonferroni) bound each bin's gap; the maximum of the bounds
    bounds the maximum. That is conservative, except that confidences which are all within a thousandth or so of 1 may
    have a lower limit of some 1e-4 in 10% of cases where the true error is 0.
    """
    occupied = sums.count > 0
    count, hits = sums.count[occupied].tolist(), sums.hits[occupied].tolist()
    confidence = (sums.confidence[occupied] / sums.count[occupied]).tolist()
    shared = 1 - (1 - level) / len(count)
    low = high = 0.0
    for n, right, mean in zip(count, hits, confidence, strict=True):
        lower, upper = wilson_interval(right, n, level=shared)
        low = max(low, lower - mean, mean - upper)
        high = max(high, abs(lower - mean), abs(upper - mean))
    return Interval(low, min(1.0, high))


def brier_calibration_interval(sums: BinSums, *, level: float = DEFAULT_LEVEL) -> Interval:
    """Interval of `brier_calibration`: normal, around the value less its bias, from `[K, B]` sums.

    A squared normal gap has the mean d^2 + s^2 and the variance 4 d^2 s^2 + 2 s^4; as for classwise errors, twice the
    sum of the variances bounds that of dependent classes. The bias takes the unbiased variance of the residuals within
    each bin: with many classes most bins hold a few samples, and any other would add up to more than the value. The
    spread takes at least `gap_deviation`, because bins without a hit, or without an error, hardly vary.
    """
    samples, count = _samples(sums), sums.count.double()
    share = sums.share.clamp(min=1 / samples)
    within = (sums.squared_residual - (sums.hits - sums.confidence) ** 2 / count.clamp(min=1)).clamp(min=0)
    of_one = torch.where(count > 1, within / (count - 1).clamp(min=1), sums.calibrated_variance)
    unbiased = of_one * count / samples**2
    variance = torch.maximum(unbiased, gap_deviation(sums) ** 2)
    size = (sums.gap**2 - variance).clamp(min=0)
    centre = float(brier_calibration(sums) - (unbiased / share).sum())
    spread = float((2 * (4 * size * variance + 2 * variance**2) / share**2).sum())
    half = normal_quantile(level) * math.sqrt(spread)
    return Interval(max(0.0, centre - half), max(0.0, centre + half))


def delong_interval(counts: RankCounts, *, level: float = DEFAULT_LEVEL) -> Interval:
    """DeLong's interval of AUROC A, on the logit scale: it stays inside [0, 1], and near nominal at 0.99.

    To the observed variance of each side is added one sample of the largest that there can be, A (1 - A): two or
    three samples may agree by chance, and one always agrees with itself.
    """
    positive, negative = counts.positive.double(), counts.negative.double()
    positives, negatives = positive.sum(), negative.sum()
    area = auroc(counts)
    # Share of the negatives below each positive group, and of the positives above each negative group.
    below = (negatives - negative.cumsum(-1) + 0.5 * negative) / negatives
    above = (positive.cumsum(-1) - 0.5 * positive) / positives
    largest = area * (1 - area)
    variance = ((positive * (below - area) ** 2).sum() + largest) / positives**2 + (
        (negative * (above - area) ** 2).sum() + largest
    ) / negatives**2
    value = float(area)
    if value in (0.0, 1.0):
        return _with_room(value, counts, level)
    half = normal_quantile(level) * math.sqrt(float(variance)) / (value * (1 - value))
    centre = math.log(value / (1 - value))
    limits = torch.tensor([centre - half, centre + half], dtype=torch.float64).sigmoid()
    return Interval(*limits.tolist())


def _with_room(value: float, counts: RankCounts, level: float) -> Interval:
    """Of a value in [0, 1] that no sample contradicts: as if the next of the smaller side contradicted it wholly."""
    room = none_seen(float(min(side.sum() for side in counts)), level=level)
    return Interval(max(0.0, value - room), min(1.0, value + room))


def bootstrap_intervals(
    counts: RankCounts,
    metrics: dict[str, Callable[[RankCounts], Tensor]],
    *,
    stratified: bool,
    minima: Collection[str] = (),
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
) -> dict[str, Interval]:
    """Percentile bootstrap intervals of ranking metrics, all from the same resamples.

    Resamples are of groups merged to `BOOTSTRAP_GROUPS`; what that changes in a metric is taken off again. Where all
    resamples agree, as they do on a few samples that are told apart without an error, the interval has the room that so
    few leave.

    Args:
        counts: the observed ranking.
        metrics: each takes `RankCounts` of shape `[R, G]`.
        stratified: positives and negatives are two samples of fixed size (OOD detection), or one sample of which the
            share of positives is itself random (misclassification detection).
        minima: names of metrics that are the minimum detection error. A minimum of noisy values is too low, and that
            of a resample lower still, so that percentiles miss the truth. Theirs is `value +- z sd` of the resamples,
            the upper limit raised by the bias that the resamples show, and by no less than Wilson's intervals of the
            two rates leave open, which with few errors is more.
        level: nominal coverage.
        seed: of the resamples, so that the same predictions always give the same interval.
    """
    merged = _merge_groups(counts)
    groups = len(merged.positive)
    generator = np.random.default_rng(seed)
    sides = [side.numpy() for side in (merged if stratified else [torch.cat(list(merged))])]
    drawn = torch.from_numpy(
        np.concatenate(
            [generator.multinomial(side.sum(), side / side.sum(), size=BOOTSTRAP_RESAMPLES) for side in sides], axis=-1
        )
    )
    blocks = [RankCounts(block[:, :groups], block[:, groups:]) for block in torch.split(drawn, _BLOCK)]
    by_block = [{name: metric(block).double() for name, metric in metrics.items()} for block in blocks]
    z, tail = normal_quantile(level), (1 - level) / 2
    quantiles = torch.tensor([tail, 1 - tail], dtype=torch.float64, device="cpu")
    intervals = {}
    for name, metric in metrics.items():
        value, coarse = float(metric(counts)), float(metric(merged))
        values = torch.cat([found[name] for found in by_block]) + (value - coarse)
        values = values[torch.isfinite(values)]
        if len(values) < 2:
            intervals[name] = Interval(math.nan, math.nan)
        elif name in minima:
            bias, half = min(0.0, float(values.mean()) - value), z * float(values.std())
            around = Interval(max(0.0, value - half), value - bias + max(half, _rates_above(counts, level)))
            low, high = around if half > 0 else _with_room(value, counts, level)
            intervals[name] = Interval(low, min(LARGEST_DETECTION_ERROR, high))
        else:
            low, high = torch.quantile(values, quantiles).clamp(0, 1).tolist()
            intervals[name] = Interval(low, high) if low < high else _with_room(low, counts, level)
    return intervals


def _rates_above(counts: RankCounts, level: float) -> float:
    """How far above the minimum detection error Wilson's intervals of its two rates reach, at its threshold."""
    true_rate, false_rate = rates(counts)
    best = int((false_rate - true_rate).argmin())
    positives, negatives = (float(side.sum()) for side in counts)
    missed, false = float(1 - true_rate[best]), float(false_rate[best])
    above_missed = wilson_interval(missed * positives, positives, level=level).high - missed
    above_false = wilson_interval(false * negatives, negatives, level=level).high - false
    return 0.5 * math.hypot(above_missed, above_false)


def _merge_groups(counts: RankCounts) -> RankCounts:
    """Neighbouring groups merged until at most `BOOTSTRAP_GROUPS` are left."""
    size = counts.positive + counts.negative
    positive, negative = (side[size > 0].cpu() for side in counts)
    if len(positive) <= BOOTSTRAP_GROUPS:
        return RankCounts(positive, negative)
    index = merged_groups(RankCounts(positive, negative), BOOTSTRAP_GROUPS)
    zero = positive.new_zeros(BOOTSTRAP_GROUPS)
    return RankCounts(zero.index_add(0, index, positive), zero.index_add(0, index, negative))
