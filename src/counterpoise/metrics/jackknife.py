"""Every metric with a group of samples left out: what models are compared by, and intervals of dependent samples.

Samples are dealt at random into groups, by their ids. Samples of one id are in one group, so that it does not matter
how they depend on each other: how a metric changes as each group is left out gives its standard error (the
delete-a-group jackknife).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

from torch import Tensor

from counterpoise.functional.calibration import BinSums, noise_floor
from counterpoise.functional.detection import DEFAULT_TPR, RankCounts, interpolated_fpr_at_tpr
from counterpoise.functional.intervals import Interval, none_seen
from counterpoise.functional.paired import bounded_interval, jackknife_interval
from counterpoise.metrics.estimates import KEY_INFO, UNDEFINED, Estimate, Key
from counterpoise.metrics.options import JACKKNIFE_GROUPS
from counterpoise.metrics.protocol import Contrast, Estimates, Metric, Sums, contrasts_of
from counterpoise.metrics.ranking import RANKING_METRICS, RATE_STEPS, SELECTIVE_METRICS
from counterpoise.metrics.ranks import Ranks
from counterpoise.metrics.scores import Scores

Grouped = Iterable[tuple[Metric, Sums]]
"""Metrics with their sums `[G, ...]` by jackknife group."""

_RANKING_METRICS: dict[Key, Callable[[RankCounts], Tensor]] = RANKING_METRICS | {
    Key.FPR_AT_TPR95: interpolated_fpr_at_tpr,
    Key.DETECTION_ERROR_AT_TPR95: lambda counts: 0.5 * (1 - DEFAULT_TPR + interpolated_fpr_at_tpr(counts)),
}
"""As they are taken where a group is left out: a threshold that jumped from cell to cell would hide how it moves."""

_UPPER_LIMITS: dict[str, float] = {Key.NLL: math.inf, Key.BRIER: 2.0}
_BIN_SUMS = {field.name for field in fields(BinSums)}


@dataclass(frozen=True)
class LeftOut:
    """A metric with each jackknife group left out.

    Attributes:
        values: `[G]`.
        whole: of all samples, where its plug-in value is biased.
        step: how far one sample moves it, where that is known; below it the jackknife sees nothing.
        floor: of all samples, where they are dependent and the metric has one.
    """

    values: Tensor
    whole: Contrast | None = None
    step: float = 0.0
    floor: float | None = None

    def minus(self, other: "LeftOut", estimates: tuple[Estimate, Estimate], *, bound: float, level: float) -> Estimate:
        """The difference of two models, with its interval within -bound and bound.

        Calibration errors are biased: the interval is around their debiased values, widened by what may be left.
        """
        value = estimates[0].value - estimates[1].value
        left_out = self.values.double() - other.values.double()
        if self.whole is None or other.whole is None:
            room = max(self.step, other.step)
            interval = jackknife_interval(value, left_out, room=room, level=level)
            return Estimate.of(value, bounded_interval(value, interval, bound=bound))
        centre = float(self.whole.value - other.whole.value)
        low, high = jackknife_interval(centre, left_out, level=level)
        interval = Interval(low - float(other.whole.bias), high + float(self.whole.bias))
        return Estimate.of(value, bounded_interval(centre, interval, bound=bound))

    def interval(self, value: float, *, room: float, level: float) -> Interval:
        if self.whole is None:
            return jackknife_interval(value, self.values.double(), room=max(room, self.step), level=level)
        low, high = jackknife_interval(float(self.whole.value), self.values.double(), room=room, level=level)
        return Interval(low, high + float(self.whole.bias))


def largest_value(key: str) -> float:
    """What a metric cannot exceed, and a difference of two models neither; infinite of one from outside."""
    return _UPPER_LIMITS.get(key, 1.0) if key in KEY_INFO else math.inf


def left_out(grouped: Grouped, ranks: Ranks, *, clustered: bool = False) -> dict[str, LeftOut]:
    """Every metric that models are compared by."""
    found: dict[str, LeftOut] = {}
    for metric, sums in grouped:
        floor = None
        if clustered and set(sums) == _BIN_SUMS:
            sums, floor = _effective(sums)
        total = {name: value.sum(0, keepdim=True) for name, value in sums.items()}
        whole = contrasts_of(metric, total)
        for key, contrast in contrasts_of(metric, _without_each(sums)).items():
            own = Contrast(whole[key].value.squeeze(0), whole[key].bias.squeeze(0))
            found[key] = LeftOut(contrast.value, own, floor=floor)
    return found | _left_out_ranks(ranks.misclassification_by_group(JACKKNIFE_GROUPS))


def left_out_ood(ranks: Ranks, name: str) -> dict[str, LeftOut]:
    """The same of the detection of an OOD set."""
    found = _left_out_ranks(ranks.detection_by_group(name, JACKKNIFE_GROUPS))
    return {key: value for key, value in found.items() if key not in SELECTIVE_METRICS}


def with_intervals_of_ids(scores: Scores, grouped: Grouped, ranks: Ranks) -> Scores:
    """Scores with intervals that hold though samples of one id are dependent; what has no such interval has none."""
    found = left_out(grouped, ranks, clustered=True)

    def widened(estimates: Estimates) -> Estimates:
        return {key: _with_interval(key, estimate) for key, estimate in estimates.items()}

    def _with_interval(key: str, estimate: Estimate) -> Estimate:
        own = found.get(Key.ECE if key == Key.DEBIASED_ECE else key)
        if own is None or math.isnan(estimate.value):
            return replace(estimate, low=UNDEFINED.low, high=UNDEFINED.high, floor=None)
        low, high = own.interval(estimate.value, room=none_seen(scores.samples, level=scores.level), level=scores.level)
        if key in (Key.NLL, Key.BRIER):  # few errors leave more open than groups of ids show
            high = max(high, estimate.high)
        if key in KEY_INFO and key != Key.MEAN_GAP:
            low, high = max(0.0, low), min(largest_value(key), high)
        floor = None if estimate.floor is None else own.floor
        return replace(estimate, low=low, high=high, floor=floor)

    ranking = scores.misclassification
    return replace(
        scores,
        estimates=widened(scores.estimates),
        misclassification=replace(ranking, estimates=widened(ranking.estimates)),
    )


def _effective(sums: Sums) -> tuple[Sums, float]:
    """Bin sums of as many independent samples as would be as noisy, and their noise floor.

    The residuals of a bin vary between groups of ids as they do, whether they are dependent or not; this over what
    independent ones would give is the design effect (L. Kish, "Survey Sampling", 1965), here of all bins together.
    """
    bins = BinSums(**sums)
    residual, whole = bins.hits - bins.confidence, bins.map(lambda each: each.sum(0))
    between = ((residual - residual.mean(0)) ** 2).sum() * len(residual) / (len(residual) - 1)
    independent = (whole.squared_residual - residual.sum(0) ** 2 / whole.samples.unsqueeze(-1)).sum()
    effect = max(1.0, float(between / independent)) if independent > 0 else 1.0
    floor = float(noise_floor(whole.map(lambda each: each / effect)).mean())
    return {name: value / effect for name, value in sums.items()}, floor


def _left_out_ranks(counts: RankCounts) -> dict[str, LeftOut]:
    """Every ranking metric, from counts `[G, ...]` of each group."""
    without = RankCounts(*(side.sum(0, keepdim=True) - side for side in counts))
    negatives = max(1, int(counts.negative.sum()))
    return {
        str(key): LeftOut(metric(without), step=RATE_STEPS.get(key, 0.0) / negatives)
        for key, metric in _RANKING_METRICS.items()
    }


def _without_each(sums: Sums) -> Sums:
    return {name: value.sum(0, keepdim=True) - value for name, value in sums.items()}
