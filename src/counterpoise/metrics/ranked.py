"""Metrics that depend on the order of all samples, each a frozen dataclass of its configuration.

They go through a fine histogram, and state the largest error that it can cause.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.detection import RankCounts
from counterpoise.functional.histogram import CELLS, histogram_cells, unit_or_score_cells
from counterpoise.metrics.batch import PredictionBatch
from counterpoise.metrics.options import ScoreOptions, require_count, require_score
from counterpoise.metrics.protocol import Estimates, Sums
from counterpoise.metrics.ranking import (
    CALIBRATION_BY_RANK,
    RANKING_METRICS,
    SELECTIVE_METRICS,
    calibration_by_rank,
    rank_counts_of_cells,
    ranking_estimates,
)
from counterpoise.metrics.standard import as_sums, bin_sums_of, infos, require_samples, zero_bins


@dataclass(frozen=True)
class ConfidenceRanking:
    """Equal-mass and smooth ECE, and misclassification detection by confidence, each with its error bound."""

    bins: int = DEFAULT_BINS

    info = infos(*CALIBRATION_BY_RANK, *RANKING_METRICS)
    needs = "confidence"

    def __post_init__(self) -> None:
        require_count(self.bins, "bins")

    def zeros(self) -> Sums:
        return zero_bins(CELLS)

    def sums(self, batch: PredictionBatch) -> Sums:
        return as_sums(histogram_cells(*batch.top()))

    def compute(self, sums: Sums, *, level: float) -> Estimates:
        cells = bin_sums_of(sums)
        require_samples(cells.samples)
        return {
            **calibration_by_rank(cells, options=ScoreOptions(bins=self.bins, level=level), exact=False),
            **ranking_estimates(rank_counts_of_cells(cells), stratified=False, level=level, exact=False),
        }


@dataclass(frozen=True)
class MisclassificationDetection:
    """Right (positive) against wrong predictions, by any confidence score."""

    score: str = "max_softmax"

    info = infos(*RANKING_METRICS)

    def __post_init__(self) -> None:
        require_score(self.score)

    def zeros(self) -> Sums:
        return _zero_histograms()

    def sums(self, batch: PredictionBatch) -> Sums:
        return _score_histograms(batch, self.score, positive=batch.top()[1])

    def compute(self, sums: Sums, *, level: float) -> Estimates:
        return _detection_estimates(sums, stratified=False, level=level)


@dataclass(frozen=True)
class OodDetection:
    """In-distribution (positive) against OOD samples, by any confidence score; needs no labels."""

    score: str = "max_softmax"

    info = infos(*(key for key in RANKING_METRICS if key not in SELECTIVE_METRICS))

    def __post_init__(self) -> None:
        require_score(self.score)

    def zeros(self) -> Sums:
        return _zero_histograms()

    def sums(self, batch: PredictionBatch) -> Sums:
        if batch.in_distribution is None:
            raise ValueError("OOD detection needs to know which samples are in-distribution; pass in_distribution=")
        return _score_histograms(batch, self.score, positive=batch.in_distribution)

    def compute(self, sums: Sums, *, level: float) -> Estimates:
        return _detection_estimates(sums, stratified=True, level=level)


def _zero_histograms() -> Sums:
    return {name: torch.zeros(CELLS, dtype=torch.int64) for name in ("positive", "negative")}


def _score_histograms(batch: PredictionBatch, score: str, *, positive: Tensor) -> Sums:
    cells = unit_or_score_cells(score, batch.score(score))
    return {
        "positive": torch.bincount(cells[positive], minlength=CELLS),
        "negative": torch.bincount(cells[~positive], minlength=CELLS),
    }


def _detection_estimates(sums: Sums, *, stratified: bool, level: float) -> Estimates:
    require_samples(sums["positive"].sum() + sums["negative"].sum())
    counts = RankCounts(sums["positive"].flip(0), sums["negative"].flip(0))
    return ranking_estimates(counts, stratified=stratified, level=level, exact=False)
