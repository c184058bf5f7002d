"""One call from predictions in memory to `Scores`, and from those of several models to their comparison."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.functional.paired import power_sums
from counterpoise.metrics.comparison import PAIRED, Evaluation, paired_values
from counterpoise.metrics.comparison import compare as compare_states
from counterpoise.metrics.inputs import PredictionTable, prediction_table
from counterpoise.metrics.keys import Keys, sample_keys
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.protocol import Metric
from counterpoise.metrics.scores import Scores, Source
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
    options = ScoreOptions(score=score, bins=bins, level=level, metrics=tuple(metrics))
    table, ood = _tables(logits, probabilities, labels, valid, ood_logits, ood_probabilities)
    names = _class_names(class_names, table.values.shape[-1])
    # Neither models nor temperatures are compared: any keys will do.
    state, _ = _measured(table, ood, options, keys=lambda rows: np.zeros(rows, np.uint64))
    return replace(state.compute(), class_names=names)


class ModelPredictions(TypedDict, total=False):
    """What one model says of the samples: `logits` or `probabilities`, and likewise for OOD samples."""

    logits: Any
    probabilities: Any
    ood_logits: Any
    ood_probabilities: Any


def compare(
    models: Mapping[str, ModelPredictions],
    *,
    labels: Any,
    valid: Any = None,
    score: str = "max_softmax",
    bins: int = DEFAULT_BINS,
    level: float = DEFAULT_LEVEL,
    class_names: Sequence[str] | None = None,
    metrics: Sequence[Metric] = (),
) -> Evaluation:
    """Measure several models on the same samples, and their paired differences.

    Args:
        models: by name, what each says of the samples, all in the same order; OOD samples likewise.
        labels: class indices `[...]`.
        valid: as in `evaluate`, and so are the others.
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
    options = ScoreOptions(score=score, bins=bins, level=level, metrics=tuple(metrics), paired=len(models) > 1)
    found, states, values, sizes = list[Scores](), list[ScoreState](), list[Tensor](), dict[str, tuple[int, int]]()
    for name, own in models.items():
        try:
            table, ood = _tables(
                own.get("logits"),
                own.get("probabilities"),
                labels,
                valid,
                own.get("ood_logits"),
                own.get("ood_probabilities"),
            )
            sizes[name] = table.values.shape[-1], 0 if ood is None else len(ood.values)
            names = _class_names(class_names, sizes[name][0])
            state, of_samples = _measured(table, ood, options, keys=lambda rows: sample_keys(np.arange(rows)))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        states.append(state)
        values.append(of_samples)
        found.append(replace(state.compute(), class_names=names, source=Source(name=str(name))))
    first = next(iter(sizes))
    for name, size in sizes.items():
        if size != sizes[first]:
            raise ValueError(
                f"{name!r} has {size[0]} classes and {size[1]} OOD samples, {first!r} has {sizes[first][0]} and "
                f"{sizes[first][1]}: models are compared on the same samples"
            )
    if len(models) == 1:
        return Evaluation(found)
    pairs = {
        (one, other): {str(key): power_sums(values[other][i] - values[one][i]) for i, key in enumerate(PAIRED)}
        for one, other in combinations(range(len(found)), 2)
    }
    return Evaluation(found, compare_states(found, [state.headline for state in states], level=level, pairs=pairs))


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


def _tables(
    logits: Any, probabilities: Any, labels: Any, valid: Any, ood_logits: Any, ood_probabilities: Any
) -> tuple[PredictionTable, PredictionTable | None]:
    if labels is None:
        raise ValueError("labels are needed; pass labels=")
    table = prediction_table(logits=logits, probabilities=probabilities, labels=labels, valid=valid)
    if table.valid is not None and not bool(table.valid.any()):
        raise ValueError("valid= is False for every row: there is nothing to measure")
    return table, _ood_table(table, ood_logits, ood_probabilities)


def _class_names(names: Sequence[str] | None, classes: int) -> list[str] | None:
    if names is None:
        return None
    if len(names) != classes:
        raise ValueError(f"there are {len(names)} class_names for {classes} classes")
    return [str(name) for name in names]


def _measured(
    table: PredictionTable, ood: PredictionTable | None, options: ScoreOptions, *, keys: Callable[[int], Keys]
) -> tuple[ScoreState, Tensor]:
    """The state of all samples, and where models are compared what is known of each, `[len(PAIRED), n]`."""
    state, values = ScoreState(classes=table.values.shape[-1], options=options), list[Tensor]()
    own, done = keys(len(table.values)), 0
    own = own if table.valid is None else own[table.valid.cpu().numpy()]
    for batch in table.batches():
        state.add(batch, own[done : done + len(batch)], columns={})
        done += len(batch)
        if options.paired:
            values.append(torch.stack(paired_values(batch)))
    if ood is not None:
        own, done = keys(len(ood.values)), 0
        for batch in ood.batches():
            state.add_ood(OOD, batch, own[done : done + len(batch)])
            done += len(batch)
    return state, torch.cat(values, -1) if values else torch.empty(0)


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
