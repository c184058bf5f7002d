"""Estimates of what depends on the order of confidences, from exact groups or from the cells of a histogram."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from counterpoise.functional import detection
from counterpoise.functional.calibration import BinSums, expected_calibration_error, noise_floor
from counterpoise.functional.detection import RankCounts
from counterpoise.functional.histogram import coarsen_to_equal_mass
from counterpoise.functional.intervals import (
    Interval,
    bootstrap_intervals,
    calibration_error_interval,
    delong_interval,
    none_seen,
    normal_quantile,
)
from counterpoise.functional.smooth import cosine_moments, smooth_calibration_error, smooth_noise_floor
from counterpoise.metrics.estimates import UNDEFINED, Estimate, Key
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.protocol import Estimates

RANKING_METRICS: dict[Key, Callable[[RankCounts], Tensor]] = {
    Key.AUROC: detection.auroc,
    Key.AUPR_POSITIVE: detection.average_precision,
    Key.AUPR_NEGATIVE: detection.average_precision_of_negatives,
    Key.FPR_AT_TPR95: detection.fpr_at_tpr,
    Key.MINIMUM_DETECTION_ERROR: detection.minimum_detection_error,
    Key.DETECTION_ERROR_AT_TPR95: detection.detection_error_at_tpr,
    Key.AURC: detection.aurc,
    Key.EXCESS_AURC: detection.excess_aurc,
}
RANKING_RANGES: dict[Key, Callable[[RankCounts], detection.Range]] = {
    key: partial(detection.range_within_groups, metric) for key, metric in RANKING_METRICS.items()
} | {
    Key.AUPR_POSITIVE: detection.average_precision_range,
    Key.AUPR_NEGATIVE: detection.average_precision_of_negatives_range,
    Key.DETECTION_ERROR_AT_TPR95: detection.detection_error_at_tpr_range,
}
"""Between what each metric lies if the order inside a group of scores is not known."""

SELECTIVE_METRICS = (Key.AURC, Key.EXCESS_AURC)
"""Metrics of selective prediction: they have a meaning where negative means wrong, not where it means OOD."""

RATE_STEPS = {Key.FPR_AT_TPR95: 1.0, Key.MINIMUM_DETECTION_ERROR: 0.5, Key.DETECTION_ERROR_AT_TPR95: 0.5}
"""Metrics of rates: how far one negative moves them, times the number of negatives."""

CALIBRATION_BY_RANK = (Key.EQUAL_MASS_ECE, Key.SMOOTH_ECE)


def ranking_estimates(
    counts: RankCounts, *, stratified: bool, level: float, exact: bool, independent: bool = True
) -> Estimates:
    """All ranking metrics with intervals; NaN where there are no positives or no negatives.

    Args:
        counts: positives and negatives by descending score.
        stratified: in-distribution against OOD samples, or right against wrong ones of one sample.
        level: nominal coverage.
        exact: groups are distinct scores, not cells of a histogram; otherwise each metric states its error bound.
        independent: whether samples are; if not, the intervals are left to others.
    """
    metrics = {key: m for key, m in RANKING_METRICS.items() if not (stratified and key in SELECTIVE_METRICS)}
    if int(counts.positive.sum()) == 0 or int(counts.negative.sum()) == 0:
        return {key: Estimate.of(math.nan, UNDEFINED) for key in metrics}
    occupied = (counts.positive + counts.negative) > 0
    counts = RankCounts(counts.positive[occupied].cpu(), counts.negative[occupied].cpu())
    intervals: dict[str, Interval] = {}
    if independent:
        resampled: dict[str, Callable[[RankCounts], Tensor]] = {k: m for k, m in metrics.items() if k != Key.AUROC}
        minima = [Key.MINIMUM_DETECTION_ERROR]
        intervals = bootstrap_intervals(counts, resampled, stratified=stratified, minima=minima, level=level)
        intervals[Key.AUROC] = delong_interval(counts, level=level)
    estimates: Estimates = {}
    for key, metric in metrics.items():
        value = float(metric(counts))
        bound = None if exact else max(abs(float(limit) - value) for limit in RANKING_RANGES[key](counts))
        estimates[key] = Estimate.of(value, intervals.get(key, UNDEFINED), error_bound=bound)
    return estimates


def rank_counts_of_cells(cells: BinSums) -> RankCounts:
    """Right and wrong predictions by descending confidence, from cells of ascending confidence."""
    return RankCounts(cells.hits.flip(0), (cells.count - cells.hits).flip(0))


def calibration_by_rank(cells: BinSums, *, options: ScoreOptions, exact: bool) -> Estimates:
    """Equal-mass and smooth ECE from cells of ascending confidence."""
    sums, bound = coarsen_to_equal_mass(cells, bins=options.bins)
    equal_mass = Estimate.of(
        float(expected_calibration_error(sums)),
        calibration_error_interval(sums, level=options.level),
        floor=float(noise_floor(sums)),
        error_bound=None if exact else float(bound),
    )
    return {Key.EQUAL_MASS_ECE: equal_mass, Key.SMOOTH_ECE: _smooth_estimate(cells, level=options.level, exact=exact)}


def _smooth_estimate(cells: BinSums, *, level: float, exact: bool) -> Estimate:
    """Smooth ECE from cells, each taken at its mean confidence.

    The interval is conservative: the value is biased upwards by at most its noise floor, so the lower limit has the
    whole floor subtracted and the upper limit nothing. Cells of one confidence each are exact; otherwise a sample that
    lies w away from its cell's mean moves the smoothed curve by at most `w sqrt(2/pi) / bandwidth` of its residual.
    """
    occupied = cells.count > 0
    count, confidence = cells.count[occupied], cells.confidence[occupied]
    position = (confidence / count).clamp(0, 1)
    samples = float(count.sum())
    weights = torch.stack([cells.hits[occupied] - confidence, cells.calibrated_variance[occupied]])
    residuals, variances = cosine_moments(position, weights)
    value, bandwidth = (float(part) for part in smooth_calibration_error(residuals, samples))
    floor = float(smooth_noise_floor(variances, samples, bandwidth))
    squares, calibrated = float(cells.squared_residual.sum()), float(cells.calibrated_variance.sum())
    variance = max(squares / samples - value**2, calibrated / samples)
    half = max(normal_quantile(level) * math.sqrt(variance / samples), none_seen(samples, level=level))
    bound = None if exact else math.sqrt(2 / math.pi) / bandwidth * float(_displacement(cells, position)) / samples
    interval = Interval(max(0.0, value - floor - half), min(1.0, value + half))
    return Estimate.of(value, interval, floor=floor, error_bound=bound)


def _displacement(cells: BinSums, position: Tensor) -> Tensor:
    """Sum over samples of abs(residual) times distance from the cell's mean confidence, bounded by Cauchy-Schwarz."""
    occupied = cells.count > 0
    count = cells.count[occupied]
    spread = (cells.confidence_squared[occupied] - count * position**2).clamp(min=0)
    # Rounding of the difference is of the order of 1e-16 of the sums; a single sample has no spread.
    spread = torch.where(count > 1, spread, 0.0)
    return (spread * cells.squared_residual[occupied]).sqrt().sum()
