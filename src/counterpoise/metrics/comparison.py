"""Models on the same samples, compared by paired differences.

Samples are dealt at random into groups, the same for every model. Each group in turn is left out; how the difference of
two models changes with it gives the standard error of the difference (the delete-a-group jackknife), for every measure
alike and with whatever the two models have in common cancelled. Overlap of two intervals is not a test; this is.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor

from counterpoise._documents import from_document, to_document
from counterpoise.functional.calibration import BinSums, error_terms
from counterpoise.functional.detection import DEFAULT_TPR, RankCounts, interpolated_fpr_at_tpr, merged_groups
from counterpoise.functional.histogram import CELLS, unit_or_score_cells
from counterpoise.functional.paired import jackknife_interval
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key
from counterpoise.metrics.inputs import PredictionBatch
from counterpoise.metrics.measures import ClasswiseCalibration, Performance, TopLabelCalibration
from counterpoise.metrics.ranking import RANKING_MEASURES, SELECTIVE_MEASURES
from counterpoise.metrics.scores import Scores
from counterpoise.metrics.stream import Stream, Sums

SCHEMA = "counterpoise.evaluation"
SCHEMA_VERSION = 1
GROUPS = 100
_RANK_CELLS = 1024
_WAITING_SAMPLES = 1 << 20
"""So many samples are kept before they are counted."""
_LARGEST_CLASSWISE = 1 << 21
"""Classwise errors are compared up to this many groups x classes x bins: 1,398 classes in 15 bins, 84 MB a model."""

_RANKING_MEASURES = RANKING_MEASURES | {
    Key.FPR_AT_TPR95: interpolated_fpr_at_tpr,
    Key.DETECTION_ERROR_AT_TPR95: lambda counts: 0.5 * (1 - DEFAULT_TPR + interpolated_fpr_at_tpr(counts)),
}
"""As they are taken where a group is left out: a threshold that jumped from cell to cell would hide how it moves."""


@dataclass(frozen=True)
class Difference:
    """Of every measure, the second model's value minus the first's, with its interval; OOD measures by foreign set."""

    first: int
    second: int
    estimates: dict[Key, Estimate]
    ood: dict[str, dict[Key, Estimate]]


@dataclass(frozen=True)
class Comparison:
    """All pairs of some models.

    Attributes:
        samples: that all models have predictions for.
        level: nominal coverage of each interval; adjusted so that naming a best of M models errs as seldom as
            one comparison would.
        differences: one for each pair.
    """

    samples: int
    level: float
    differences: list[Difference]

    def best(self, key: Key, values: list[float], *, ood: str | None = None) -> int | None:
        """The model whose value is best, if its difference to every other is beyond chance; else None."""
        better = KEY_INFO[key].higher_is_better
        if better is None or any(math.isnan(value) for value in values):
            return None
        leader = max(range(len(values)), key=lambda index: values[index] if better else -values[index])
        for difference in self.differences:
            if leader not in (difference.first, difference.second):
                continue
            estimate = (difference.estimates if ood is None else difference.ood.get(ood, {})).get(key)
            # By the interval and not by the values: plug-in errors are biased, and may point the other way.
            wants_increase = better == (leader == difference.second)
            if estimate is None or not (estimate.low > 0 if wants_increase else estimate.high < 0):
                return None
        return leader


@dataclass(frozen=True)
class Evaluation:
    """Scores of one or several models, and how they compare where they saw the same samples."""

    models: list[Scores]
    comparison: Comparison | None = None
    notices: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Strict JSON, as `Scores.to_json`."""
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION)

    @classmethod
    def from_json(cls, text: str) -> "Evaluation":
        """Read what `to_json` wrote; anything else is a `ValueError`."""
        return from_document(cls, text, schema=SCHEMA, version=SCHEMA_VERSION)


class GroupedSums:
    """Sums of one model's predictions in each of `GROUPS` groups of samples."""

    def __init__(self, *, classes: int, bins: int, score: str) -> None:
        self.score = score
        self._classwise_fits = GROUPS * classes * bins <= _LARGEST_CLASSWISE
        self._streams: list[dict[str, Stream[object]]] = []
        for _ in range(GROUPS):
            streams: dict[str, Stream[object]] = {
                "performance": Stream(Performance()),
                "top_label": Stream(TopLabelCalibration(bins=bins)),
            }
            if self._classwise_fits:
                streams["classwise"] = Stream(ClasswiseCalibration(num_classes=classes, bins=bins))
            self._streams.append(streams)
        self._right, self._wrong = _CellCounts(), _CellCounts()
        self._foreign: dict[str, _CellCounts] = {}

    def update(self, batch: PredictionBatch, group: Tensor) -> None:
        """Add labelled samples with the group `[n]` of each."""
        order = torch.argsort(group, stable=True)
        sizes = torch.bincount(group, minlength=GROUPS).tolist()
        for streams, rows in zip(self._streams, torch.split(order, sizes), strict=True):
            part = batch.take(rows)
            if len(rows):
                for stream in streams.values():
                    stream.update_checked(part)
        cells, hits = self._cells(batch), batch.top()[1].cpu()
        self._right.add(cells[hits], group[hits])
        self._wrong.add(cells[~hits], group[~hits])

    def update_foreign(self, name: str, batch: PredictionBatch, group: Tensor) -> None:
        """Add foreign samples with the group `[n]` of each."""
        self._foreign.setdefault(name, _CellCounts()).add(self._cells(batch), group)

    @property
    def foreign_sets(self) -> set[str]:
        """Names of the sets of foreign samples."""
        return set(self._foreign)

    def left_out(self) -> dict[Key, Tensor]:
        """Every measure with each group left out, `[GROUPS]`."""
        performance = self._without_each("performance")
        values = {
            Key.ACCURACY: performance["correct"] / performance["count"],
            Key.NLL: performance["nll"] / performance["count"],
            Key.BRIER: performance["brier"] / performance["count"],
        }
        top_label = BinSums(**self._without_each("top_label"))
        values[Key.MEAN_GAP] = -top_label.gap.sum(-1)
        values[Key.ECE] = error_terms(top_label).estimate
        if self._classwise_fits:
            values[Key.CLASSWISE_ECE] = error_terms(BinSums(**self._without_each("classwise"))).estimate.mean(-1)
        counts = _without_each(_by_rank([self._right], [self._wrong]))
        return values | {key: measure(counts) for key, measure in _RANKING_MEASURES.items()}

    def left_out_foreign(self, name: str) -> dict[Key, Tensor]:
        """Every OOD measure with each group left out, `[GROUPS]`."""
        counts = _without_each(_by_rank([self._right, self._wrong], [self._foreign[name]]))
        return {key: measure(counts) for key, measure in _RANKING_MEASURES.items() if key not in SELECTIVE_MEASURES}

    def errors(self) -> dict[Key, tuple[float, float]]:
        """Of all samples, the debiased calibration errors before any cut at 0, and how far they may lie too low."""
        top_label = error_terms(BinSums(**self._total("top_label")))
        found = {Key.ECE: (float(top_label.estimate), float(top_label.bias))}
        if self._classwise_fits:
            classwise = error_terms(BinSums(**self._total("classwise")))
            found[Key.CLASSWISE_ECE] = float(classwise.estimate.mean()), float(classwise.bias.mean())
        return found

    def _cells(self, batch: PredictionBatch) -> Tensor:
        return unit_or_score_cells(self.score, batch.score(self.score).cpu())

    def _stacked(self, name: str) -> Sums:
        parts = [streams[name].sums for streams in self._streams]
        return {key: torch.stack([part[key].cpu() for part in parts]) for key in parts[0]}

    def _total(self, name: str) -> Sums:
        return {key: value.sum(0) for key, value in self._stacked(name).items()}

    def _without_each(self, name: str) -> Sums:
        return {key: value.sum(0, keepdim=True) - value for key, value in self._stacked(name).items()}


class _CellCounts:
    """Samples of each group in each cell of the fine histogram, as far as there are any: scores occupy few cells."""

    def __init__(self) -> None:
        self._places, self._counts = (torch.zeros(0, dtype=torch.int64) for _ in range(2))
        self._waiting: list[Tensor] = []
        self._waiting_samples = 0

    def add(self, cells: Tensor, group: Tensor) -> None:
        self._waiting.append(group * CELLS + cells)
        self._waiting_samples += len(cells)
        if self._waiting_samples > _WAITING_SAMPLES:
            self._count()

    def occupied(self) -> tuple[Tensor, Tensor, Tensor]:
        """Group, cell and number of samples, `[n]` each."""
        self._count()
        return self._places // CELLS, self._places % CELLS, self._counts

    def _count(self) -> None:
        new, counts = torch.unique(torch.cat(self._waiting or [self._places[:0]]), return_counts=True)
        self._places, index = torch.unique(torch.cat([self._places, new]), return_inverse=True)
        self._counts = torch.zeros_like(self._places).index_add_(0, index, torch.cat([self._counts, counts]))
        self._waiting, self._waiting_samples = [], 0


def _by_rank(positive: list[_CellCounts], negative: list[_CellCounts]) -> RankCounts:
    """Counts `[GROUPS, _RANK_CELLS]`, highest score first: cells of all samples, merged until so many are left."""
    sides = [[part.occupied() for part in parts] for parts in (positive, negative)]
    totals = torch.zeros(2, CELLS, dtype=torch.int64)
    for total, parts in zip(totals, sides, strict=True):
        for _, cell, count in parts:
            total.index_add_(0, cell, count)
    rank = merged_groups(RankCounts(*totals.flip(-1)), _RANK_CELLS).flip(0)
    counts = torch.zeros(2, GROUPS * _RANK_CELLS, dtype=torch.int64)
    for side, parts in zip(counts, sides, strict=True):
        for group, cell, count in parts:
            side.index_add_(0, group * _RANK_CELLS + rank[cell], count)
    return RankCounts(*counts.view(2, GROUPS, _RANK_CELLS))


def compare(
    models: list[Scores], grouped: list[GroupedSums], *, level: float, without: Collection[str] = ()
) -> Comparison:
    """All paired differences of models whose samples were dealt into the same groups.

    Args:
        models: their scores.
        grouped: their sums in each group.
        level: nominal coverage of one comparison.
        without: sets of foreign samples that are not the same for all models.
    """
    pairs = list(combinations(range(len(models)), 2))
    adjusted = 1 - (1 - level) / max(1, len(models) - 1)
    left_out, errors = [sums.left_out() for sums in grouped], [sums.errors() for sums in grouped]
    shared = set.intersection(*(sums.foreign_sets for sums in grouped)).difference(without)
    foreign = [{name: sums.left_out_foreign(name) for name in sorted(shared)} for sums in grouped]
    differences = []
    for first, second in pairs:
        estimates = {
            key: _difference(
                models[first][key], models[second][key], left_out[first][key], left_out[second][key], adjusted
            )
            for key in left_out[first]
            if key in left_out[second]
        }
        for key in errors[first].keys() & errors[second].keys():
            estimates[key] = _error_difference(estimates[key], errors[first][key], errors[second][key])
        ood = {
            name: {
                key: _difference(
                    models[first].ood[name].estimates[key],
                    models[second].ood[name].estimates[key],
                    foreign[first][name][key],
                    foreign[second][name][key],
                    adjusted,
                )
                for key in foreign[first][name]
            }
            for name in sorted(shared)
        }
        differences.append(Difference(first, second, estimates, ood))
    return Comparison(samples=models[0].samples, level=adjusted, differences=differences)


def _difference(first: Estimate, second: Estimate, without: Tensor, second_without: Tensor, level: float) -> Estimate:
    value = second.value - first.value
    return Estimate.of(value, jackknife_interval(value, second_without.double() - without.double(), level=level))


def _error_difference(plain: Estimate, first: tuple[float, float], second: tuple[float, float]) -> Estimate:
    """Difference of calibration errors: around the debiased values, widened by what bias may be left in either."""
    (value, bound), (second_value, second_bound) = first, second
    half, difference = (plain.high - plain.low) / 2, second_value - value
    return Estimate(plain.value, difference - bound - half, difference + second_bound + half)


def _without_each(counts: RankCounts) -> RankCounts:
    return RankCounts(*(side.sum(0, keepdim=True) - side for side in counts))
