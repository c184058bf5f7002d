"""One call from predictions to `Scores`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from counterpoise.functional.calibration import DEFAULT_BINS, BinSums, expected_calibration_error, noise_floor
from counterpoise.functional.detection import RankCounts, rank_counts, rates, risk_coverage
from counterpoise.functional.histogram import exact_cells
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics.estimates import Key
from counterpoise.metrics.inputs import PredictionBatch, PredictionTable, prediction_table
from counterpoise.metrics.measures import (
    ClasswiseCalibration,
    Performance,
    TopLabelCalibration,
    bin_sums_of,
    brier_refinement,
)
from counterpoise.metrics.ranking import calibration_by_rank, rank_counts_of_cells, ranking_estimates
from counterpoise.metrics.scores import CURVE_POINTS, BinTable, ClassTable, RankingScores, Scores
from counterpoise.metrics.stream import Stream

_BLOCK_ELEMENTS = 1 << 22
"""Probabilities in memory at a time, beside the predictions themselves."""


def evaluate(
    *,
    logits: Any = None,
    probabilities: Any = None,
    labels: Any,
    valid: Any = None,
    ood_logits: Any = None,
    ood_probabilities: Any = None,
    score: str = "max_softmax",
    bins: int = DEFAULT_BINS,
    level: float = DEFAULT_LEVEL,
) -> Scores:
    """Measure accuracy, calibration, and what confidence is worth, from a tensor, an array or lists.

    Args:
        logits: `[..., K]`; give these or `probabilities`.
        probabilities: `[..., K]`, rows summing to 1.
        labels: class indices `[...]`.
        valid: boolean `[...]`; rows where it is False are left out.
        ood_logits: `[..., K]` predictions for foreign samples.
        ood_probabilities: the same as probabilities; give the kind that the other predictions have.
        score: confidence score for misclassification and OOD detection (see `counterpoise.functional.confidence`).
        bins: number of calibration bins.
        level: nominal coverage of the intervals.

    >>> scores = evaluate(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], labels=[0, 1, 1])
    >>> round(scores["accuracy"].value, 3), round(scores["ece"].value, 3)
    (0.667, 0.3)
    """
    if labels is None:
        raise ValueError("labels are needed; pass labels=")
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    table = prediction_table(logits=logits, probabilities=probabilities, labels=labels, valid=valid)
    foreign = _foreign_table(table, ood_logits, ood_probabilities)
    classes = table.values.shape[-1]
    performance = Stream(Performance(level=level))
    top_label = Stream(TopLabelCalibration(bins=bins, level=level))
    classwise = Stream(ClasswiseCalibration(num_classes=classes, bins=bins, level=level))
    columns = []
    for batch in _blocks(table):
        for stream in (performance, top_label, classwise):
            stream.update_checked(batch)
        columns.append((*batch.top(), batch.score(score)))
    confidence, hits, scores = (torch.cat(column).cpu() for column in zip(*columns, strict=True))
    cells = exact_cells(confidence, hits)
    right_and_wrong = rank_counts_of_cells(cells) if score == "max_softmax" else rank_counts(scores, hits)
    estimates = performance.compute() | classwise.compute() | top_label.compute()
    estimates |= calibration_by_rank(cells, bins=bins, level=level, exact=True)
    estimates[Key.BRIER_REFINEMENT] = brier_refinement(estimates[Key.BRIER], estimates[Key.BRIER_CALIBRATION])
    return Scores(
        samples=len(hits),
        classes=classes,
        bins=bins,
        level=level,
        estimates={key: estimates[key] for key in Key if key in estimates},
        top_label=_bin_table(bin_sums_of(top_label.sums)),
        by_class=_class_table(bin_sums_of(classwise.sums)),
        misclassification=_ranking_scores(right_and_wrong, score=score, stratified=False, level=level),
        ood=None if foreign is None else _ood_scores(scores, foreign, score=score, level=level),
    )


def _blocks(table: PredictionTable) -> Iterator[PredictionBatch]:
    """Checked rows, few enough at a time that memory beside the predictions does not grow with them."""
    rows, classes = table.values.shape
    step = max(1, _BLOCK_ELEMENTS // classes)
    for start in range(0, rows, step):
        yield table.checked_rows(start, start + step)


def _foreign_table(table: PredictionTable, logits: Any, probabilities: Any) -> PredictionTable | None:
    if logits is None and probabilities is None:
        return None
    foreign = prediction_table(logits=logits, probabilities=probabilities)
    if foreign.are_logits != table.are_logits:
        kind = "logits" if table.are_logits else "probabilities"
        raise ValueError(f"the predictions are {kind}, so the foreign ones must be too: pass ood_{kind}=")
    if foreign.values.shape[-1] != table.values.shape[-1]:
        raise ValueError(
            f"foreign predictions have {foreign.values.shape[-1]} classes, the others {table.values.shape[-1]}"
        )
    return foreign


def _ood_scores(inside: Tensor, foreign: PredictionTable, *, score: str, level: float) -> RankingScores:
    outside = torch.cat([batch.score(score).cpu() for batch in _blocks(foreign)])
    positive = torch.arange(len(inside) + len(outside)) < len(inside)
    counts = rank_counts(torch.cat([inside.double(), outside.double()]), positive)
    return _ranking_scores(counts, score=score, stratified=True, level=level)


def _ranking_scores(counts: RankCounts, *, score: str, stratified: bool, level: float) -> RankingScores:
    names = ["true_positive_rate", "false_positive_rate"]
    curves = list(rates(counts))
    if not stratified:
        names += ["coverage", "risk"]
        curves += risk_coverage(counts)
    return RankingScores(
        score=score,
        positives=int(counts.positive.sum()),
        negatives=int(counts.negative.sum()),
        estimates=ranking_estimates(counts, stratified=stratified, level=level, exact=True),
        curves={name: _thinned(curve) for name, curve in zip(names, curves, strict=True)},
    )


def _thinned(curve: Tensor) -> list[float]:
    if len(curve) > CURVE_POINTS:
        curve = curve[torch.linspace(0, len(curve) - 1, CURVE_POINTS, dtype=torch.float64).round().long()]
    values: list[float] = curve.nan_to_num(0.0).tolist()
    return values


def _bin_table(sums: BinSums) -> BinTable:
    return BinTable(**{name: getattr(sums, name).tolist() for name in BinTable.__dataclass_fields__})


def _class_table(sums: BinSums) -> ClassTable:
    return ClassTable(
        frequency=(sums.hits.sum(-1).double() / sums.samples).tolist(),
        mean_probability=(sums.confidence.sum(-1) / sums.samples).tolist(),
        ece=expected_calibration_error(sums).tolist(),
        floor=noise_floor(sums).tolist(),
    )
