"""How often `check` says *met* of a limit at the true value, for models that hardly err, and for pairs of these.

`python -m benchmarks.gate_few_errors [--short]`; `benchmarks.gate` has ordinary models.

Flat models say the same of every sample; others are those of `benchmarks.coverage_few_errors`, with noise of their own.
The new model may fail on a few samples that the base gets right.
"""

import argparse
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.reporting import Check, finish, progress
from counterpoise import evaluate
from counterpoise.functional.paired import power_sums
from counterpoise.metrics import Performance
from counterpoise.metrics.batch import PredictionBatch
from counterpoise.metrics.comparison import (
    PAIRED,
    Comparison,
    Difference,
    Errors,
    Evaluation,
    errors_of,
    paired_difference,
    paired_values,
)
from counterpoise.metrics.gate import Requirement, decide, interval_level
from counterpoise.metrics.inputs import prediction_table
from counterpoise.metrics.scores import Scores

LEVEL = 0.95
REPETITIONS, SHORT_REPETITIONS = 1000, 10
POPULATION, SHORT_POPULATION = 4_000_000, 200_000
"""Probabilities of each model, whose values are the true ones."""
METRICS = ("accuracy", "nll", "brier")


@dataclass(frozen=True)
class Flat:
    """Both models say `base` and `new` of the class 0 of two; it is right in a share `accuracy`, `fails` aside."""

    samples: int
    accuracy: float
    base: float
    new: float
    fails: float = 0.0
    classes: int = 2

    def draw(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities of both models `[n, 2]`, and labels."""
        wrong = torch.rand(samples, generator=generator, dtype=torch.float64) >= self.accuracy
        failing = torch.rand(samples, generator=generator) < self.fails
        base, new = (
            torch.tensor([[each, 1 - each]], dtype=torch.float64).repeat(samples, 1) for each in (self.base, self.new)
        )
        return base, torch.where(failing[:, None], new.flip(-1), new), wrong.long()

    def __str__(self) -> str:
        fails = f", new fails on {self.fails:.1%}" if self.fails else ""
        return f"n = {self.samples:,}, {self.accuracy:.1%} accurate, confidences {self.base:g} and {self.new:g}{fails}"


@dataclass(frozen=True)
class Drawn:
    """Of K logits the label's is larger by `separation`; each model adds noise and multiplies by its own scale."""

    samples: int
    classes: int
    separation: float
    base: float
    new: float
    noise: float = 0.0

    def draw(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities of both models `[n, K]`, and labels."""
        labels = torch.randint(self.classes, (samples,), generator=generator)
        seen = torch.randn(samples, self.classes, generator=generator, dtype=torch.float64)
        seen[torch.arange(samples), labels] += self.separation

        def model(scale: float) -> Tensor:
            noise = self.noise * torch.randn(seen.shape, generator=generator, dtype=torch.float64)
            return (scale * (seen + noise)).softmax(-1)

        return model(self.base), model(self.new), labels

    def __str__(self) -> str:
        scales = f"scales {self.base:g} and {self.new:g}"
        return (
            f"n = {self.samples:,}, K = {self.classes}, separation {self.separation:g}, {scales}, noise {self.noise:g}"
        )


Point = Flat | Drawn
FEW_ERRORS: tuple[Point, ...] = (
    Flat(60, 0.99, 0.98, 0.99),
    Flat(200, 0.99, 0.98, 0.99),
    Flat(10, 0.9, 0.8, 0.9),
    Flat(60, 0.99, 0.99, 0.999),
    Flat(150, 0.99, 0.99, 0.999),
    Flat(1000, 0.99, 0.99, 0.999),
    Flat(100, 0.9999, 0.99, 0.99, fails=0.027),
    Flat(100, 0.9999, 0.95, 0.95, fails=0.045),
    Flat(1000, 0.999, 0.999, 0.9999),
    Flat(300, 0.95, 0.9, 0.98),
    Flat(30, 0.9, 0.9, 0.95),
    Flat(300, 0.9, 0.9, 0.9, fails=0.003),
    Flat(1000, 0.95, 0.95, 0.95, fails=0.003),
    Drawn(10, 2, 2.0, base=2.0, new=4.0),
    Drawn(60, 2, 3.3, base=3.3, new=3.3, noise=0.1),
    Drawn(200, 2, 3.3, base=3.3, new=10.0),
    Drawn(1000, 2, 3.3, base=3.3, new=10.0),
    Drawn(60, 10, 4.15, base=4.15, new=8.0),
    Drawn(200, 10, 4.15, base=4.15, new=8.0, noise=0.1),
    Drawn(500, 10, 4.15, base=4.15, new=20.0),
    Drawn(1000, 10, 4.8, base=4.8, new=8.0),
    Drawn(1000, 10, 5.2, base=5.2, new=5.2, noise=0.2),
    Drawn(100, 10, 3.0, base=3.0, new=5.0, noise=0.2),
    Drawn(100, 100, 5.0, base=5.0, new=9.0, noise=0.1),
    Drawn(1000, 100, 5.65, base=5.65, new=9.0, noise=0.1),
)
BETTER: tuple[Point, ...] = (
    Drawn(300, 10, 3.0, base=6.0, new=3.0),
    Drawn(1000, 10, 3.0, base=6.0, new=3.0),
    Drawn(200, 10, 3.0, base=4.0, new=3.5, noise=0.3),
    Drawn(1000, 10, 3.0, base=4.0, new=3.5, noise=0.3),
)
"""Pairs whose new model has the lower NLL: how often `nll <= base` is met, which may not become rare."""
BETTER_WITH_FEW_ERRORS = Drawn(1000, 10, 4.15, base=6.0, new=4.15, noise=0.2)
"""About 13 errors, sometimes fewer than 10: what the room for errors costs is measured, and has no limit."""


def main() -> None:
    """Simulate, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="few repetitions, and looser limits for them")
    parser.add_argument("--repetitions", type=int, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    repetitions = options.repetitions or (SHORT_REPETITIONS if options.short else REPETITIONS)
    population = SHORT_POPULATION if options.short else POPULATION
    generator, error = torch.Generator().manual_seed(1), 3 * (0.05 * 0.95 / repetitions) ** 0.5
    few = {
        str(point): met_at_the_truth(point, repetitions, population=population, generator=generator)
        for point in FEW_ERRORS
    }
    both = (*BETTER, BETTER_WITH_FEW_ERRORS)
    better = {str(point): met_by_the_better(point, repetitions, generator=generator) for point in both}
    figures = {
        "repetitions": repetitions,
        "met at the boundary": few,
        "nll <= base met by the better model, and by the normal interval": better,
    }
    checks = [
        Check(f"met at the boundary: {point}: {rule}", share, at_most=0.05 + error)
        for point, shares in few.items()
        for rule, share in shares.items()
    ]
    checks += [
        Check(f"met by the better model: {point}", met, at_least=0.8 * normal - error)
        for point, (met, normal) in better.items()
        if point != str(BETTER_WITH_FEW_ERRORS)
    ]
    finish("python -m benchmarks.gate_few_errors", figures, checks)


def met_at_the_truth(
    point: Point, repetitions: int, *, population: int, generator: torch.Generator
) -> dict[str, float]:
    """Of each requirement whose limit is the true value, how often it is met."""
    progress(f"few errors: {point}")
    level = interval_level(1, level=LEVEL)
    known = evaluation(*point.draw(population // point.classes, generator), level=level)
    rules = [_rule(metric, known.models[1][metric].value, relative=False) for metric in METRICS]
    assert known.comparison is not None
    true = known.comparison.differences[0].estimates
    rules += [_rule(metric, true[metric].value, relative=True) for metric in METRICS]
    decided: dict[object, list[bool]] = {}
    met = [0] * len(rules)
    for _ in range(repetitions):
        base, new, labels = point.draw(point.samples, generator)
        seen = _seen(point, new, labels)
        if seen not in decided:
            found = evaluation(base, new, labels, level=level)
            decided[seen] = [decide(found, [rule], level=LEVEL).outcome == "met" for rule in rules]
        met = [count + each for count, each in zip(met, decided[seen], strict=True)]
    return {str(replace(rule, limit=0.0)): count / repetitions for rule, count in zip(rules, met, strict=True)}


def met_by_the_better(point: Point, repetitions: int, *, generator: torch.Generator) -> tuple[float, float]:
    """How often `nll <= base` is met by the interval of `check`, and by the normal one."""
    rule, level = Requirement.parsed("nll <= base"), interval_level(1, level=LEVEL)
    met = normal = 0
    for _ in range(repetitions):
        base, new, labels = point.draw(point.samples, generator)
        met += decide(evaluation(base, new, labels, level=level), [rule], level=LEVEL).outcome == "met"
        difference = (base.log() - new.log()).gather(-1, labels[:, None])
        normal += float(difference.mean() + 1.6449 * difference.std() / len(labels) ** 0.5) <= 0
    return met / repetitions, normal / repetitions


def _seen(point: Point, new: Tensor, labels: Tensor) -> object:
    """What a decision depends on: of flat models, how often each outcome was seen; otherwise everything."""
    if isinstance(point, Drawn):
        return object()
    return tuple(torch.bincount(labels + 2 * (new[:, 0] == point.new), minlength=4).tolist())


def evaluation(base: Tensor, new: Tensor, labels: Tensor, *, level: float) -> Evaluation:
    """What `compare` gives, of the metrics that are asked for alone: it resamples no ranks."""
    batches = [prediction_table(probabilities=each, labels=labels).checked_rows() for each in (base, new)]
    (first, of_first), (second, of_second) = (_scores(each, level=level) for each in batches)
    values = paired_values(batches[1]) - paired_values(batches[0])
    estimates = {
        str(key): paired_difference(
            key, float(values[:, place].mean()), power_sums(values[:, place]), (of_first, of_second), level=level
        )
        for place, key in enumerate(PAIRED)
    }
    difference = Difference(0, 1, estimates, {})
    return Evaluation([first, second], Comparison(len(labels), level, [difference]))


_TEMPLATE = evaluate(probabilities=[[0.9, 0.1]], labels=[0])


def _scores(batch: PredictionBatch, *, level: float) -> tuple[Scores, Errors]:
    performance = Performance()
    sums = performance.sums(batch)
    estimates = performance.compute(sums, level=level)
    return replace(_TEMPLATE, samples=len(batch), level=level, estimates=estimates), errors_of(sums)


def _rule(metric: str, limit: float, *, relative: bool) -> Requirement:
    return Requirement(metric, at_most=metric != "accuracy", limit=limit, relative=relative)


if __name__ == "__main__":
    main()
