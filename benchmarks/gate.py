"""How often `counterpoise check` is wrong, and what it can tell: `python -m benchmarks.gate [--short]`.

Two simulated models see the same samples. Of many repetitions, all samples together are the population, so that the
true value of every metric and difference is known. Limits are set right there, where a requirement is as nearly true as
it can be without being so: *met* may come in at most 5% of repetitions, of one requirement and of five together. Then
the limits are moved by 1, 2 and 4 points of accuracy, to see how often a true difference is noticed, and how the number
of samples that is named compares with the one that would do.
"""

import argparse
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.reporting import Check, finish, progress
from counterpoise import compare
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.gate import Requirement, decide, interval_level

LEVEL = 0.95
SAMPLES, CLASSES = 1000, 10
REPETITIONS, SHORT_REPETITIONS = 2000, 40
POINTS = (0.01, 0.02, 0.04)
RULES = (
    Requirement("accuracy", at_most=False, limit=0.0),
    Requirement("nll", at_most=True, limit=0.0),
    Requirement("ece", at_most=True, limit=0.0),
    Requirement("accuracy", at_most=False, limit=0.0, relative=True),
    Requirement("nll", at_most=True, limit=0.0, relative=True),
)
"""Whose limits are moved to the true values."""


def main() -> None:
    """Simulate, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="few repetitions, and looser limits for them")
    parser.add_argument("--repetitions", type=int, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    repetitions = options.repetitions or (SHORT_REPETITIONS if options.short else REPETITIONS)
    base, model, labels = population(repetitions)
    truth = true_limits(base, model, labels)
    levels = {count: interval_level(count, level=LEVEL) for count in (1, len(truth))}
    wrong = {str(rule): 0 for rule in RULES}
    together, told, ratios = 0, dict.fromkeys(POINTS, 0), []
    for number in range(repetitions):
        rows = slice(number * SAMPLES, (number + 1) * SAMPLES)
        alone, all_ = (evaluated(base[rows], model[rows], labels[rows], level=levels[count]) for count in levels)
        for rule, limit in zip(RULES, truth, strict=True):
            (verdict,) = decide(alone, [limit], level=LEVEL).verdicts
            wrong[str(rule)] += verdict.outcome == "met"
        together += any(verdict.outcome == "met" for verdict in decide(all_, truth, level=LEVEL).verdicts)
        for points in POINTS:
            moved = replace(truth[3], limit=truth[3].limit - points)
            (verdict,) = decide(alone, [moved], level=LEVEL).verdicts
            told[points] += verdict.outcome == "met"
            if points == POINTS[0] and verdict.outcome == "undecided":
                more = float("inf") if verdict.more_samples is None else verdict.more_samples
                ratios.append((SAMPLES + more) / max(SAMPLES, needed(alone, points)))
        if number % 50 == 0:
            progress(f"{number} of {repetitions}")
    error = 3 * (0.05 * 0.95 / repetitions) ** 0.5
    figures = {
        "repetitions": repetitions,
        "samples": SAMPLES,
        "truth": [str(limit) for limit in truth],
        "met at the boundary": {name: count / repetitions for name, count in wrong.items()},
        "any of five met at the boundary": together / repetitions,
        "met where accuracy is better by": {f"{points:g}": count / repetitions for points, count in told.items()},
        "samples named over needed": {
            f"{share:.0%} quantile": str(sorted(ratios)[int(share * len(ratios))]) for share in (0.1, 0.25, 0.5, 0.75)
        },
    }
    checks = [
        Check(f"met at the boundary: {name}", count / repetitions, at_most=0.05 + error)
        for name, count in wrong.items()
    ]
    checks.append(Check("any of five met at the boundary", together / repetitions, at_most=0.05 + error))
    named = sorted(ratios)[len(ratios) // 2]
    checks.append(Check("samples named over needed, median", named, at_least=1 / 1.5, at_most=1.5))
    finish("python -m benchmarks.gate", figures, checks)


def population(repetitions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of both models for the same samples, and labels."""
    generator = torch.Generator().manual_seed(0)
    count = repetitions * SAMPLES
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    evidence = torch.randn(count, CLASSES, generator=generator)
    evidence[torch.arange(count), labels] += 3.0
    base = 4.0 * (evidence + 0.4 * torch.randn(count, CLASSES, generator=generator))
    model = 3.5 * (evidence + 0.3 * torch.randn(count, CLASSES, generator=generator))
    return base, model, labels


def evaluated(base: Tensor, model: Tensor, labels: Tensor, *, level: float) -> Evaluation:
    """Both models, the base first."""
    return compare({"base": {"logits": base}, "model": {"logits": model}}, labels=labels, level=level)


def true_limits(base: Tensor, model: Tensor, labels: Tensor) -> list[Requirement]:
    """The requirements, each with the population's own value as its limit."""
    values = []
    for logits in (base, model):
        log_p = logits.log_softmax(-1)
        confidence, predicted = log_p.exp().max(-1)
        hit = (predicted == labels).double()
        bins = (confidence.double() * 15).ceil().clamp(1, 15).long() - 1
        gaps = torch.zeros(15, dtype=torch.float64).index_add_(0, bins, confidence.double() - hit)
        nll = -log_p.gather(-1, labels[:, None]).double().mean()
        values.append({"accuracy": float(hit.mean()), "nll": float(nll), "ece": float(gaps.abs().sum() / len(hit))})
    first, second = values
    return [replace(rule, limit=second[rule.metric] - (first[rule.metric] if rule.relative else 0.0)) for rule in RULES]


def needed(evaluation: Evaluation, points: float) -> float:
    """Samples at which the half width of the paired interval is the true distance from the limit."""
    assert evaluation.comparison is not None
    found = evaluation.comparison.differences[0].estimates["accuracy"]
    return SAMPLES * ((found.high - found.low) / 2 / points) ** 2


if __name__ == "__main__":
    main()
