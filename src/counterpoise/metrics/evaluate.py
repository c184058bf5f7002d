"""One call from predictions to `Scores`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics.accumulate import ScoreAccumulator
from counterpoise.metrics.inputs import PredictionBatch, PredictionTable, prediction_table
from counterpoise.metrics.scores import Scores

FOREIGN = "foreign"
"""Name of a set of foreign samples that has none of its own."""

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
    class_names: Sequence[str] | None = None,
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
        class_names: one for each class.

    >>> scores = evaluate(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], labels=[0, 1, 1])
    >>> round(scores["accuracy"].value, 3), round(scores["ece"].value, 3)
    (0.667, 0.3)
    """
    if labels is None:
        raise ValueError("labels are needed; pass labels=")
    table = prediction_table(logits=logits, probabilities=probabilities, labels=labels, valid=valid)
    foreign = _foreign_table(table, ood_logits, ood_probabilities)
    classes = table.values.shape[-1]
    names = None if class_names is None else [str(name) for name in class_names]
    if names is not None and len(names) != classes:
        raise ValueError(f"there are {len(names)} class_names for {classes} classes")
    if table.valid is not None and not bool(table.valid.any()):
        raise ValueError("valid= is False for every row: there is nothing to measure")
    accumulator = ScoreAccumulator(classes=classes, score=score, bins=bins, level=level)
    for batch in blocks(table):
        accumulator.update(batch)
    if foreign is not None:
        for batch in blocks(foreign):
            accumulator.update_foreign(FOREIGN, batch)
    return replace(accumulator.compute(), class_names=names)


def blocks(table: PredictionTable) -> Iterator[PredictionBatch]:
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
