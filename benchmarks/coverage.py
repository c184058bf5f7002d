"""Do the intervals hold what they promise? By simulation: `python -m benchmarks.coverage [--short] [--seed 0]`.

Confidences are drawn from a known distribution and hits from a known accuracy at each confidence, so that the value of
the binned ECE in the population is known. An interval of level 95% should contain it in at least 93% of the samples;
where the error exceeds three noise floors, and 30 errors or more are expected, in at most 98%. With few errors, of the
difference of two models, and of several labels a sample, in at least 93.5%, but for what `SHORT` lists.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.coverage_few_errors import ACCURATE, FewErrorsRow, few_errors_coverage
from benchmarks.coverage_multilabel import PROBLEMS, MultilabelRow, multilabel_coverage
from benchmarks.coverage_pairs import PAIRS, PairedRow, paired_coverage
from benchmarks.reporting import Check, finish, progress
from counterpoise.functional.calibration import (
    BinSums,
    bin_index,
    classwise_calibration_error,
    debiased_calibration_error,
    expected_calibration_error,
    noise_floor,
    sums_by_index,
)
from counterpoise.functional.classwise import classwise_sums
from counterpoise.functional.detection import RankCounts
from counterpoise.functional.intervals import (
    calibration_error_interval,
    calibration_error_interval_by_class,
    delong_interval,
    wilson_interval,
)

BINS = 15
LOWEST, HIGHEST, FLOORS = 0.93, 0.98, 3.0
LOWEST_OF_FEW = 0.935

CONFIDENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": lambda u: 0.5 + 0.5 * u,
    "sharp": lambda u: 1 - 0.6 * u**4,
    "saturated": lambda u: 1 - 0.5 * u**12,
    "accurate": lambda u: 1 - 0.01 * u,
}
"""Quantile functions: uniform on [0.5, 1]; as deep networks have them; nearly all at 1; with hardly an error."""

_BIN = torch.arange(BINS)
SHAPES: dict[str, Tensor] = {
    "overconfident": torch.ones(BINS),
    "alternating": 1.0 - 2.0 * (_BIN % 2),
    "top bin": (_BIN == BINS - 1).float(),
    "middle bin": (_BIN == 11).float(),
    "ramp": torch.linspace(1, 0.05, BINS),
}
"""Where the miscalibration sits: accuracy is confidence minus a multiple of this, cut to [0, 1]."""

ERRORS = (0.0, 0.005, 0.02, 0.05, 0.10)
SIZES = (200, 500, 1_000, 10_000)
FEWEST_ERRORS = 30
"""From which on an interval must not be too wide either; the number of fewer takes too few values for 95%."""
BLOCK = 1_000_000
"""Confidences that are drawn at a time."""

SHORT = {
    ("99.9%, calibrated", "nll"): 0.93,
    ("99.9%, calibrated", "brier"): 0.915,
    ("99.1%, prefers half", "classwise_ece"): 0.90,
    ("99.7%, close", "aupr_negative"): 0.90,
    ("90%", "excess_aurc"): 0.93,
    ("98.7%, close", "aupr_negative"): 0.92,
    ("99.7%", "aupr_positive"): 0.91,
    ("99.7%", "aupr_negative"): 0.90,
    ("99.7%", "aurc"): 0.895,
    ("99.7%", "excess_aurc"): 0.895,
    ("99.7%, close, overconfident", "nll"): 0.89,
    ("99.7%, close, overconfident", "aupr_negative"): 0.88,
    ("six labels", "excess_aurc, difference"): 0.91,
}
"""What is known to cover less, by model and metric: at least so much. The documentation shows it."""


def main() -> None:
    """Run all simulations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer repetitions and scenarios, for CI")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(options.seed)
    repetitions = 600 if options.short else 4_000
    # So few repetitions measure coverage only roughly: the short run grants three standard errors, the long one none.
    slack = 3 * (LOWEST * (1 - LOWEST) / repetitions) ** 0.5 if options.short else 0.0
    ece, ece_checks = all_ece_coverage(repetitions, generator, slack=slack, short=options.short)
    classwise = [
        classwise_coverage(size, temperature, repetitions // 4, generator)
        for size in ((1_000,) if options.short else (1_000, 10_000))
        for temperature in (1.0, 1.5)
    ]
    auroc = [
        auroc_coverage(shift, positives, negatives, repetitions, generator)
        for shift in (0.5, 1.2, 2.3)
        for positives, negatives in ((500, 500), (900, 100), (9_000, 1_000))[: 2 if options.short else 3]
    ]
    accuracy = [
        accuracy_coverage(rate, size, 20 * repetitions, generator) for rate in (0.55, 0.78, 0.95) for size in SIZES
    ]
    few_errors, pairs = few_errors_and_pairs(options.seed, short=options.short)
    multilabel = [] if options.short else multilabel_rows(options.seed)
    checks = [
        *ece_checks,
        *(few_check(row, short=options.short) for row in multilabel),
        *(few_check(row, short=options.short) for row in few_errors),
        *(few_check(row, short=options.short) for row in pairs),
        *(Check(f"classwise ECE coverage: {row}", row["coverage"], LOWEST - slack) for row in classwise),
        *(floor_check(f"classwise, N = {row['samples']}", row) for row in classwise if row["error"] == 0),
        *(Check(f"AUROC coverage: {row}", row["coverage"], 0.93 - slack, 0.97 + slack) for row in auroc),
        *(Check(f"accuracy coverage: {row}", row["coverage"], 0.93, 0.97) for row in accuracy),
    ]
    figures = {
        "repetitions": repetitions,
        "seed": options.seed,
        "lowest_ece_coverage": min(row["coverage"] for _, row in ece),
        "mean_ece_width": sum(row["width"] for _, row in ece) / len(ece),
        "ece": [{**scenario, **row} for scenario, row in ece],
        "classwise": classwise,
        "auroc": auroc,
        "accuracy": accuracy,
        "few_errors": few_errors,
        "pairs": pairs,
        "multilabel": multilabel,
    }
    finish("python -m benchmarks.coverage" + (" --short" if options.short else ""), figures, checks)


Scenario = dict[str, str | float]
Figures = dict[str, float]


def all_ece_coverage(
    repetitions: int, generator: torch.Generator, *, slack: float, short: bool
) -> tuple[list[tuple[Scenario, Figures]], list[Check]]:
    """Every distribution of confidence, shape and size of miscalibration, and number of samples."""
    kinds, shapes = list(CONFIDENCES), list(SHAPES)
    rows: list[tuple[Scenario, Figures]] = []
    checks = []
    for kind in kinds[:2] if short else kinds:
        for shape in ("overconfident", "top bin") if short else shapes:
            for error in ERRORS:
                accuracy = accuracy_with_error(kind, shape, error)
                if accuracy is None or (error == 0 and shape != shapes[0]):
                    continue
                for size in SIZES[:2] if short else SIZES:
                    name = f"{kind}, {shape}, {100 * error:g} points, N = {size}"
                    progress(f"ECE: {name}")
                    row = ece_coverage(kind, accuracy, error, size, repetitions, generator)
                    rows.append(({"confidence": kind, "shape": shape, "error": error, "samples": size}, row))
                    most = HIGHEST + slack if is_clear(error, row) else None
                    checks.append(Check(f"ECE coverage: {name}", row["coverage"], LOWEST - slack, most))
                    if error == 0:
                        checks.append(floor_check(name, row))
    return rows, checks


def few_errors_and_pairs(seed: int, *, short: bool) -> tuple[list[FewErrorsRow], list[PairedRow]]:
    """Every metric of one model with few errors, and every paired difference; each with random numbers of its own."""
    generator = torch.Generator().manual_seed(seed)
    few_errors = [
        row
        for model in (ACCURATE[:3] if short else ACCURATE)
        for row in few_errors_coverage(
            model, 150 if short else 500, population=200_000 if short else 1_000_000, generator=generator
        )
    ]
    generator = torch.Generator().manual_seed(seed)
    pairs = [
        row
        for pair in (PAIRS[:2] if short else PAIRS)
        for row in paired_coverage(pair, 80 if short else 500, generator=generator)
    ]
    return few_errors, pairs


def multilabel_rows(seed: int) -> list[MultilabelRow]:
    """Every metric of problems with several labels a sample, and every difference of two models."""
    return [
        row
        for problem in PROBLEMS
        for row in multilabel_coverage(problem, 200, generator=torch.Generator().manual_seed(seed))
    ]


def few_check(row: FewErrorsRow | PairedRow | MultilabelRow, *, short: bool) -> Check:
    """At least 93.5%, or what is known; the short run grants three standard errors."""
    least = SHORT.get((row["model"], row["metric"]), LOWEST_OF_FEW)
    slack = 3 * (least * (1 - least) / row["repetitions"]) ** 0.5 if short else 0.0
    return Check(f"{row['metric']} coverage: {row['model']}", row["coverage"], least - slack)


def is_clear(error: float, row: Figures) -> bool:
    """Whether the error stands out from its noise, with errors enough for a coverage near 95%."""
    return error > FLOORS * row["floor"] and row["errors"] >= FEWEST_ERRORS


def floor_check(name: str, row: Figures) -> Check:
    """The noise floor against the mean plug-in error of calibrated samples."""
    return Check(f"noise floor over simulation: {name}", row["floor"] / row["plug_in"], 0.95, 1.05)


def accuracy_with_error(kind: str, shape: str, error: float) -> Callable[[Tensor], Tensor] | None:
    """Accuracy at each confidence such that the binned ECE of the population is `error`; None if none is so large."""
    p = CONFIDENCES[kind]((torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000)
    index = bin_index(p, BINS)
    direction = SHAPES[shape].double()

    def accuracy(p: Tensor, size: float) -> Tensor:
        return (p - size * direction[bin_index(p, BINS)]).clamp(0, 1)

    def population_error(size: float) -> float:
        gap = torch.bincount(index, weights=p - accuracy(p, size), minlength=BINS)
        return float(gap.abs().sum() / len(p))

    low, high = 0.0, 1.0
    if population_error(high) < error:
        return None
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if population_error(middle) < error else (low, middle)
    return lambda p: accuracy(p, low)


def ece_coverage(
    kind: str,
    accuracy: Callable[[Tensor], Tensor],
    error: float,
    size: int,
    repetitions: int,
    generator: torch.Generator,
) -> Figures:
    """Share of samples whose interval contains the population's ECE, with what else belongs beside it.

    So many samples at a time as fill a block, each in a row of its own: what is computed of `[K, B]` sums by class is
    computed of each row as of a sample alone.
    """
    block = min(repetitions, max(1, BLOCK // size))
    found: list[Tensor] = []
    for start in range(0, repetitions, block):
        rows = min(block, repetitions - start)
        p = CONFIDENCES[kind](torch.rand(rows, size, generator=generator, dtype=torch.float64))
        hits = torch.rand(rows, size, generator=generator, dtype=torch.float64) < accuracy(p)
        index = bin_index(p, BINS) + BINS * torch.arange(rows).unsqueeze(-1)
        flat = sums_by_index(index.flatten(), p.flatten(), hits.flatten(), rows * BINS)
        sums = flat.map(lambda each: each.view(-1, BINS))
        low, high = calibration_error_interval_by_class(sums)
        metrics = (noise_floor, expected_calibration_error, debiased_calibration_error)
        counted = ((low <= error) & (error <= high), high < error, low > error, high - low, (~hits).sum(-1))
        found.append(torch.stack([each.double() for each in (*counted, *(metric(sums) for metric in metrics))]))
    names = ("coverage", "interval_below", "interval_above", "width", "errors", "floor", "plug_in", "debiased")
    return dict(zip(names, torch.cat(found, -1).mean(-1).tolist(), strict=True))


def classwise_coverage(size: int, temperature: float, repetitions: int, generator: torch.Generator) -> Figures:
    """The same for the classwise error of ten classes, labels drawn from probabilities at another temperature."""
    progress(f"classwise ECE: temperature {temperature}, N = {size}")
    classes = 10

    def draw(samples: int) -> tuple[Tensor, Tensor]:
        logits = 3 * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
        return torch.softmax(logits, -1), torch.softmax(logits / temperature, -1)

    def truth(samples: int) -> float:
        """From the probabilities themselves, without the noise of labels."""
        said, real = draw(samples)
        gaps = [
            torch.bincount(bin_index(said[:, k], BINS), weights=said[:, k] - real[:, k], minlength=BINS).abs().sum()
            for k in range(classes)
        ]
        return float(torch.stack(gaps).mean() / samples)

    error = 0.0 if temperature == 1 else truth(1_000_000)
    inside, floor, plug_in, width = 0, 0.0, 0.0, 0.0
    for _ in range(repetitions):
        said, real = draw(size)
        labels = torch.multinomial(real, 1, generator=generator).squeeze(-1)
        sums: BinSums = classwise_sums(said, labels, bins=BINS)
        low, high = calibration_error_interval(sums)
        inside += low <= error <= high
        width += high - low
        floor += float(noise_floor(sums).mean())
        plug_in += float(classwise_calibration_error(sums))
    return {
        "samples": size,
        "temperature": temperature,
        "error": error,
        "coverage": inside / repetitions,
        "width": width / repetitions,
        "floor": floor / repetitions,
        "plug_in": plug_in / repetitions,
    }


def auroc_coverage(
    shift: float, positives: int, negatives: int, repetitions: int, generator: torch.Generator
) -> Figures:
    """Coverage of DeLong's interval for two normal distributions, `shift` apart."""
    progress(f"AUROC: shift {shift}, {positives} against {negatives}")
    truth = float(torch.special.ndtr(torch.tensor(shift / 2**0.5, dtype=torch.float64)))
    inside, width = 0, 0.0
    for _ in range(repetitions):
        scores = torch.randn(positives + negatives, generator=generator, dtype=torch.float64)
        scores[:positives] += shift
        positive = (torch.argsort(scores, descending=True) < positives).long()
        low, high = delong_interval(RankCounts(positive, 1 - positive))
        inside += low <= truth <= high
        width += high - low
    return {
        "auroc": truth,
        "positives": positives,
        "negatives": negatives,
        "coverage": inside / repetitions,
        "width": width / repetitions,
    }


def accuracy_coverage(rate: float, size: int, repetitions: int, generator: torch.Generator) -> Figures:
    """Coverage of Wilson's interval."""
    hits = torch.binomial(
        torch.full((repetitions,), float(size)), torch.full((repetitions,), rate), generator=generator
    )
    values, counts = torch.unique(hits, return_counts=True)
    covered = [low <= rate <= high for low, high in (wilson_interval(value, size) for value in values.tolist())]
    inside = int(counts[torch.tensor(covered)].sum())
    return {"accuracy": rate, "samples": size, "coverage": inside / repetitions}


if __name__ == "__main__":
    main()
