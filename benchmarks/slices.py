"""Whether intervals of slices hold for all slices together: `python -m benchmarks.slices [--short]`.

Slices of different sizes, from easy to hard and from calibrated to overconfident, are drawn again and again. In how
many repetitions does every slice's interval hold its true value, of each metric? At nominal 95%, for 5, 50 and 500
slices. Beside it, how often the separate intervals all do: what simultaneous ones are for.
"""

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.reporting import Check, finish, progress
from counterpoise import Scores, evaluate

LEVEL, CLASSES, BINS = 0.95, 5, 15
REPETITIONS = {5: 1000, 50: 400, 500: 200}
SHORT_REPETITIONS = {5: 30}
SMALLEST, LARGEST = 30, 600
METRICS = ("accuracy", "mean_gap", "ece")
TRUTH_SAMPLES, SHORT_TRUTH_SAMPLES = 4_000_000, 500_000


@dataclass(frozen=True)
class Kind:
    """Evidence of a class is normal, around `margin` for the label, else 0; logits are `sharpness` of Bayes'."""

    margin: float
    sharpness: float

    def drawn(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Logits and labels."""
        labels = torch.randint(0, CLASSES, (samples,), generator=generator)
        evidence = torch.randn(samples, CLASSES, generator=generator, dtype=torch.float64)
        evidence[torch.arange(samples), labels] += self.margin
        return self.margin * self.sharpness * evidence, labels


KINDS = tuple(Kind(margin, sharpness) for margin in (1.0, 2.0, 3.5) for sharpness in (1.0, 2.0))


def truth_of(kind: Kind, samples: int, generator: torch.Generator) -> dict[str, float]:
    """Of many samples, computed plainly."""
    logits, labels = kind.drawn(samples, generator)
    confidence, predicted = logits.softmax(-1).max(-1)
    hit = (predicted == labels).double()
    bins = (confidence * BINS).ceil().clamp(1, BINS).long() - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, confidence - hit)
    return {
        "accuracy": float(hit.mean()),
        "mean_gap": float((confidence - hit).mean()),
        "ece": float(gaps.abs().sum() / samples),
    }


def drawn_scores(slices: int, generator: torch.Generator) -> Scores:
    """Scores of as many slices, whose kinds take turns and whose sizes grow geometrically."""
    sizes = torch.logspace(0, 1, slices, base=LARGEST / SMALLEST).mul(SMALLEST).round().int().tolist()
    drawn = [KINDS[place % len(KINDS)].drawn(size, generator) for place, size in enumerate(sizes)]
    logits, labels = (torch.cat(each) for each in zip(*drawn, strict=True))
    names = [str(place) for place, size in enumerate(sizes) for _ in range(size)]
    return evaluate(logits=logits, labels=labels, by={"slice": names}, level=LEVEL, bins=BINS)


def main() -> None:
    """Simulate, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="few repetitions of few slices, with room for chance")
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    samples = SHORT_TRUTH_SAMPLES if options.short else TRUTH_SAMPLES
    truths = [truth_of(kind, samples, generator) for kind in KINDS]
    figures, checks = {}, []
    for slices, repetitions in (SHORT_REPETITIONS if options.short else REPETITIONS).items():
        together, alone = dict.fromkeys(METRICS, 0), dict.fromkeys(METRICS, 0)
        for number in range(repetitions):
            groups = drawn_scores(slices, generator).groups
            for metric in METRICS:
                true = [truths[int(str(group.columns["slice"])) % len(KINDS)][metric] for group in groups]
                for counts, name in ((together, "simultaneous"), (alone, "estimates")):
                    found = [getattr(group, name)[metric] for group in groups]
                    counts[metric] += all(
                        each.low <= value <= each.high for each, value in zip(found, true, strict=True)
                    )
            if number % 20 == 0:
                progress(f"{slices} slices: {number} of {repetitions}")
        figures[f"{slices} slices"] = {
            "repetitions": repetitions,
            "all hold, simultaneous": {metric: count / repetitions for metric, count in together.items()},
            "all hold, each by itself": {metric: count / repetitions for metric, count in alone.items()},
        }
        error = 3 * (LEVEL * (1 - LEVEL) / repetitions) ** 0.5
        checks += [
            Check(f"{slices} slices, {metric}", count / repetitions, at_least=LEVEL - error)
            for metric, count in together.items()
        ]
    finish("python -m benchmarks.slices", figures, checks)


if __name__ == "__main__":
    main()
