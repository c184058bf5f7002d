"""One call from predictions in memory to `Scores`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics.inputs import PredictionTable, prediction_table
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.protocol import Metric
from counterpoise.metrics.scores import Scores
from counterpoise.metrics.state import OOD, ScoreState


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
    metrics: Sequence[Metric] = (),
) -> Scores:
    """Measure accuracy, calibration, and what confidence is worth, from a tensor, an array or lists.

    Args:
        logits: `[..., K]`; give these or `probabilities`.
        probabilities: `[..., K]`, rows summing to 1.
        labels: class indices `[...]`.
        valid: boolean `[...]`; rows where it is False are left out.
        ood_logits: `[..., K]` predictions for OOD samples.
        ood_probabilities: the same as probabilities; give the kind that the other predictions have.
        score: confidence score for misclassification and OOD detection (see `counterpoise.functional.confidence`).
        bins: number of calibration bins.
        level: nominal coverage of the intervals.
        class_names: one for each class.
        metrics: in addition to the standard ones.

    >>> scores = evaluate(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], labels=[0, 1, 1])
    >>> round(scores["accuracy"].value, 3), round(scores["ece"].value, 3)
    (0.667, 0.3)
    """
    if labels is None:
        raise ValueError("labels are needed; pass labels=")
    options = ScoreOptions(score=score, bins=bins, level=level, metrics=tuple(metrics))
    table = prediction_table(logits=logits, probabilities=probabilities, labels=labels, valid=valid)
    ood = _ood_table(table, ood_logits, ood_probabilities)
    classes = table.values.shape[-1]
    names = None if class_names is None else [str(name) for name in class_names]
    if names is not None and len(names) != classes:
        raise ValueError(f"there are {len(names)} class_names for {classes} classes")
    if table.valid is not None and not bool(table.valid.any()):
        raise ValueError("valid= is False for every row: there is nothing to measure")
    state = ScoreState(classes=classes, options=options)
    for batch in table.batches():
        # Neither models nor temperatures are compared: any keys will do.
        state.add(batch, np.zeros(len(batch), np.uint64), columns={})
    if ood is not None:
        for batch in ood.batches():
            state.add_ood(OOD, batch, np.zeros(len(batch), np.uint64))
    return replace(state.compute(), class_names=names)


def _ood_table(table: PredictionTable, logits: Any, probabilities: Any) -> PredictionTable | None:
    if logits is None and probabilities is None:
        return None
    ood = prediction_table(logits=logits, probabilities=probabilities)
    if ood.are_logits != table.are_logits:
        kind = "logits" if table.are_logits else "probabilities"
        raise ValueError(f"the predictions are {kind}, so those for OOD samples must be too: pass ood_{kind}=")
    if ood.values.shape[-1] != table.values.shape[-1]:
        raise ValueError(
            f"predictions for OOD samples have {ood.values.shape[-1]} classes, the others {table.values.shape[-1]}"
        )
    return ood
