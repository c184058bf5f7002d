"""Coverage of the intervals of multilabel problems, whose decisions about one sample depend on each other.

Label l applies to sample i with probability `sigmoid(t_il + dependence u_i)`, where the model knows t_il and not u_i,
standard normal: what it gets wrong about one label it gets wrong about the others. It says `sigmoid(scale t_il)`; a
second model sees t_il with noise of its own.
"""

import math
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from benchmarks.reporting import progress
from counterpoise.metrics import compare
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.in_memory import ModelPredictions

LABELS = 6
NOISE = (0.6, 0.0)
"""Of what the two models see; the second is the one that is measured by itself."""
POPULATION = 200_000
DIFFERENCE = ", difference"


@dataclass(frozen=True)
class Problem:
    """How many samples, how dependent their labels are, and the scales of two models."""

    name: str
    samples: int
    dependence: float
    scales: tuple[float, float]


PROBLEMS = (Problem("six labels", 300, dependence=1.0, scales=(0.8, 1.3)),)


class MultilabelRow(TypedDict):
    """What the intervals of one metric, or of its difference between two models, contain."""

    model: str
    metric: str
    repetitions: int
    truth: float
    coverage: float
    width: float


def multilabel_coverage(problem: Problem, repetitions: int, *, generator: torch.Generator) -> list[MultilabelRow]:
    """A row for each metric of one model, and for each difference of two."""
    population, drawn = draw(problem, POPULATION, generator)
    truth = population_values(problem, population, drawn)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in truth}
    for repetition in range(repetitions):
        if repetition % 50 == 0:
            progress(f"multilabel: {problem.name}, {repetition} of {repetitions}")
        for name, limits in intervals(evaluated(problem, *draw(problem, problem.samples, generator))).items():
            if name in found:
                found[name].append(limits)
    return [
        MultilabelRow(
            model=problem.name,
            metric=name,
            repetitions=repetitions,
            truth=truth[name],
            coverage=sum(low <= truth[name] <= high for low, high in limits) / repetitions,
            width=sum(high - low for low, high in limits) / repetitions,
        )
        for name, limits in found.items()
    ]


def draw(problem: Problem, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What each model knows `[2, n, L]`, and whether each label applies."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logit = torch.linspace(-2.5, 1.0, LABELS, dtype=torch.float64) + 1.5 * normal(samples, LABELS) + normal(samples, 1)
    chance = torch.sigmoid(logit + problem.dependence * normal(samples, 1))
    known = torch.stack([logit + noise * normal(samples, LABELS) for noise in NOISE])
    return known, (torch.rand(samples, LABELS, generator=generator, dtype=torch.float64) < chance).long()


def evaluated(problem: Problem, known: Tensor, labels: Tensor) -> Evaluation:
    """Both models."""
    said = (scale * own for scale, own in zip(problem.scales, known, strict=True))
    models: dict[str, ModelPredictions] = {str(place): {"logits": each} for place, each in enumerate(said)}
    return compare(models, labels=labels, multilabel=True)


def intervals(evaluation: Evaluation) -> dict[str, tuple[float, float]]:
    """Of the second model, and of the second minus the first."""
    assert evaluation.comparison is not None
    scores = evaluation.models[1]
    own = scores.estimates | scores.misclassification.estimates
    (difference,) = evaluation.comparison.differences
    found = {str(key): (each.low, each.high) for key, each in own.items()}
    return found | {f"{key}{DIFFERENCE}": (each.low, each.high) for key, each in difference.estimates.items()}


def population_values(problem: Problem, known: Tensor, labels: Tensor) -> dict[str, float]:
    """Of so many samples that their noise does not matter; the debiased error stands for the plug-in one."""
    evaluation = evaluated(problem, known, labels)
    values = [
        {str(key): each.value for key, each in (scores.estimates | scores.misclassification.estimates).items()}
        for scores in evaluation.models
    ]
    for each in values:
        each["ece"] = each["debiased_ece"]
    first, second = values
    found = {key: value for key, value in second.items() if not math.isnan(evaluation.models[1][key].low)}
    assert evaluation.comparison is not None
    (difference,) = evaluation.comparison.differences
    return found | {f"{key}{DIFFERENCE}": second[key] - first[key] for key in difference.estimates}
