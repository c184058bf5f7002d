"""Coverage of paired differences of every metric: two simulated models on the same samples.

A sample's label adds `separation` to one of K standard normal logits, which both models see with `noise` of their own
and multiply by a scale. The true probabilities are the softmax at the scale `separation`: beyond it a model is
overconfident. All repetitions together are the population.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypedDict

import torch
from torch import Tensor

from benchmarks.reporting import progress
from counterpoise.functional import detection
from counterpoise.functional.calibration import BinSums, bin_index, error_terms, sums_by_index
from counterpoise.functional.detection import RankCounts, interpolated_fpr_at_tpr, merged_groups, rank_groups
from counterpoise.functional.intervals import Interval
from counterpoise.functional.paired import (
    jackknife_interval,
    paired_accuracy_interval,
    paired_mean_interval,
    power_sums,
)
from counterpoise.metrics.ranking import RATE_STEPS

BINS = 15
GROUPS = 100
RANK_CELLS = 256
_STEPS = {str(key): step for key, step in RATE_STEPS.items()}


@dataclass(frozen=True)
class Pair:
    """How far the label stands out, how much the models differ, and their scales."""

    name: str
    separation: float
    noise: tuple[float, float]
    scales: tuple[float, float]
    samples: int = 2_000
    classes: int = 10


PAIRS = (
    Pair("99.7%, close", separation=4.8, noise=(0.05, 0.1), scales=(5.0, 6.0)),
    Pair("90%", separation=3.0, noise=(0.3, 0.4), scales=(3.0, 4.0)),
    Pair("98.7%, close", separation=4.15, noise=(0.05, 0.1), scales=(4.2, 5.0)),
    Pair("99.7%", separation=4.8, noise=(0.2, 0.3), scales=(5.0, 6.0)),
    Pair("99.7%, close, overconfident", separation=4.8, noise=(0.05, 0.1), scales=(8.0, 12.0)),
)


@dataclass(frozen=True)
class Model:
    """What the metrics need of one model, a row for each sample."""

    probabilities: Tensor
    label: Tensor
    confidence: Tensor
    hit: Tensor
    nll: Tensor
    brier: Tensor

    @classmethod
    def of(cls, logits: Tensor, label: Tensor) -> "Model":
        """Of logits `[N, K]` and labels `[N]`."""
        log_p = torch.log_softmax(logits.double(), -1)
        confidence, prediction = log_p.exp().max(-1)
        one_hot = torch.nn.functional.one_hot(label, logits.shape[-1])
        return cls(
            probabilities=log_p.exp(),
            label=label,
            confidence=confidence,
            hit=prediction == label,
            nll=-log_p.gather(-1, label.unsqueeze(-1)).squeeze(-1),
            brier=(log_p.exp() - one_hot).square().sum(-1),
        )

    def rows(self, rows: slice) -> "Model":
        """Some of the samples."""
        return Model(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def gap(self) -> Tensor:
        """Confidence minus hit, whose mean is the mean gap."""
        return self.confidence - self.hit.double()

    @property
    def errors(self) -> int:
        """Number of wrong predictions."""
        return int((~self.hit).sum())


RANKING: dict[str, Callable[[RankCounts], Tensor]] = {
    "auroc": detection.auroc,
    "aupr_positive": detection.average_precision,
    "aupr_negative": detection.average_precision_of_negatives,
    "fpr_at_tpr95": detection.fpr_at_tpr,
    "minimum_detection_error": detection.minimum_detection_error,
    "detection_error_at_tpr95": detection.detection_error_at_tpr,
    "aurc": detection.aurc,
    "excess_aurc": detection.excess_aurc,
}
LEFT_OUT = RANKING | {
    "fpr_at_tpr95": interpolated_fpr_at_tpr,
    "detection_error_at_tpr95": lambda counts: 0.5 * (1 - detection.DEFAULT_TPR + interpolated_fpr_at_tpr(counts)),
}
"""As the comparison takes them where a group is left out."""


def draw(pair: Pair, samples: int, generator: torch.Generator) -> tuple[Model, Model]:
    """Both models on as many new samples."""
    label = torch.randint(pair.classes, (samples,), generator=generator)
    seen = torch.randn(samples, pair.classes, generator=generator)
    seen[torch.arange(samples), label] += pair.separation
    first, second = (
        Model.of(scale * (seen + noise * torch.randn(seen.shape, generator=generator)), label)
        for scale, noise in zip(pair.scales, pair.noise, strict=True)
    )
    return first, second


class PairedRow(TypedDict):
    """How often the interval of a metric's difference holds that of the population.

    Attributes:
        defined: share of the repetitions in which there is an interval; of these are all other figures.
        jackknife: what the jackknife alone covers.
        width_over_jackknife: how much wider the interval is than the jackknife's.
    """

    model: str
    metric: str
    samples: int
    errors: float
    discordant: float
    repetitions: int
    defined: float
    coverage: float
    jackknife: float
    width: float
    width_over_jackknife: float


def paired_coverage(pair: Pair, repetitions: int, *, generator: torch.Generator) -> list[PairedRow]:
    """A row for each metric."""
    progress(f"paired differences: {pair.name}")
    first, second = draw(pair, repetitions * pair.samples, generator)
    of_first, of_second = metrics(first), metrics(second)
    truth = {name: of_second[name] - of_first[name] for name in of_first}
    found: dict[str, list[tuple[Interval, Interval]]] = {name: [] for name in truth}
    for start in range(0, repetitions * pair.samples, pair.samples):
        one, other = (model.rows(slice(start, start + pair.samples)) for model in (first, second))
        if min(one.errors, other.errors) == 0:  # nothing to rank; the comparison says so
            continue
        group = torch.randint(GROUPS, (pair.samples,), generator=generator)
        jackknife, roomy = jackknife_differences(one, other, group)
        intervals = roomy | direct_differences(one, other)
        for name, limits in found.items():
            if not math.isnan(jackknife[name].low):
                limits.append((jackknife[name], intervals[name]))

    def covered(limits: list[Interval], value: float) -> float:
        return sum(low <= value <= high for low, high in limits) / len(limits)

    rows = []
    for name, limits in found.items():
        alone, used = ([both[place] for both in limits] for place in (0, 1))
        narrow, width = (sum(high - low for low, high in each) / len(each) for each in (alone, used))
        rows.append(
            PairedRow(
                model=pair.name,
                metric=name,
                samples=pair.samples,
                errors=first.errors / repetitions,
                discordant=float((first.hit != second.hit).sum()) / repetitions,
                repetitions=repetitions,
                defined=len(limits) / repetitions,
                coverage=covered(used, truth[name]),
                jackknife=covered(alone, truth[name]),
                width=width,
                width_over_jackknife=width / narrow,
            )
        )
    return rows


def metrics(model: Model) -> dict[str, float]:
    """Every metric of all samples."""
    counts, _ = rank_groups(model.confidence, model.hit)
    everything = torch.zeros(len(model.hit), dtype=torch.int64)
    errors = {name: sums.gap.abs().sum(-1).mean() for name, sums in grouped_bins(model, everything, 1).items()}
    means = {name: values.mean() for name, values in per_sample(model).items()}
    ranking = {name: metric(counts) for name, metric in RANKING.items()}
    return {name: float(value) for name, value in (means | errors | ranking).items()}


def per_sample(model: Model) -> dict[str, Tensor]:
    """Metrics that are means, as the values of the samples `[N]`."""
    return {"accuracy": model.hit.double(), "nll": model.nll, "brier": model.brier, "mean_gap": model.gap}


def grouped_bins(model: Model, group: Tensor, groups: int) -> dict[str, BinSums]:
    """Sums of the calibration errors in each group of samples: `[G, 1, B]`, and `[G, K, B]` classwise."""
    classes = model.probabilities.shape[-1]
    one_hot = torch.nn.functional.one_hot(model.label, classes).bool()
    sides = {
        "ece": (model.confidence.unsqueeze(-1), model.hit.unsqueeze(-1)),
        "classwise_ece": (model.probabilities, one_hot),
    }
    found = {}
    for name, (p, hit) in sides.items():
        columns = p.shape[-1]
        index = (group.unsqueeze(-1) * columns + torch.arange(columns)) * BINS + bin_index(p, BINS)
        flat = sums_by_index(index.flatten(), p.flatten(), hit.flatten(), groups * columns * BINS)
        found[name] = flat.map(lambda each, columns=columns: each.view(groups, columns, BINS))  # type: ignore[misc]
    return found


def direct_differences(first: Model, second: Model) -> dict[str, Interval]:
    """Intervals of the differences of means, from sums over the samples."""
    gained, lost = (int((one.hit & ~other.hit).sum()) for one, other in ((second, first), (first, second)))
    return {
        "accuracy": paired_accuracy_interval(gained, lost, len(first.hit)),
        "nll": paired_mean_interval(power_sums(second.nll - first.nll)),
        "brier": paired_mean_interval(power_sums(second.brier - first.brier)),
        "mean_gap": paired_mean_interval(power_sums(second.gap - first.gap)),
    }


def jackknife_differences(
    first: Model, second: Model, group: Tensor
) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Intervals of all differences by the jackknife, without and with room for differences that no sample shows.

    The comparison of models makes the second kind from the same sums.
    """
    values, left = [metrics(model) for model in (first, second)], [left_out(model, group) for model in (first, second)]
    step = 1 / min(first.errors, second.errors)
    plain, roomy = {}, {}
    for name in left[0]:
        value, without = values[1][name] - values[0][name], left[1][name] - left[0][name]
        plain[name] = jackknife_interval(value, without)
        roomy[name] = jackknife_interval(value, without, room=_STEPS.get(name, 0.0) * step)
    whole = torch.zeros_like(group)
    for name in ("ece", "classwise_ece"):
        terms = [error_terms(grouped_bins(model, whole, 1)[name]) for model in (first, second)]
        (value, below), (second_value, above) = ((float(t.estimate.mean()), float(t.bias.mean())) for t in terms)
        low, high = jackknife_interval(second_value - value, left[1][name] - left[0][name])
        plain[name] = roomy[name] = Interval(low - below, high + above)
    return plain, roomy


def left_out(model: Model, group: Tensor) -> dict[str, Tensor]:
    """Every metric with each group of samples left out, `[GROUPS]`."""
    size = torch.bincount(group, minlength=GROUPS)

    def without_each(sums: Tensor) -> Tensor:
        return sums.sum(0, keepdim=True) - sums

    means = {
        name: without_each(torch.zeros(GROUPS, dtype=torch.float64).index_add(0, group, values)) / without_each(size)
        for name, values in per_sample(model).items()
    }
    errors = {
        name: error_terms(sums.map(without_each)).estimate.mean(-1)
        for name, sums in grouped_bins(model, group, GROUPS).items()
    }
    distinct, place = torch.unique(-model.confidence, return_inverse=True)
    totals = [torch.bincount(place[side], minlength=len(distinct)) for side in (model.hit, ~model.hit)]
    cell = merged_groups(RankCounts(*totals), RANK_CELLS)[place]
    counts = RankCounts(
        *(
            without_each(
                torch.bincount((group * RANK_CELLS + cell)[side], minlength=GROUPS * RANK_CELLS).view(GROUPS, -1)
            )
            for side in (model.hit, ~model.hit)
        )
    )
    return means | errors | {name: metric(counts) for name, metric in LEFT_OUT.items()}
