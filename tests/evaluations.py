"""Small evaluations with everything in them, and the raw predictions that they were measured on."""

import json
import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from counterpoise import evaluate
from counterpoise.metrics import Performance, ScoreOptions, Scores, ScoreState, Stream, TopLabelCalibration
from counterpoise.metrics.comparison import Evaluation, compare
from counterpoise.metrics.scores import CoverageTable, GroupScores, GuaranteeTrial, Source
from counterpoise.scoring.guarantees import try_guarantees
from counterpoise.scoring.recalibration import compare_scaled, try_temperature

SAMPLES, CLASSES, BINS, LEVEL = 1500, 5, 10, 0.9
CLASS_NAMES = ["cat", "dog", "horse", "ship", "truck"]
FOREIGN_SETS = ("svhn", "dtd")
CORRUPTIONS = ("fog", "noise", "blur")
SHARPNESS = (3.0, 1.6, 0.9)
"""How many times too large the logits of each model are."""


@dataclass(frozen=True)
class Raw:
    """Logits and labels of one model, with logits for each set of foreign samples."""

    logits: torch.Tensor
    labels: torch.Tensor
    foreign: dict[str, torch.Tensor]


@cache
def raw(model: int) -> Raw:
    """Predictions of one of the models, for samples that all of them share."""
    shared, own = torch.Generator().manual_seed(7), torch.Generator().manual_seed(100 + model)
    truth = 1.5 * torch.randn(SAMPLES, CLASSES, generator=shared)
    labels = torch.multinomial(torch.softmax(truth, -1), 1, generator=shared).squeeze(-1)
    foreign = {name: torch.randn(300, CLASSES, generator=shared) * (1 + i) for i, name in enumerate(FOREIGN_SETS)}
    logits = SHARPNESS[model] * (truth + 0.4 * model * torch.randn(truth.shape, generator=own))
    return Raw(logits, labels, {name: SHARPNESS[model] * values for name, values in foreign.items()})


def group(domain, corruption, severity, logits, labels) -> GroupScores:
    streams = Stream(Performance()), Stream(TopLabelCalibration(bins=BINS))
    for stream in streams:
        stream.update(logits=logits, labels=labels)
    first, second = (stream.compute(level=LEVEL) for stream in streams)
    return GroupScores(domain, corruption, severity, len(labels), first | second)


@cache
def scores(model: int = 0) -> Scores:
    """Everything about one model: two foreign sets, corruptions, domains, a temperature, names and a source."""
    data, half = raw(model), SAMPLES // 2
    options = {"logits": data.logits, "labels": data.labels, "bins": BINS, "level": LEVEL, "class_names": CLASS_NAMES}
    each = [evaluate(**options, ood_logits=values) for values in data.foreign.values()]
    groups = [group(None, None, 0, data.logits, data.labels)]
    for place, corruption in enumerate(CORRUPTIONS):
        for severity in (1, 2, 3):
            rows = slice(place * 300, place * 300 + 300)
            groups.append(group(None, corruption, severity, data.logits[rows] * (1 + severity), data.labels[rows]))
    groups += [group("town", None, None, data.logits[:half], data.labels[:half])]
    groups += [group("country", None, None, data.logits[half:], data.labels[half:])]
    return replace(
        each[0],
        ood={name: one.ood["ood"] for name, one in zip(data.foreign, each, strict=True)},
        groups=groups,
        recalibration=try_temperature(_state(model).headline.trial, options=_OPTIONS),
        guarantees=_with_groups(try_guarantees(_state(model).headline.trial, alpha=0.2, risk=0.1), len(groups)),
        source=source(model),
    )


def _with_groups(tried: GuaranteeTrial | None, groups: int) -> GuaranteeTrial:
    """The last two groups have samples, of the first of which too few sets hold the label."""
    assert tried is not None
    clean = [0] * (groups - 2)
    table = CoverageTable([*clean, 500, 500], [*clean, 100, 490], [*clean, 700, 900])
    return replace(tried, by_group=table)


def source(model: int) -> Source:
    return Source(
        name=f"net {model}",
        path=f"/data/net{model}.parquet",
        digest="ab" * 32,
        kind="logits",
        members=4,
        model="net",
        method="ce",
        seed=model,
        config_digest="cd" * 8,
        data_sets=["cifar10"],
        splits=["test"],
        versions={"torch": "2.8"},
        notices=["a notice of the source"],
    )


@cache
def evaluation(models: int = 1) -> Evaluation:
    """The first so many models, compared where there are several."""
    found = [scores(model) for model in range(models)]
    notices = ["12 rows without a label were left out"]
    if models == 1:
        return Evaluation(found, None, notices)
    headlines = [_state(model).headline for model in range(models)]
    scaled = compare_scaled([each.trial for each in headlines], found, options=_OPTIONS)
    return Evaluation(found, compare(found, headlines, level=LEVEL), notices, scaled)


_OPTIONS = ScoreOptions(bins=BINS, level=LEVEL, paired=True)


@cache
def _state(model: int) -> ScoreState:
    data, state = raw(model), ScoreState(classes=CLASSES, options=_OPTIONS)
    state.update(logits=data.logits, labels=data.labels)
    for name, values in data.foreign.items():
        state.update(logits=values, ids=np.arange(len(values)), ood=name)
    return state


def renamed(scores, name, *, foreign=None):
    """The scores with one name wherever a figure shows one."""
    ood = {f"{foreign or name}{index or ''}": ranking for index, ranking in enumerate(scores.ood.values())}
    groups = [replace(g, corruption=g.corruption and f"{name}{g.corruption}") for g in scores.groups]
    return replace(
        scores,
        source=replace(scores.source, name=name),
        class_names=[name] * scores.classes,
        ood=ood,
        groups=groups,
    )


EDGES = (
    "perfect", "all wrong", "two classes", "one bin", "three samples", "one sample", "certain and wrong", "unnamed",
    "energy", "entropy", "corruptions without severity", "severities without corruption", "one severity",
    "clean alone", "domains alone", "domains with severities", "domain without corruption", "thousand classes",
)  # fmt: skip


@cache
def edge_cases() -> dict[str, Scores]:
    """Scores at the borders of what can be measured."""
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(4) / 2, size=300)
    right, binary = p.argmax(1), rng.uniform(size=120)
    two = np.stack([binary, 1 - binary], -1)
    one_bin = np.tile([[0.55, 0.45]], (50, 1))
    many = 4 * rng.normal(size=(400, 1000)).astype(np.float32)
    logits = rng.normal(size=(300, 4))
    labels = rng.integers(4, size=300)
    plain = evaluate(logits=logits, labels=labels)
    parts = [slice(0, 100), slice(100, 200), slice(200, 300)]

    def grouped(*keys):
        pairs = [(torch.from_numpy(logits[rows]), torch.from_numpy(labels[rows])) for rows in parts]
        return replace(plain, groups=[group(*key, *pair) for key, pair in zip(keys, pairs, strict=False)])

    cases = {
        "perfect": evaluate(probabilities=p, labels=right, ood_probabilities=p[:20]),
        "all wrong": evaluate(probabilities=p, labels=(right + 1) % 4),
        "two classes": evaluate(probabilities=two, labels=rng.integers(2, size=120)),
        "one bin": evaluate(probabilities=one_bin, labels=np.arange(50) % 2, bins=5),
        "three samples": evaluate(probabilities=p[:3], labels=[0, 1, 2]),
        "one sample": evaluate(probabilities=p[:1], labels=[0]),
        "certain and wrong": evaluate(probabilities=[[1.0, 0.0], [0.3, 0.7]], labels=[1, 1]),
        "unnamed": plain,
        "energy": evaluate(logits=logits, labels=labels, ood_logits=logits[:40] / 3, score="energy"),
        "entropy": evaluate(logits=logits, labels=labels, score="negative_entropy"),
        "corruptions without severity": grouped((None, "fog", None), (None, "blur", None), (None, None, None)),
        "severities without corruption": grouped((None, None, 0), (None, None, 1), (None, None, 2)),
        "one severity": grouped((None, "fog", 3)),
        "clean alone": grouped((None, None, 0)),
        "domains alone": grouped(("town", None, None), ("country", None, None)),
        "domains with severities": grouped(("town", "fog", 1), ("country", "fog", 1), ("town", None, 0)),
        "domain without corruption": grouped(("town", None, 0), ("town", None, 2)),
        "thousand classes": evaluate(logits=many, labels=rng.integers(1000, size=400)),
    }
    assert tuple(cases) == EDGES
    return cases


def every_estimate(evaluation) -> dict[str, tuple[float, float, float]]:
    found = {}

    def walk(value: object, place: str) -> None:
        if isinstance(value, dict) and {"value", "low", "high"} <= set(value):
            found[place] = tuple(math.nan if value[name] is None else value[name] for name in ("value", "low", "high"))
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{place}/{key}")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                walk(item, f"{place}/{index}")

    document = json.loads(evaluation.to_json())
    walk(document["models"], "models")
    walk(document["comparison"], "comparison")
    return found
