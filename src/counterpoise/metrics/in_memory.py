"""One call from predictions in memory to `Scores`, and from those of several models to their comparison."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, TypedDict, get_args

import numpy as np
import torch
from torch import Tensor

from counterpoise._classes import numbering
from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.functional.paired import power_sums
from counterpoise.metrics.batch import Kind
from counterpoise.metrics.columns import MARKS_OF_CORRUPTION, Column, group_rows, label_column, require_few_groups
from counterpoise.metrics.comparison import PAIRED, Evaluation, paired_values
from counterpoise.metrics.comparison import compare as compare_states
from counterpoise.metrics.headline import OOD
from counterpoise.metrics.inputs import PredictionTable, prediction_table
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.outputs import require_same_rows
from counterpoise.metrics.protocol import Metric
from counterpoise.metrics.scores import Scores, Source, label_notices
from counterpoise.metrics.state import ScoreState


def evaluate(
    *,
    logits: Any = None,
    probabilities: Any = None,
    confidence: Any = None,
    labels: Any = None,
    correct: Any = None,
    multilabel: bool = False,
    valid: Any = None,
    by: Mapping[str, Iterable[Any]] | None = None,
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
        by: columns `[n]` by name, such as `{"region": regions}`: samples of one value are a group, None is missing.
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
    own: ModelPredictions = {
        "logits": logits,
        "probabilities": probabilities,
        "confidence": confidence,
        "correct": correct,
        "ood_logits": ood_logits,
        "ood_probabilities": ood_probabilities,
        "ood_confidence": ood_confidence,
    }
    options = ScoreOptions(score=score, bins=bins, level=level, metrics=tuple(metrics), clustered=bool(multilabel))
    if confidence is not None and correct is not None and labels is not None:
        raise ValueError("beside confidence=, correct= says what is right; leave labels= out")
    table, ood = _tables(own, labels=labels, multilabel=multilabel, valid=valid, class_names=class_names)
    require_same_rows(_given(own), by or {})
    state, _ = _measured(table, ood, options, by=by)
    return _scores(state, table, name="")


class ModelPredictions(TypedDict, total=False):
    """What one model says of the samples, and likewise of OOD samples; see `evaluate`."""

    logits: Any
    probabilities: Any
    confidence: Any
    correct: Any
    ood_logits: Any
    ood_probabilities: Any
    ood_confidence: Any


def compare(
    models: Mapping[str, ModelPredictions],
    *,
    labels: Any = None,
    multilabel: bool = False,
    valid: Any = None,
    by: Mapping[str, Iterable[Any]] | None = None,
    score: str = "max_softmax",
    bins: int = DEFAULT_BINS,
    level: float = DEFAULT_LEVEL,
    class_names: Sequence[Any] | None = None,
    metrics: Sequence[Metric] = (),
) -> Evaluation:
    """Measure several models on the same samples, and their paired differences.

    Args:
        models: by name, what each says of the samples, all in the same order; OOD samples likewise.
        labels: as in `evaluate`, and so are the others.
        multilabel: several labels may apply to a sample.
        valid: rows where it is False are left out.
        by: columns by name whose values samples are grouped by.
        score: confidence score for misclassification and OOD detection.
        bins: number of calibration bins.
        level: nominal coverage of one comparison.
        class_names: one for each class.
        metrics: in addition to the standard ones.

    >>> labels = [0, 1, 1, 0] * 50
    >>> timid, bold = [[0.6, 0.4], [0.4, 0.6]] * 100, [[0.9, 0.1], [0.1, 0.9]] * 100
    >>> found = compare({"timid": {"probabilities": timid}, "bold": {"probabilities": bold}}, labels=labels)
    >>> print(found["bold"]["nll"])
    1.204 (1.051 to 1.357)
    >>> print(found.comparison.differences[0].estimates["nll"])
    0.4904 (0.3648 to 0.6161)
    """
    _require_names(models)
    several = len(models) > 1
    options = ScoreOptions(
        score=score, bins=bins, level=level, metrics=tuple(metrics), paired=several, clustered=bool(multilabel)
    )
    found, states, values, sizes = list[Scores](), list[ScoreState](), list[Tensor](), dict[str, tuple[int, int]]()
    for name, own in models.items():
        try:
            table, ood = _tables(own, labels=labels, multilabel=multilabel, valid=valid, class_names=class_names)
            require_same_rows(_given(own), by or {})
            state, of_samples = _measured(table, ood, options, by=by)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        sizes[name] = table.classes, 0 if ood is None else len(ood.values)
        states.append(state)
        values.append(of_samples)
        found.append(_scores(state, table, name=str(name)))
    first = next(iter(sizes))
    for name, size in sizes.items():
        if (size[0] != sizes[first][0] and 1 not in (size[0], sizes[first][0])) or size[1] != sizes[first][1]:
            raise ValueError(
                f"{name!r} has {size[0]} classes and {size[1]} OOD samples, {first!r} has {sizes[first][0]} and "
                f"{sizes[first][1]}: models are compared on the same samples"
            )
    notices = [f"{each.source.name}: {notice}" for each in found for notice in each.source.notices]
    if not several:
        return Evaluation(found, notices=notices)
    pairs = None
    if not multilabel:  # decisions about one sample are not independent
        known = [(place, str(key)) for place, key in enumerate(PAIRED) if all(key in each for each in found)]
        pairs = {
            (one, other): {key: power_sums(values[other][:, place] - values[one][:, place]) for place, key in known}
            for one, other in combinations(range(len(found)), 2)
        }
    headlines = [state.headline for state in states]
    comparison = compare_states(found, headlines, level=level, pairs=pairs, clustered=options.clustered)
    return Evaluation(found, comparison, notices)


def _require_names(models: Any) -> None:
    """Refuse what does not say for each model whether it holds logits or probabilities."""
    if not isinstance(models, Mapping) or not models:
        raise ValueError("models is a dictionary by name, such as {'ce': {'logits': ...}, 'mte': {'logits': ...}}")
    known = list(ModelPredictions.__annotations__)
    for name, own in models.items():
        if not isinstance(own, Mapping) or not set(own) <= set(known):
            raise ValueError(
                f"say what {name!r} holds, logits or probabilities, which are never told apart by their values: "
                f"{{{name!r}: {{'logits': ...}}}} (its names may be {', '.join(known)})"
            )


def _given(own: ModelPredictions) -> Any:
    """The predictions, of whatever kind they are."""
    return next((each for each in (own.get(kind) for kind in get_args(Kind)) if each is not None), None)


def _tables(
    own: ModelPredictions, *, labels: Any, multilabel: bool, valid: Any, class_names: Sequence[Any] | None
) -> tuple[PredictionTable, PredictionTable | None]:
    confidence, correct = own.get("confidence"), own.get("correct")
    if confidence is None and labels is None:
        raise ValueError("labels are needed; pass labels=")
    if confidence is not None and correct is None and labels is None:
        raise ValueError("whether each prediction is right is needed; pass correct=")
    table = prediction_table(
        logits=own.get("logits"),
        probabilities=own.get("probabilities"),
        confidence=confidence,
        labels=labels if correct is None else None,
        correct=correct,
        multilabel=multilabel,
        valid=valid,
        class_names=class_names,
    )
    given = [own.get("ood_logits"), own.get("ood_probabilities"), own.get("ood_confidence")]
    ood = None
    if any(each is not None for each in given):
        if multilabel:
            raise ValueError(
                "OOD detection is of samples, multilabel scores of single labels; leave the OOD samples out"
            )
        ood = _ood_table(table, *given)
    if table.valid is not None and not bool(table.valid.any()):
        raise ValueError("valid= is False for every row: there is nothing to measure")
    return table, ood


def _measured(
    table: PredictionTable,
    ood: PredictionTable | None,
    options: ScoreOptions,
    *,
    by: Mapping[str, Iterable[Any]] | None,
) -> tuple[ScoreState, Tensor]:
    """The state of all samples, and where models are compared what is known of each, `[n, len(PAIRED)]`."""
    state, values = ScoreState(classes=table.classes, options=options), list[Tensor]()
    several = table.decisions > 1
    if several and "label" in (by or {}):
        raise ValueError("by: decisions about several labels have a column 'label' already; call yours by another name")
    groups = _groups(by or {}, len(table.values) // table.decisions)
    for batch, kept in table.batches():
        rows = kept.cpu().numpy()
        columns = {name: Column(each.codes[rows // table.decisions], each.values) for name, each in groups.items()}
        if several:
            columns |= label_column(rows % table.decisions, table.decisions, table.class_names)
        # Samples are the same by their place.
        state.add(batch, (rows // table.decisions).astype(np.uint64), columns=columns)
        if options.paired:
            values.append(paired_values(batch))
    if ood is not None:
        for batch, kept in ood.batches():
            state.add_ood(OOD, batch, kept.cpu().numpy().astype(np.uint64))
    return state, torch.cat(values) if values else torch.empty(0)


def _groups(by: Mapping[str, Iterable[Any]], samples: int) -> dict[str, Column]:
    """Each column as codes."""
    found = {}
    if marks := set(by) & set(MARKS_OF_CORRUPTION):
        name = min(marks)
        raise ValueError(
            f"by: in files a column {name!r} tells corrupted samples from those that the scores are of; call it by "
            f"another name, such as by={{'{name}_': ...}}, or give `ScoreState.update` columns={{{name!r}: ...}}"
        )
    for name, values in by.items():
        found[name] = Column.of(values)
        if len(found[name].codes) != samples:
            raise ValueError(
                f"by: {name!r} must have a value for each of {samples} samples, got {len(found[name].codes)}"
            )
    require_few_groups(group_rows(found, samples)[0], unbounded=())
    return found


def _scores(state: ScoreState, table: PredictionTable, *, name: str) -> Scores:
    names = None if table.class_names is None or table.decisions > 1 else list(table.class_names)
    kind = "multilabel" if state.options.clustered else table.kind
    scores = state.compute()
    numbered = None if names is None or numbering(names) is not None else names
    source = Source(name=name, kind=kind, notices=[*state.notices(), *label_notices(scores, numbered)])
    return replace(scores, class_names=names, source=source)


def _ood_table(table: PredictionTable, logits: Any, probabilities: Any, confidence: Any) -> PredictionTable:
    ood = prediction_table(logits=logits, probabilities=probabilities, confidence=confidence)
    if ood.kind != table.kind:
        raise ValueError(
            f"the predictions are {table.kind}, so those for OOD samples must be too: pass ood_{table.kind}="
        )
    if ood.classes != table.classes:
        raise ValueError(f"predictions for OOD samples have {ood.classes} classes, the others {table.classes}")
    return ood
