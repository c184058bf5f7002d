"""One call from predictions in memory to `Scores`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics.columns import label_column
from counterpoise.metrics.inputs import PredictionTable, prediction_table
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.protocol import Metric
from counterpoise.metrics.scores import Scores, Source
from counterpoise.metrics.state import OOD, ScoreState


def evaluate(
    *,
    logits: Any = None,
    probabilities: Any = None,
    confidence: Any = None,
    labels: Any = None,
    correct: Any = None,
    multilabel: bool = False,
    valid: Any = None,
    ood_logits: Any = None,
    ood_probabilities: Any = None,
    ood_confidence: Any = None,
    score: str = "max_softmax",
    bins: int = DEFAULT_BINS,
    level: float = DEFAULT_LEVEL,
    class_names: Sequence[Any] | None = None,
    metrics: Sequence[Metric] = (),
) -> Scores:
    """Measure accuracy, calibration, and what confidence is worth.

    Takes tensors, arrays, lists, tables and columns of pandas, polars, Arrow and Hugging Face, and what scikit-learn,
    XGBoost and LightGBM predict.

    Args:
        logits: `[..., K]`; give these or `probabilities`. `[...]` or `[..., 1]` are of the class 1 of two.
        probabilities: `[..., K]`, rows summing to 1; `[...]` or `[..., 1]` are P(y = 1). The names of a table's columns
            are those of the classes.
        confidence: `[...]` of the predicted class, where no more is known; give `correct` instead of labels.
        labels: class indices `[...]` or `[..., 1]`, or text that is one of the class names.
        correct: boolean `[...]`, whether each prediction is right.
        multilabel: several labels may apply to a sample: predictions are `[n, L]`, one for each label, and labels
            `[n, L]`, 0 or 1. The scores are of all decisions together, with a group for each label.
        valid: boolean `[...]`; rows where it is False are left out.
        ood_logits: `[..., K]` predictions for OOD samples.
        ood_probabilities: the same as probabilities; give the kind that the other predictions have.
        ood_confidence: the same where no more is known.
        score: confidence score for misclassification and OOD detection (see `counterpoise.functional.confidence`).
        bins: number of calibration bins.
        level: nominal coverage of the intervals.
        class_names: one for each class, in the order of the columns.
        metrics: in addition to the standard ones.

    >>> scores = evaluate(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], labels=[0, 1, 1])
    >>> round(scores["accuracy"].value, 3), round(scores["ece"].value, 3)
    (0.667, 0.3)
    >>> evaluate(confidence=[0.9, 0.8, 0.6], correct=[True, True, False]).missing["nll"]
    'only the confidence of the predicted class is known; it needs the probabilities of all classes'
    """
    if confidence is None and labels is None:
        raise ValueError("labels are needed; pass labels=")
    if confidence is not None and correct is None and labels is None:
        raise ValueError("whether each prediction is right is needed; pass correct=")
    options = ScoreOptions(score=score, bins=bins, level=level, metrics=tuple(metrics), clustered=bool(multilabel))
    table = prediction_table(
        logits=logits,
        probabilities=probabilities,
        confidence=confidence,
        labels=labels,
        correct=correct,
        multilabel=multilabel,
        valid=valid,
        class_names=class_names,
    )
    given = [each for each in (ood_logits, ood_probabilities, ood_confidence) if each is not None]
    if multilabel and given:
        raise ValueError("OOD detection is of samples, multilabel scores of single labels; leave the OOD samples out")
    ood = _ood_table(table, ood_logits, ood_probabilities, ood_confidence) if given else None
    if table.valid is not None and not bool(table.valid.any()):
        raise ValueError("valid= is False for every row: there is nothing to measure")
    state = ScoreState(classes=table.classes, options=options)
    for batch, kept in table.batches():
        rows = kept.cpu().numpy()
        columns = label_column(rows % table.decisions, table.decisions, table.class_names) if multilabel else {}
        # Models are not compared: the place of a sample is its id.
        state.add(batch, (rows // table.decisions).astype(np.uint64), columns=columns)
    if ood is not None:
        for batch, kept in ood.batches():
            state.add_ood(OOD, batch, kept.cpu().numpy().astype(np.uint64))
    return replace(
        state.compute(),
        class_names=None if table.class_names is None or multilabel else list(table.class_names),
        source=Source(notices=state.notices()),
    )


def _ood_table(table: PredictionTable, logits: Any, probabilities: Any, confidence: Any) -> PredictionTable:
    ood = prediction_table(logits=logits, probabilities=probabilities, confidence=confidence)
    if ood.kind != table.kind:
        raise ValueError(
            f"the predictions are {table.kind}, so those for OOD samples must be too: pass ood_{table.kind}="
        )
    if ood.classes != table.classes:
        raise ValueError(f"predictions for OOD samples have {ood.classes} classes, the others {table.classes}")
    return ood
