"""The numbers that figures draw and tables list, computed from `Scores` in one place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.functional.intervals import wilson_interval
from counterpoise.metrics.comparison import Difference, Evaluation
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key, MetricInfo
from counterpoise.metrics.scores import BinTable, GroupScores, RankingScores, Scores

WORST_CLASSES = 10

NOT_STATED = "not stated"
"""Stands for a missing value of a column."""


def name_of(scores: Scores) -> str:
    """The model's name, or a word that stands for it."""
    return scores.source.name or "predictions"


def find(scores: Scores, key: str) -> Estimate | None:
    """An estimate that these scores may not have, or may have undefined."""
    ranking = errors_of(scores)
    estimate = scores.estimates.get(key) or (None if ranking is None else ranking.estimates.get(key))
    return None if estimate is None or math.isnan(estimate.value) else estimate


def errors_of(scores: Scores) -> RankingScores | None:
    """How right and wrong predictions are told apart, where there are curves of it."""
    ranking = scores.misclassification
    return ranking if ranking.curves else None


def size_of(scores: Scores) -> str:
    """Samples, classes where they are known, and bins."""
    classes = f"{scores.classes:,} classes, " if scores.classes > 1 else ""
    return f"{scores.samples:,} {unit_of(scores)}, {classes}{scores.bins} bins"


def unit_of(scores: Scores) -> str:
    """What is counted: where several labels may apply to a sample, decisions about each of them."""
    return "decisions" if scores.source.kind == "multilabel" else "sample" if scores.samples == 1 else "samples"


def has_bins(scores: Scores) -> bool:
    """Whether there is a reliability diagram to draw."""
    return any(scores.top_label.count)


def has_classes(scores: Scores) -> bool:
    """Whether each class was measured."""
    return bool(scores.by_class.ece)


@dataclass(frozen=True)
class ReliabilityBin:
    """A bin of the reliability diagram that holds samples, with the interval of its accuracy."""

    lower: float
    upper: float
    count: int
    share: float
    confidence: float
    accuracy: float
    low: float
    high: float


def reliability_bins(table: BinTable, *, level: float) -> list[ReliabilityBin]:
    """The occupied bins."""
    samples, bins = sum(table.count), len(table.count)
    rows = []
    for index, (count, hits, total) in enumerate(zip(table.count, table.hits, table.confidence, strict=True)):
        if count:
            low, high = wilson_interval(hits, count, level=level)
            edges = index / bins, (index + 1) / bins
            rows.append(ReliabilityBin(*edges, count, count / samples, total / count, hits / count, low, high))
    return rows


def largest_share(models: Sequence[Scores]) -> float:
    """The largest share of samples in one bin of any of the models."""
    return max(max(model.top_label.count) / sum(model.top_label.count) for model in models)


@dataclass(frozen=True)
class Contrast:
    """One metric of a model minus that of another, as a forest plot shows it.

    Attributes:
        title: of the metric.
        info: of the metric.
        estimate: the difference with its interval.
        limit: the largest value or limit of this metric in any of the plots that stand side by side.
    """

    title: str
    info: MetricInfo
    estimate: Estimate
    limit: float

    @property
    def state(self) -> str:
        """`better` or `worse` beyond chance, or `undecided`; by the interval, outside which a value may lie."""
        low, high = sorted(self.toward * limit for limit in (self.estimate.low, self.estimate.high))
        return "better" if low > 0 else "worse" if high < 0 else "undecided"

    @property
    def toward(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.info.higher_is_better else -1


_OF_ERRORS = (Key.AUROC, Key.FPR_AT_TPR95, Key.AURC)
_OF_OOD = (Key.AUROC, Key.FPR_AT_TPR95)
CONTRASTED = (Key.ACCURACY, Key.NLL, Key.BRIER, Key.ECE, Key.CLASSWISE_ECE, *_OF_ERRORS)
"""What a forest plot shows of the package's own metrics; all are in the table."""


def contrasts(evaluation: Evaluation, difference: Difference) -> list[Contrast]:
    """What differs between two models, of the metrics that matter most and have a better direction."""
    comparison = evaluation.comparison
    others = [] if comparison is None else [each for each in comparison.differences if each.first == difference.first]
    found = []
    outside = tuple(key for key in difference.estimates if key not in KEY_INFO)
    for key in (*CONTRASTED, *outside):
        title = f"{evaluation.info_of(key).title.strip()}{' of errors' if key in _OF_ERRORS else ''}"
        found.append(_contrast(evaluation, title, key, difference.estimates, [each.estimates for each in others]))
    for name, estimates in difference.ood.items():
        for key in _OF_OOD:
            title = f"{evaluation.info_of(key).title} of {name}"
            found.append(_contrast(evaluation, title, key, estimates, [each.ood.get(name, {}) for each in others]))
    return [each for each in found if each is not None]


def _contrast(
    evaluation: Evaluation, title: str, key: str, own: dict[str, Estimate], others: Sequence[dict[str, Estimate]]
) -> Contrast | None:
    info, estimate = evaluation.info_of(key), own.get(key)
    if info.higher_is_better is None or estimate is None or not _is_finite(estimate):
        return None
    beside = [each[key] for each in others if key in each and _is_finite(each[key])]
    limit = max(abs(part) for each in (estimate, *beside) for part in (each.value, each.low, each.high))
    return Contrast(title, info, estimate, limit)


def _is_finite(estimate: Estimate) -> bool:
    return all(map(math.isfinite, (estimate.value, estimate.low, estimate.high)))


@dataclass(frozen=True)
class ClassRow:
    """Calibration of one class."""

    index: int
    name: str
    frequency: float
    mean_probability: float
    ece: float
    low: float
    high: float
    floor: float


def worst_classes(scores: Scores, *, most: int = WORST_CLASSES) -> list[ClassRow]:
    """The tested classes, the surely worst calibrated first: by the lower limit of the interval, then by its value."""
    table = scores.by_class
    rows = [
        ClassRow(
            index,
            class_name(scores, index),
            table.frequency[index],
            table.mean_probability[index],
            table.ece[index],
            table.low[index],
            table.high[index],
            table.floor[index],
        )
        for index, frequency in enumerate(table.frequency)
        if frequency > 0
    ]
    return sorted(rows, key=lambda row: (-row.low, -row.ece))[:most]


def largest_class_error(models: Sequence[Scores]) -> float:
    """The largest calibration error, upper limit or noise floor of the worst classes of any of the models."""
    rows = [row for model in models for row in worst_classes(model)]
    return max((max(row.ece, row.high, row.floor) for row in rows), default=0.0)


def untested_classes(scores: Scores) -> list[str]:
    """The classes that no sample belongs to: their calibration error says nothing of how they are recognised."""
    return [class_name(scores, index) for index, share in enumerate(scores.by_class.frequency) if share == 0]


def class_name(scores: Scores, index: int) -> str:
    """The name of a class, or its number."""
    return f"class {index}" if scores.class_names is None else scores.class_names[index]


def severities(scores: Scores) -> dict[int, list[tuple[str, Estimate]]]:
    """ECE of each corruption at each severity, clean samples at 0; empty where there are no corrupted samples.

    Where there are several domains, or groups by other columns, each corruption of each has its own name.
    """
    groups = [(group.severity, group) for group in scores.groups if group.severity is not None]
    several = len({group.domain for _, group in groups}) > 1
    by_severity: dict[int, list[tuple[str, Estimate]]] = {}
    for severity, group in groups:
        name = group.corruption or ("clean" if severity == 0 else "unnamed")
        name = f"{name}, {group.domain}" if several and group.domain else name
        name = ", ".join([name, *column_values(group)])
        by_severity.setdefault(severity, []).append((name, group.estimates[Key.ECE]))
    return dict(sorted(by_severity.items())) if any(by_severity) else {}


def is_slice(group: GroupScores) -> bool:
    """Whether it has samples of one domain, of one corruption whose severity is not stated, or of other columns."""
    of_corruption = group.corruption and group.severity is None
    return bool(group.columns or (not group.severity and (group.domain or of_corruption)))


def slice_name(group: GroupScores) -> str:
    """Values of all that describes it."""
    severity = f"severity {group.severity}" if group.severity else None
    return ", ".join(filter(None, (group.domain, group.corruption, severity, *column_values(group))))


def column_values(group: GroupScores) -> list[str]:
    """Name and value of each column that describes it beside domain, corruption and severity."""
    return [f"{name} {NOT_STATED if value is None else value}" for name, value in group.columns.items()]


@dataclass(frozen=True)
class Box:
    """Five numbers of a box plot: whiskers at the extremes, quartiles by linear interpolation."""

    lowest: float
    lower: float
    median: float
    upper: float
    highest: float


def box_of(values: list[float]) -> Box:
    """The box of some values.

    >>> box_of([1.0, 2.0, 3.0, 4.0, 5.0])
    Box(lowest=1.0, lower=2.0, median=3.0, upper=4.0, highest=5.0)
    """
    ordered = sorted(values)

    def quantile(share: float) -> float:
        place = share * (len(ordered) - 1)
        left = math.floor(place)
        right = min(left + 1, len(ordered) - 1)
        return ordered[left] + (place - left) * (ordered[right] - ordered[left])

    return Box(ordered[0], quantile(0.25), quantile(0.5), quantile(0.75), ordered[-1])


def threshold_text(value: float) -> str:
    """A threshold, rounded down to as many digits as tell it from 0 and from 1, where scores may crowd.

    >>> threshold_text(0.78043), threshold_text(0.99987543), threshold_text(1.0)
    ('0.780', '0.999875', '1.000')
    """
    distance = min(abs(value), abs(1 - value))
    digits = 3 if distance == 0 else min(max(3, 2 - math.floor(math.log10(distance))), 15)
    return f"{math.floor(value * 10**digits) / 10**digits:.{digits}f}"
