"""Coverage of the intervals of one model that hardly errs: means, top-label and classwise calibration errors.

A sample's label adds `separation` to one of K standard normal logits, which the model multiplies by `scale`. The true
probabilities are the softmax at the scale `separation`: beyond it a model is overconfident. It may prefer every other
class by `shift`, and is then right less often in these than it says, and more often in the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from benchmarks.reporting import progress
from counterpoise.functional.calibration import bin_index, sums_by_index
from counterpoise.functional.classwise import classwise_sums
from counterpoise.functional.intervals import Interval, calibration_error_interval, mean_gap_interval, mean_interval

BINS = 15
BLOCK = 1_000_000
"""Probabilities that are drawn at a time."""
KINDS = 2
"""Of classes: preferred or not."""


@dataclass(frozen=True)
class Accurate:
    """A model of which `samples` are seen."""

    name: str
    classes: int
    samples: int
    separation: float
    scale: float
    shift: float = 0.0


ACCURATE = (
    Accurate("99.7%, calibrated", classes=10, samples=2_000, separation=4.8, scale=4.8),
    Accurate("99.6%, saturated", classes=10, samples=2_000, separation=4.7, scale=30.0),
    Accurate("99.5%, saturated", classes=2, samples=1_000, separation=3.6, scale=20.0),
    Accurate("99.7%, overconfident", classes=10, samples=2_000, separation=4.8, scale=8.0),
    Accurate("98.8%, calibrated", classes=10, samples=2_000, separation=4.15, scale=4.15),
    Accurate("99.9%, calibrated", classes=10, samples=2_000, separation=5.2, scale=5.2),
    Accurate("99.8%, saturated", classes=100, samples=10_000, separation=5.65, scale=40.0),
    Accurate("99.1%, prefers half", classes=100, samples=10_000, separation=5.25, scale=9.0, shift=4.0),
)


class FewErrorsRow(TypedDict):
    """How often the interval of a metric holds the population's value."""

    model: str
    metric: str
    classes: int
    samples: int
    errors: float
    repetitions: int
    truth: float
    coverage: float
    width: float


def few_errors_coverage(
    model: Accurate, repetitions: int, *, population: int, generator: torch.Generator
) -> list[FewErrorsRow]:
    """A row for each metric."""
    progress(f"few errors: {model.name}, K = {model.classes}, N = {model.samples}")
    truth = true_values(model, population, generator)
    found: dict[str, list[Interval]] = {name: [] for name in truth}
    wrong = 0
    for _ in range(repetitions):
        p, _, label = draw(model, model.samples, generator)
        wrong += int((p.argmax(-1) != label).sum())
        for name, interval in intervals(p, label).items():
            found[name].append(interval)
    return [
        FewErrorsRow(
            model=model.name,
            metric=name,
            classes=model.classes,
            samples=model.samples,
            errors=wrong / repetitions,
            repetitions=repetitions,
            truth=truth[name],
            coverage=sum(low <= truth[name] <= high for low, high in limits) / repetitions,
            width=sum(high - low for low, high in limits) / repetitions,
        )
        for name, limits in found.items()
    ]


def draw(model: Accurate, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of the model and true ones, `[N, K]`, and labels."""
    label = torch.randint(model.classes, (samples,), generator=generator)
    seen = torch.randn(samples, model.classes, generator=generator, dtype=torch.float64)
    seen[torch.arange(samples), label] += model.separation
    preferred = model.shift * (torch.arange(model.classes) % KINDS)
    return torch.softmax(model.scale * seen + preferred, -1), torch.softmax(model.separation * seen, -1), label


def intervals(p: Tensor, label: Tensor) -> dict[str, Interval]:
    """Of one sample, every metric's."""
    confidence, prediction = p.max(-1)
    top_label = sums_by_index(bin_index(confidence, BINS), confidence, prediction == label, BINS)
    of_label = p.gather(-1, label.unsqueeze(-1)).squeeze(-1)
    nll, brier = -of_label.log(), p.square().sum(-1) - 2 * of_label + 1
    means = {
        name: mean_interval(float(values.sum()), float((values**2).sum()), float((values**3).sum()), len(label))
        for name, values in (("nll", nll), ("brier", brier))
    }
    return means | {
        "mean_gap": mean_gap_interval(top_label),
        "ece": calibration_error_interval(top_label),
        "classwise_ece": calibration_error_interval(classwise_sums(p, label, bins=BINS)),
    }


def true_values(model: Accurate, samples: int, generator: torch.Generator) -> dict[str, float]:
    """The population's values, by true probabilities instead of labels; classes of one kind do not differ."""
    totals = {name: torch.zeros((), dtype=torch.float64) for name in ("nll", "brier", "mean_gap")}
    top_label, classwise = (torch.zeros(size * BINS, dtype=torch.float64) for size in (1, KINDS))
    kind = torch.arange(model.classes) % KINDS
    for block in blocks(samples, BLOCK // model.classes):
        p, true, _ = draw(model, block, generator)
        confidence, prediction = p.max(-1)
        residual = true.gather(-1, prediction.unsqueeze(-1)).squeeze(-1) - confidence
        # Of a saturated model p may be 0 where the true probability is not; drawn labels would find the same.
        totals["nll"] -= (true * p.clamp(min=torch.finfo(p.dtype).tiny).log()).sum()
        totals["brier"] += (p.square() - 2 * p * true + true).sum()
        totals["mean_gap"] -= residual.sum()
        top_label.index_add_(0, bin_index(confidence, BINS), residual)
        classwise.index_add_(0, (kind * BINS + bin_index(p, BINS)).flatten(), (true - p).flatten())
    errors = {"ece": top_label.abs().sum(), "classwise_ece": classwise.abs().sum() / model.classes}
    return {name: float(total / samples) for name, total in (totals | errors).items()}


def blocks(total: int, size: int) -> Iterator[int]:
    """Sizes that add up to the total."""
    for start in range(0, total, size):
        yield min(size, total - start)
