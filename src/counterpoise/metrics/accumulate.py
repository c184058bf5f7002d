"""`ScoreAccumulator`: batches of checked predictions in, `Scores` out.

Up to a number of samples, confidences are kept one by one and everything is exact. Beyond it they are counted in the
cells of a fine histogram: memory stays constant, and the measures that depend on ranks state their error bound.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.functional.calibration import BinSums, expected_calibration_error, noise_floor
from counterpoise.functional.confidence import UNIT_INTERVAL_SCORES
from counterpoise.functional.detection import RankCounts, balanced_mass, rank_groups, rates, risk_coverage
from counterpoise.functional.histogram import CELLS, cell_floor, exact_cells, histogram_cells, unit_or_score_cells
from counterpoise.functional.intervals import calibration_error_interval_by_class
from counterpoise.metrics.estimates import Key
from counterpoise.metrics.inputs import PredictionBatch
from counterpoise.metrics.measures import (
    ClasswiseCalibration,
    Performance,
    TopLabelCalibration,
    bin_sums_of,
    brier_refinement,
)
from counterpoise.metrics.ranking import calibration_by_rank, ranking_estimates
from counterpoise.metrics.scores import CURVE_POINTS, BinTable, ClassTable, RankingScores, Scores
from counterpoise.metrics.stream import Stream, Sums


@dataclass(frozen=True)
class Measured:
    """Sums of a batch of labelled samples, and the columns `[n]` that ranks need; `scores` where not confidences."""

    performance: Sums
    top_label: Sums
    classwise: Sums
    confidence: Tensor
    hits: Tensor
    scores: Tensor | None


class ScoreAccumulator:
    """Everything that `Scores` needs, batch by batch.

    Args:
        classes: K.
        score: confidence score for misclassification and OOD detection.
        bins: number of calibration bins.
        level: nominal coverage of the intervals.
        exact_samples: up to how many samples ranks are exact; None for any number.
    """

    def __init__(self, *, classes: int, score: str, bins: int, level: float, exact_samples: int | None = None) -> None:
        if bins < 1:
            raise ValueError(f"bins must be at least 1, got {bins}")
        self.classes, self.score, self.bins, self.level = classes, score, bins, level
        self.samples = 0
        self._exact_samples = exact_samples
        self._performance = Stream(Performance(level=level))
        self._top_label = Stream(TopLabelCalibration(bins=bins, level=level))
        self._classwise = Stream(ClasswiseCalibration(num_classes=classes, bins=bins, level=level))
        self._confidences = _Confidences()
        self._right, self._wrong = (_ScoreSample(score) for _ in range(2))
        self._foreign: dict[str, _ScoreSample] = {}

    def update(self, batch: PredictionBatch) -> None:
        """Add labelled samples."""
        self.add(self.measured(batch))

    def measured(self, batch: PredictionBatch) -> "Measured":
        """What is needed of some labelled samples; changes nothing, so that threads can share the work."""
        confidence, hits = (column.cpu() for column in batch.top())
        return Measured(
            performance=self._performance.measure.sums(batch),
            top_label=self._top_label.measure.sums(batch),
            classwise=self._classwise.measure.sums(batch),
            confidence=confidence,
            hits=hits,
            scores=None if self.score == "max_softmax" else batch.score(self.score).cpu(),
        )

    def add(self, measured: "Measured") -> None:
        """Add what was measured of some labelled samples."""
        self._performance.add_sums(measured.performance)
        self._top_label.add_sums(measured.top_label)
        self._classwise.add_sums(measured.classwise)
        hits, scores = measured.hits, measured.scores
        self.samples += len(hits)
        self._confidences.add(measured.confidence, hits)
        if scores is not None:
            self._right.add(scores[hits])
            self._wrong.add(scores[~hits])
        self._count_if_many()

    def update_foreign(self, name: str, batch: PredictionBatch) -> None:
        """Add samples that are out of distribution, of the set of that name."""
        self._foreign.setdefault(name, _ScoreSample(self.score)).add(batch.score(self.score).cpu())
        self._count_if_many()

    def compute(self) -> Scores:
        """The scores of all samples so far."""
        exact, cells = self._confidences.exact, self._confidences.cells()
        estimates = self._performance.compute() | self._classwise.compute() | self._top_label.compute()
        estimates |= calibration_by_rank(cells, bins=self.bins, level=self.level, exact=exact)
        estimates[Key.BRIER_REFINEMENT] = brier_refinement(estimates[Key.BRIER], estimates[Key.BRIER_CALIBRATION])
        right, wrong = (
            self._confidences.split() if self.score == "max_softmax" else (self._right.values, self._wrong.values)
        )
        return Scores(
            samples=self.samples,
            classes=self.classes,
            bins=self.bins,
            level=self.level,
            estimates={key: estimates[key] for key in Key if key in estimates},
            top_label=bin_table(bin_sums_of(self._top_label.sums)),
            by_class=_class_table(bin_sums_of(self._classwise.sums), level=self.level),
            misclassification=self._ranking_scores([right], [wrong], stratified=False),
            ood={
                name: self._ranking_scores([right, wrong], [foreign.values], stratified=True)
                for name, foreign in self._foreign.items()
            },
        )

    def _count_if_many(self) -> None:
        sizes = [self.samples, *(foreign.samples for foreign in self._foreign.values())]
        if self._exact_samples is not None and max(sizes) > self._exact_samples:
            if self._confidences.exact:
                self._confidences.count()
            for sample in (self._right, self._wrong, *self._foreign.values()):
                sample.count()

    def _ranking_scores(self, positive: list[Tensor], negative: list[Tensor], *, stratified: bool) -> RankingScores:
        exact = self._confidences.exact
        ranking = _distinct(positive, negative) if exact else _counted(self.score, positive, negative)
        counts = ranking.counts
        # Coverage is even by samples; of two sets of unequal size, each is.
        shown = _evenly(balanced_mass(counts) if stratified else counts.positive + counts.negative)
        names, curves = ["threshold", "true_positive_rate", "false_positive_rate"], [ranking.threshold, *rates(counts)]
        if not stratified:
            names += ["coverage", "risk"]
            curves += risk_coverage(counts)
        return RankingScores(
            score=self.score,
            positives=int(counts.positive.sum()),
            negatives=int(counts.negative.sum()),
            estimates=ranking_estimates(counts, stratified=stratified, level=self.level, exact=exact),
            curves={name: curve[shown].double().tolist() for name, curve in zip(names, curves, strict=True)},
        )


class _Confidences:
    """Confidence and correctness of every sample, or their sums over the cells of the histogram."""

    def __init__(self) -> None:
        self._samples: list[tuple[Tensor, Tensor]] = []
        self._waiting = 0
        self._counted: BinSums | None = None

    @property
    def exact(self) -> bool:
        return self._counted is None

    def add(self, confidence: Tensor, hits: Tensor) -> None:
        self._samples.append((confidence, hits))
        self._waiting += len(hits)
        # Adding to all cells takes as long as counting some 100,000 samples.
        if self._counted is not None and self._waiting > 4 * CELLS:
            self.count()

    def count(self) -> None:
        """From now on, keep no samples but a last few."""
        none = torch.zeros(0, device="cpu"), torch.zeros(0, dtype=torch.bool, device="cpu")
        counted = histogram_cells(*(self._columns() if self._samples else none))
        self._counted = counted if self._counted is None else self._counted.plus(counted)
        self._samples, self._waiting = [], 0

    def cells(self) -> BinSums:
        """One cell for each distinct confidence, or those of the histogram, ascending."""
        if self._counted is None:
            return exact_cells(*self._columns())
        self.count()
        return self._counted

    def split(self) -> tuple[Tensor, Tensor]:
        """Confidences of right and of wrong predictions, or their counts in cells."""
        if self._counted is not None:
            cells = self.cells()
            return cells.hits, cells.count - cells.hits
        confidence, hits = self._columns()
        return confidence[hits], confidence[~hits]

    def _columns(self) -> tuple[Tensor, Tensor]:
        if not self._samples:
            raise ValueError("there are no samples: call update() before compute()")
        confidence, hits = (torch.cat(column) for column in zip(*self._samples, strict=True))
        return confidence, hits


class _ScoreSample:
    """Scores of some samples, or their counts in cells."""

    def __init__(self, score: str) -> None:
        self.samples = 0
        self._score = score
        self._parts: list[Tensor] = []
        self._counts: Tensor | None = None

    @property
    def values(self) -> Tensor:
        """Scores `[n]`, or counts `[CELLS]`."""
        return self._counts if self._counts is not None else torch.cat([torch.zeros(0, device="cpu"), *self._parts])

    def add(self, scores: Tensor) -> None:
        self.samples += len(scores)
        if self._counts is None:
            self._parts.append(scores)
        else:
            self._counts += torch.bincount(unit_or_score_cells(self._score, scores), minlength=CELLS)

    def count(self) -> None:
        """From now on, count in cells only."""
        if self._counts is None:
            parts, self._parts, self.samples = self._parts, [], 0
            self._counts = torch.zeros(CELLS, dtype=torch.int64, device="cpu")
            for part in parts:
                self.add(part)


class _Ranking(NamedTuple):
    """Counts by falling score, and the smallest score of each group `[G]`."""

    counts: RankCounts
    threshold: Tensor


def _distinct(positive: list[Tensor], negative: list[Tensor]) -> _Ranking:
    """Groups of equal score."""
    scores = torch.cat([part.double() for part in positive + negative])
    is_positive = torch.arange(len(scores), device=scores.device) < sum(map(len, positive))
    return _Ranking(*rank_groups(scores, is_positive))


def _counted(score: str, positive: list[Tensor], negative: list[Tensor]) -> _Ranking:
    """Occupied cells of the histogram."""
    up, down = (torch.stack(parts).sum(0) for parts in (positive, negative))
    occupied = torch.nonzero(up + down).squeeze(-1).flip(0)
    floor = cell_floor(occupied).double()
    threshold = torch.sigmoid(floor) if score in UNIT_INTERVAL_SCORES else floor
    return _Ranking(RankCounts(up[occupied], down[occupied]), threshold)


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
