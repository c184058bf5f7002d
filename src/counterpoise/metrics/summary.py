"""From the sums of all samples to `Scores`."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from counterpoise.functional.calibration import BinSums, expected_calibration_error, noise_floor
from counterpoise.functional.detection import balanced_mass, rates, risk_coverage
from counterpoise.functional.intervals import calibration_error_interval_by_class
from counterpoise.functional.proportions import clopper_pearson
from counterpoise.metrics.batch import ONLY_CONFIDENCE
from counterpoise.metrics.columns import GroupKey
from counterpoise.metrics.estimates import UNDEFINED, Estimate, Key
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.protocol import Estimates, Metric, Sums, is_measurable
from counterpoise.metrics.ranking import calibration_by_rank, ranking_estimates
from counterpoise.metrics.ranks import Ranking, Ranks
from counterpoise.metrics.scores import (
    CURVE_POINTS,
    NO_CLASSES,
    BinTable,
    ClassTable,
    GroupScores,
    RankingScores,
    Scores,
)
from counterpoise.metrics.slices import simultaneous_level
from counterpoise.metrics.standard import (
    ClasswiseCalibration,
    Performance,
    StandardMetrics,
    bin_sums_of,
    brier_refinement,
    group_metrics,
    sums_of_standard,
)

_OWN_COLUMNS = ("domain", "corruption", "severity")


def scores_of(
    *,
    classes: int,
    options: ScoreOptions,
    metrics: Sequence[Metric],
    sums: Sequence[Sums],
    standard: StandardMetrics[Metric],
    ranks: Ranks,
) -> Scores:
    """The scores of some labelled samples, and of OOD samples beside them.

    Args:
        classes: K; 1 where only the confidence of the predicted class is known.
        options: what is computed.
        metrics: the standard ones that there are, then the others.
        sums: of each metric.
        standard: the standard ones.
        ranks: of the samples.
    """
    cells = ranks.confidence_cells()
    estimates = calibration_by_rank(cells, options=options, exact=ranks.exact)
    for metric, own in zip(metrics, sums, strict=True):
        estimates |= metric.compute(own, level=options.level)
    if Key.BRIER in estimates:
        estimates[Key.BRIER_REFINEMENT] = brier_refinement(estimates[Key.BRIER], estimates[Key.BRIER_CALIBRATION])
    own_sums = sums_of_standard(standard, sums)
    return Scores(
        samples=ranks.samples,
        classes=classes,
        bins=options.bins,
        level=options.level,
        estimates=in_order(estimates),
        top_label=bin_table(bin_sums_of(own_sums.top_label)),
        by_class=NO_CLASSES
        if own_sums.classwise is None
        else _class_table(bin_sums_of(own_sums.classwise), level=options.level),
        positive=None if own_sums.positive is None else bin_table(bin_sums_of(own_sums.positive)),
        misclassification=_ranking_scores(ranks.misclassification(), ranks, options, stratified=False),
        ood={
            name: _ranking_scores(ranks.detection(name), ranks, options, stratified=True) for name in ranks.ood_samples
        },
        info={key: info for metric in options.metrics for key, info in metric.info.items()},
        missing=_missing(estimates, classes=classes, options=options),
    )


def _missing(estimates: Estimates, *, classes: int, options: ScoreOptions) -> dict[str, str]:
    """Why each metric that was asked for, or that every report shows, is not there."""
    if classes > 1:
        return {}
    others = [metric for metric in options.metrics if not is_measurable(metric, classes=classes)]
    standard = (*Performance.info, *ClasswiseCalibration.info, Key.BRIER_REFINEMENT)
    keys = (*standard, *(key for metric in others for key in metric.info))
    return {str(key): ONLY_CONFIDENCE for key in keys if key not in estimates}


def ordered_groups(groups: Iterable[GroupKey]) -> list[GroupKey]:
    """By domain, corruption, severity and other columns: the order of `Scores.groups`."""

    def order(key: GroupKey) -> tuple[str, str, int, str]:
        own = dict(key)
        rest = repr([each for each in key if each[0] not in _OWN_COLUMNS])
        return str(own.get("domain", "")), str(own.get("corruption", "")), int(own.get("severity", 0)), rest

    return sorted(groups, key=order)


def group_scores(
    groups: Mapping[GroupKey, Sequence[Sums]], metrics: Sequence[Metric], *, options: ScoreOptions, classes: int
) -> list[GroupScores]:
    """The scores of each group, by domain, corruption, severity and other columns.

    Args:
        groups: sums of each metric, by group.
        metrics: `group_metrics`, then others.
        options: what is computed.
        classes: K; 1 where only the confidence of the predicted class is known.
    """
    found = []
    shared = simultaneous_level(len(groups), level=options.level)
    calibration = group_metrics(options, classes=classes)[1:]
    keys = ordered_groups(groups)
    others = dict.fromkeys(name for key in keys for name, _ in key if name not in _OWN_COLUMNS)
    for key, accuracy in zip(keys, _exact_accuracies([groups[key][1] for key in keys], level=shared), strict=True):
        own = dict(key)
        found.append(
            GroupScores(
                domain=None if "domain" not in own else str(own["domain"]),
                corruption=None if "corruption" not in own else str(own["corruption"]),
                severity=None if "severity" not in own else int(own["severity"]),
                samples=int(groups[key][0]["count"]),
                estimates=_computed(metrics, groups[key], level=options.level),
                columns={name: str(own[name]) if name in own else None for name in others},
                simultaneous={Key.ACCURACY: accuracy}
                | _computed(calibration, groups[key][1 : 1 + len(calibration)], level=shared),
            )
        )
    return found


def _computed(metrics: Sequence[Metric], sums: Sequence[Sums], *, level: float) -> Estimates:
    """The estimates of a group; NaN where a metric is not defined on it."""
    estimates: Estimates = {}
    for metric, own in zip(metrics, sums, strict=True):
        try:
            estimates |= metric.compute(own, level=level)
        except ValueError:
            estimates |= dict.fromkeys(metric.info, Estimate.of(math.nan, UNDEFINED))
    return estimates


def _exact_accuracies(top_label: Sequence[Sums], *, level: float) -> list[Estimate]:
    """Wilson's interval is too short at the level of one of many, the exact one is not."""
    if not top_label:
        return []
    hits, samples = (torch.stack([sums[name].sum() for sums in top_label]).double() for name in ("hits", "count"))
    low, high = clopper_pearson(hits, samples, error=(1 - level) / 2)
    columns = (each.tolist() for each in (hits / samples, low, high))
    return [Estimate(*row) for row in zip(*columns, strict=True)]


def in_order(estimates: Estimates) -> Estimates:
    """The package's own metrics in the order in which they are shown, then the others."""
    own = {str(key): estimates[key] for key in Key if key in estimates}
    return own | {str(key): estimate for key, estimate in estimates.items() if key not in own}


def _ranking_scores(ranking: Ranking, ranks: Ranks, options: ScoreOptions, *, stratified: bool) -> RankingScores:
    counts = ranking.counts
    # Coverage is even by samples; of two sets of unequal size, each is.
    shown = _evenly(balanced_mass(counts) if stratified else counts.positive + counts.negative)
    names, curves = ["threshold", "true_positive_rate", "false_positive_rate"], [ranking.threshold, *rates(counts)]
    if not stratified:
        names += ["coverage", "risk"]
        curves += risk_coverage(counts)
    return RankingScores(
        score=options.score,
        positives=int(counts.positive.sum()),
        negatives=int(counts.negative.sum()),
        estimates=ranking_estimates(
            counts,
            stratified=stratified,
            level=options.level,
            exact=ranks.exact,
            independent=not options.clustered,
        ),
        curves={name: curve[shown].double().tolist() for name, curve in zip(names, curves, strict=True)},
    )


def _evenly(mass: Tensor) -> Tensor:
    """Which groups of a curve are kept, by their mass `[G]`: both ends, and the last to end before each equal share."""
    if len(mass) <= CURVE_POINTS:
        return torch.arange(len(mass), device=mass.device)
    end = mass.double().cumsum(0)
    shares = torch.linspace(0, 1, CURVE_POINTS, dtype=torch.float64, device=mass.device) * end[-1]
    kept: Tensor = torch.unique((torch.searchsorted(end, shares, right=True) - 1).clamp(min=0))
    return kept


def bin_table(sums: BinSums) -> BinTable:
    """The sums of `[B]` bins as lists."""
    return BinTable(**{name: getattr(sums, name).tolist() for name in BinTable.__dataclass_fields__})


def _class_table(sums: BinSums, *, level: float) -> ClassTable:
    low, high = calibration_error_interval_by_class(sums, level=level)
    return ClassTable(
        frequency=(sums.hits.sum(-1).double() / sums.samples).tolist(),
        mean_probability=(sums.confidence.sum(-1) / sums.samples).tolist(),
        ece=expected_calibration_error(sums).tolist(),
        low=low.tolist(),
        high=high.tolist(),
        floor=noise_floor(sums).tolist(),
    )
