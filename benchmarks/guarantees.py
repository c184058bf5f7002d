"""Do the guarantees hold? By simulation: `python -m benchmarks.guarantees [--short] [--seed 0]`.

Prediction sets: calibration and test samples are drawn from a pool without replacement, so that they are exchangeable,
and the number of test samples whose set holds the label has an exact law, the beta-binomial one, whatever the model.
The mean must be within four standard errors of it, and the distribution within the 1-in-10,000 point of Kolmogorov's
test; where scores tie, neither may be below. By class the same of each class.

Accepted predictions: populations whose risk at every threshold is known. The risk of what is accepted may be too large
in at most the share delta of draws, and three standard errors.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.reporting import Check, finish, progress
from counterpoise.calibrators import ConformalSets, SelectiveThreshold
from counterpoise.functional.conformal import (
    SetScore,
    conformal_rank,
    conformal_threshold,
    conformal_thresholds,
    set_scores,
)

ALPHA = 0.1
SIZES, CLASSES = (50, 200, 1_000), (2, 10, 1_000)
TESTED = 100
"""Test samples of each draw."""
POOL = 20_000
BLOCK = 2_000
"""Samples that are scored at a time."""
STANDARD_ERRORS = 4.0
KOLMOGOROV = 2.23
"""Over the square root of the draws: exceeded once in 10,000 times, or less where values are counts."""

RISKS = (0.01, 0.02, 0.05, 0.1)
DELTA = 0.1
SELECTED_FROM = 2_000
"""Calibration samples, of which half are tested."""
NEAR = 1.02
"""In the hardest population the risk is this much above what is asked for, at every threshold."""

Row = dict[str, Any]


def main() -> None:
    """Run all simulations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer draws and scenarios, for CI")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(options.seed)
    draws = 200 if options.short else 4_000
    sets: list[Row] = []
    by_class: list[Row] = []
    for classes in CLASSES:
        pool = 2_000 if options.short else POOL
        for ties in (False, True):
            scores, labels = pools(classes, pool, generator, ties=ties)
            for score, values in scores.items():
                for size in SIZES:
                    progress(f"sets: K = {classes}, n = {size}, {score}{', tied' if ties else ''}")
                    sets.append(
                        {"classes": classes, "score": score, "ties": ties}
                        | marginal_coverage(values, size, draws, generator)
                    )
            if not ties:
                for size in SIZES:
                    progress(f"by class: K = {classes}, n = {size}")
                    few = draws // (100 if classes > 100 else 4)
                    by_class.append({"classes": classes} | class_coverage(scores["lac"], labels, size, few, generator))
    selective = [
        selective_risk(name, risk, 100 if options.short else 2_000, generator)
        for name in (("ordered", "at the limit") if options.short else POPULATIONS)
        for risk in (RISKS[2:] if options.short else RISKS)
    ]
    figures = {
        "seed": options.seed,
        "alpha": ALPHA,
        "draws": draws,
        "tested": TESTED,
        "largest_deviation_in_standard_errors": max(abs(row["standard_errors"]) for row in sets if not row["ties"]),
        "most_violations": max(row["violations"] for row in selective),
        "sets": sets,
        "by_class": by_class,
        "delta": DELTA,
        "selected_from": SELECTED_FROM,
        "selective": selective,
    }
    checks = [
        *(check for row in sets for check in set_checks(row, draws)),
        *(check for row in by_class for check in class_checks(row)),
        *(selective_check(row) for row in selective),
        Check("samples on which ConformalSets and its functions differ", differences(generator), at_most=0),
    ]
    finish("python -m benchmarks.guarantees" + (" --short" if options.short else ""), figures, checks)


def problem(classes: int, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Logits of an overconfident model, and labels."""
    logits = 3 * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(0.7 * logits, -1), 1, generator=generator).squeeze(-1)
    return logits, labels


def pools(classes: int, samples: int, generator: torch.Generator, *, ties: bool) -> tuple[dict[str, Tensor], Tensor]:
    """The score of each sample's label `[N]` by the name of the score, and the labels `[N]`.

    APS and RAPS take random numbers, without which the least likely labels tie. With ties there are none, and
    probabilities are rounded up to one decimal.
    """
    names: tuple[SetScore, ...] = ("lac", "aps", "raps")
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    all_labels: list[Tensor] = []
    for start in range(0, samples, BLOCK):
        size = min(BLOCK, samples - start)
        logits, labels = problem(classes, size, generator)
        u = None if ties else torch.rand(size, generator=generator, dtype=torch.float64)
        p = torch.softmax(logits, -1)
        p = (10 * p).ceil() / 10 if ties else p
        all_labels.append(labels)
        for name in names:
            scores = set_scores(name, p, u=u)
            found[name].append(scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1))
    return {name: torch.cat(parts) for name, parts in found.items()}, torch.cat(all_labels)


def marginal_coverage(scores: Tensor, size: int, draws: int, generator: torch.Generator) -> Row:
    """Of draws of so many calibration samples and of test samples: how many of the latter are covered."""
    covered: list[Tensor] = []
    for start in range(0, draws, 200):
        block = min(200, draws - start)
        chosen = torch.rand(block, len(scores), generator=generator).topk(size + TESTED).indices
        chosen = chosen.gather(-1, torch.rand(chosen.shape, generator=generator).argsort(-1))
        drawn = scores[chosen]
        threshold = conformal_threshold(drawn[:, :size], ALPHA)
        covered.append((drawn[:, size:] <= threshold.unsqueeze(-1)).sum(-1))
    counts = torch.cat(covered)
    rank = conformal_rank(size, ALPHA)
    law = beta_binomial(TESTED, rank, size + 1 - rank)
    expected = rank / (size + 1)
    error = math.sqrt(count_variance(TESTED, rank, size + 1 - rank) / draws) / TESTED
    coverage = float(counts.double().mean()) / TESTED
    difference = torch.bincount(counts, minlength=TESTED + 1).cumsum(0) / draws - law.cumsum(0)
    return {
        "samples": size,
        "coverage": coverage,
        "expected": expected,
        "standard_errors": (coverage - expected) / error,
        "distance": float(difference.abs().max()),
        "distance_below": float(difference.max()),
    }


def class_coverage(scores: Tensor, labels: Tensor, size: int, draws: int, generator: torch.Generator) -> Row:
    """The same within classes: given how many samples a class has, its counts have the same law."""
    classes = int(labels.max()) + 1
    covered = torch.zeros(classes, dtype=torch.float64)
    tested, expected, variance = (torch.zeros_like(covered) for _ in range(3))
    whole = 0
    for _ in range(draws):
        chosen = torch.randperm(len(scores), generator=generator)[: size + TESTED]
        drawn, of_class = scores[chosen], labels[chosen]
        thresholds = conformal_thresholds(drawn[:size], of_class[:size], classes, ALPHA)
        inside = drawn[size:] <= thresholds[of_class[size:]]
        fitted = torch.bincount(of_class[:size], minlength=classes).tolist()
        seen = torch.bincount(of_class[size:], minlength=classes)
        covered += torch.bincount(of_class[size:], weights=inside.double(), minlength=classes)
        tested += seen
        whole += int((thresholds == math.inf).sum())
        for index in seen.nonzero().squeeze(-1).tolist():
            n, m = fitted[index], int(seen[index])
            rank = conformal_rank(n, ALPHA)
            expected[index] += m * min(1.0, rank / (n + 1))
            variance[index] += 0.0 if rank > n else count_variance(m, rank, n + 1 - rank)
    deviation = (covered - expected) / variance.sqrt().clamp(min=1e-9)
    return {
        "samples": size,
        "draws": draws,
        "coverage": float(covered.sum() / tested.sum()),
        "expected": float(expected.sum() / tested.sum()),
        "standard_errors": float((covered - expected).sum() / variance.sum().sqrt().clamp(min=1e-9)),
        "largest_of_a_class": float(deviation.abs().max()),
        "without_threshold": whole / (draws * classes),
    }


def set_checks(row: Row, draws: int) -> list[Check]:
    """Neither too little nor too much; where scores tie, not too little."""
    name = f"K = {row['classes']}, n = {row['samples']}, {row['score']}"
    limit = KOLMOGOROV / math.sqrt(draws)
    if row["ties"]:
        return [
            Check(f"coverage with ties, in standard errors: {name}", row["standard_errors"], -STANDARD_ERRORS),
            Check(f"distribution below the law with ties: {name}", row["distance_below"], at_most=limit),
        ]
    return [
        Check(f"coverage, in standard errors: {name}", row["standard_errors"], -STANDARD_ERRORS, STANDARD_ERRORS),
        Check(f"distribution, distance from the law: {name}", row["distance"], at_most=limit),
    ]


def class_checks(row: Row) -> list[Check]:
    """All classes together, and the worst of them: of 1,000 normal numbers one in 1,000 times above five."""
    name = f"K = {row['classes']}, n = {row['samples']}"
    return [
        Check(f"coverage by class, in standard errors: {name}", abs(row["standard_errors"]), at_most=STANDARD_ERRORS),
        Check(f"the worst class, in standard errors: {name}", row["largest_of_a_class"], at_most=5.0),
    ]


def beta_binomial(trials: int, a: float, b: float) -> Tensor:
    """The probabilities of 0 to `trials` successes whose rate is beta-distributed."""
    k = torch.arange(trials + 1, dtype=torch.float64)

    def log_beta(x: Tensor, y: Tensor) -> Tensor:
        return torch.lgamma(x) + torch.lgamma(y) - torch.lgamma(x + y)

    one = torch.tensor(1.0, dtype=torch.float64)
    ways = -torch.log(torch.tensor(trials + 1.0, dtype=torch.float64)) - log_beta(k + 1, trials - k + 1)
    return (ways + log_beta(k + a, trials - k + b) - log_beta(a * one, b * one)).exp()


def count_variance(trials: int, a: float, b: float) -> float:
    """Of such a number of successes."""
    total = a + b
    return trials * a * b * (total + trials) / (total**2 * (total + 1))


Population = Callable[[Tensor, float], tuple[Tensor, Tensor]]

POPULATIONS: dict[str, Population] = {
    "ordered": lambda u, _: (0.5 + 0.5 * u, 0.5 - 0.5 * u),
    "overconfident": lambda u, _: (1 - 0.5 * (1 - u) ** 6, (1.5 * 0.5 * (1 - u) ** 6).clamp(max=1)),
    "the surest are wrong": lambda u, risk: (
        0.5 + 0.5 * u,
        torch.where(u > 0.95, 1.5 * risk, torch.where(u > 0.5, 0.6 * risk, 2 * risk)),
    ),
    "at the limit": lambda u, risk: (0.5 + 0.5 * u, torch.full_like(u, NEAR * risk)),
}
"""Confidence and probability of an error at each quantile u of the confidence, given the risk that is asked for."""


def selective_risk(name: str, risk: float, draws: int, generator: torch.Generator) -> Row:
    """How often the risk of what is accepted is too large, and how much is accepted."""
    progress(f"accept: {name}, risk {risk}")
    grid = (torch.arange(1_000_000, dtype=torch.float64) + 0.5) / 1_000_000
    confidence, wrong = POPULATIONS[name](grid, risk)
    # Over what is above each point of the grid, which is in the order of the confidence.
    risks = wrong.flip(0).cumsum(0).flip(0) / torch.arange(len(grid), 0, -1)
    allowed = (risks <= risk).nonzero()
    most = 1 - float(grid[int(allowed[0])]) if len(allowed) else 0.0
    violations, nothing, accepted = 0, 0, 0.0
    for _ in range(draws):
        u = torch.rand(SELECTED_FROM, generator=generator, dtype=torch.float64)
        p, error_rate = POPULATIONS[name](u, risk)
        labels = (torch.rand(SELECTED_FROM, generator=generator, dtype=torch.float64) < error_rate).long()
        chosen = SelectiveThreshold.fit(torch.stack([p, 1 - p], -1).log(), labels, risk=risk, delta=DELTA)
        if chosen.threshold == math.inf:
            nothing += 1
            continue
        place = min(int(torch.searchsorted(confidence, chosen.threshold)), len(grid) - 1)
        violations += float(risks[place]) > risk
        accepted += 1 - float(grid[place])
    return {
        "population": name,
        "risk": risk,
        "draws": draws,
        "violations": violations / draws,
        "accepted": accepted / draws,
        "could_be_accepted": most,
        "nothing_accepted": nothing / draws,
    }


def selective_check(row: Row) -> Check:
    """At most delta, and three standard errors."""
    slack = 3 * math.sqrt(DELTA * (1 - DELTA) / row["draws"])
    return Check(f"risk too large: {row['population']}, risk {row['risk']}", row["violations"], at_most=DELTA + slack)


def differences(generator: torch.Generator) -> int:
    """Samples of which `ConformalSets` says something else than the functions that are measured here."""
    found = 0
    for classes in CLASSES:
        logits, labels = problem(classes, 1_200, generator)
        for score in ("lac", "aps", "raps"):
            name: SetScore = score
            scores = set_scores(name, torch.softmax(logits, -1))
            of_label = scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
            sets = ConformalSets.fit(logits[:1_000], labels[:1_000], alpha=ALPHA, score=name)
            expected = scores[1_000:] <= conformal_threshold(of_label[:1_000], ALPHA)
            found += int((sets(logits[1_000:]) != expected).any(-1).sum())
    return found


if __name__ == "__main__":
    main()
