"""The standard metrics, each a frozen dataclass of its configuration.

All are exact; those that depend on the order of all samples are in `counterpoise.metrics.ranked`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from counterpoise.functional.betting import highest_mean
from counterpoise.functional.calibration import (
    DEFAULT_BINS,
    BinSums,
    bin_index,
    brier_calibration,
    classwise_calibration_error,
    debiased_calibration_error,
    error_terms,
    expected_calibration_error,
    maximum_calibration_error,
    mean_gap,
    noise_floor,
    sums_by_index,
)
from counterpoise.functional.classwise import classwise_sums
from counterpoise.functional.intervals import (
    Interval,
    brier_calibration_interval,
    calibration_error_interval,
    maximum_error_interval,
    mean_gap_interval,
    mean_interval,
    wilson_interval,
)
from counterpoise.metrics.batch import PredictionBatch
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key, MetricInfo
from counterpoise.metrics.options import ScoreOptions, require_count
from counterpoise.metrics.protocol import Contrast, Estimates, Metric, NoSamplesError, Sums

T = TypeVar("T")

FEW_ERRORS = 10
"""Fewer do not show how large the NLL or the Brier score is where a model is wrong."""
LARGEST_BRIER = 2.0
_POWER = 32
"""A sum of powers stands for the largest of n values, as sums add up: its root is at most n^(1/32) times larger."""


class StandardMetrics(NamedTuple, Generic[T]):
    """Something of each metric that every report shows, but for those that depend on ranks.

    Attributes:
        performance: accuracy, NLL and Brier score; accuracy alone where only a confidence is known.
        top_label: calibration of the predicted class.
        classwise: calibration of every class; None where only a confidence is known.
        positive: calibration of the class 1 of two; None where there are more.
    """

    performance: T
    top_label: T
    classwise: T | None = None
    positive: T | None = None


def standard_metrics(options: ScoreOptions, *, classes: int) -> StandardMetrics[Metric]:
    """The metrics that every report shows; a single class stands for the confidence of the predicted one."""
    top_label = TopLabelCalibration(bins=options.bins)
    if classes == 1:
        return StandardMetrics(Accuracy(), top_label)
    return StandardMetrics(
        performance=Performance(),
        top_label=top_label,
        classwise=ClasswiseCalibration(num_classes=classes, bins=options.bins),
        positive=PositiveCalibration(bins=options.bins) if classes == 2 else None,
    )


def sums_of_standard(metrics: StandardMetrics[Metric], sums: Sequence[Sums]) -> StandardMetrics[Sums]:
    """The sums of those that there are, from these and any others in order."""
    each = iter(sums)
    return StandardMetrics(*(None if metric is None else next(each) for metric in metrics))  # type: ignore[arg-type]


def infos(*keys: Key) -> Mapping[str, MetricInfo]:
    """How these metrics are shown."""
    return {str(key): KEY_INFO[key] for key in keys}


def group_metrics(options: ScoreOptions, *, classes: int) -> list[Metric]:
    """Those that are shown of a group of samples too, performance first: their sums do not grow with the classes."""
    found = standard_metrics(options, classes=classes)
    return [metric for metric in (found.performance, found.top_label, found.positive) if metric is not None]


@dataclass(frozen=True)
class Accuracy:
    """Accuracy with Wilson's interval: all of `Performance` that needs no probabilities."""

    info = infos(Key.ACCURACY)
    needs = "confidence"

    def zeros(self) -> Sums:
        return {name: torch.zeros((), dtype=torch.int64) for name in ("count", "correct")}

    def sums(self, batch: PredictionBatch) -> Sums:
        hits = batch.top()[1]
        return {"count": torch.tensor(len(hits), device=hits.device), "correct": hits.sum()}

    def compute(self, sums: Sums, *, level: float) -> Estimates:
        count, correct = require_samples(sums["count"]), float(sums["correct"])
        return {Key.ACCURACY: Estimate.of(correct / count, wilson_interval(correct, count, level=level))}

    def contrasts(self, sums: Sums) -> dict[str, Contrast]:
        """A mean has no bias."""
        return {str(Key.ACCURACY): _unbiased(sums["correct"] / sums["count"].double())}


@dataclass(frozen=True)
class Performance:
    """Accuracy (Wilson interval), negative log-likelihood and Brier score (`mean_interval`).

    With fewer than `FEW_ERRORS` errors the upper limit of the last two is also at least `highest_mean`, for values of
    at most 2 (Brier) or the largest NLL that any label could have given.
    """

    info = infos(Key.ACCURACY, Key.NLL, Key.BRIER)

    def zeros(self) -> Sums:
        names = ("nll", "nll_squared", "nll_cubed", "nll_possible", "brier", "brier_squared", "brier_cubed")
        counts = {name: torch.zeros((), dtype=torch.int64) for name in ("count", "correct")}
        return counts | {name: torch.zeros((), dtype=torch.float64) for name in names}

    def sums(self, batch: PredictionBatch) -> Sums:
        labels = batch.required_labels()
        assert batch.log_label is not None  # noqa: S101
        nll = -batch.log_label.double()
        brier = brier_scores(batch)
        return {
            "count": torch.tensor(len(labels), device=labels.device),
            "correct": batch.top()[1].sum(),
            "nll": nll.sum(),
            "nll_squared": (nll**2).sum(),
            "nll_cubed": (nll**3).sum(),
            "nll_possible": (_largest_nll(batch).double() ** _POWER).sum(),
            "brier": brier.sum(),
            "brier_squared": (brier**2).sum(),
            "brier_cubed": (brier**3).sum(),
        }

    def compute(self, sums: Sums, *, level: float) -> Estimates:
        count = require_samples(sums["count"])
        values = {name: float(value) for name, value in sums.items()}

        def mean(name: str, largest: float) -> Estimate:
            powers = (values[name], values[f"{name}_squared"], values[f"{name}_cubed"])
            low, high = mean_interval(*powers, count, level=level)
            if count - values["correct"] < FEW_ERRORS:
                first, second, _ = (power / count for power in powers)
                limit = highest_mean(first, second, count, largest=largest, error=(1 - level) / 2)
                high = max(high, limit)  # in this order a limit that is NaN stays so
            return Estimate.of(values[name] / count, Interval(low, high))

        accuracy = wilson_interval(values["correct"], count, level=level)
        return {
            Key.ACCURACY: Estimate.of(values["correct"] / count, accuracy),
            Key.NLL: mean("nll", largest_possible_nll(sums)),
            Key.BRIER: mean("brier", LARGEST_BRIER),
        }

    def contrasts(self, sums: Sums) -> dict[str, Contrast]:
        """Means have no bias."""
        count = sums["count"].double()
        names = {Key.ACCURACY: "correct", Key.NLL: "nll", Key.BRIER: "brier"}
        return {str(key): _unbiased(sums[name] / count) for key, name in names.items()}


@dataclass(frozen=True)
class TopLabelCalibration:
    """ECE, debiased ECE, MCE, and the signed gap of mean confidence and accuracy."""

    bins: int = DEFAULT_BINS

    info = infos(Key.MEAN_GAP, Key.ECE, Key.DEBIASED_ECE, Key.MCE)
    needs = "confidence"

    def __post_init__(self) -> None:
        require_count(self.bins, "bins")

    def zeros(self) -> Sums:
        return zero_bins(self.bins)

    def sums(self, batch: PredictionBatch) -> Sums:
        confidence, hits = batch.top()
        return as_sums(sums_by_index(bin_index(confidence, self.bins), confidence, hits, self.bins))

    def compute(self, sums: Sums, *, level: float) -> Estimates:
        bins = bin_sums_of(sums)
        require_samples(bins.samples)
        interval = calibration_error_interval(bins, level=level)
        return {
            Key.MEAN_GAP: Estimate.of(float(mean_gap(bins)), mean_gap_interval(bins, level=level)),
            Key.ECE: Estimate.of(float(expected_calibration_error(bins)), interval, floor=float(noise_floor(bins))),
            Key.DEBIASED_ECE: Estimate.of(float(debiased_calibration_error(bins)), interval),
            Key.MCE: Estimate.of(float(maximum_calibration_error(bins)), maximum_error_interval(bins, level=level)),
        }

    def contrasts(self, sums: Sums) -> dict[str, Contrast]:
        """The calibration error by its sign cross-fit estimate, before its cut at 0."""
        bins = BinSums(**sums)
        terms = error_terms(bins)
        return {Key.MEAN_GAP: _unbiased(mean_gap(bins)), Key.ECE: Contrast(terms.estimate, terms.bias)}


@dataclass(frozen=True)
class ClasswiseCalibration:
    """Classwise ECE, and the calibration part of the Brier score, over all classes."""

    num_classes: int
    bins: int = DEFAULT_BINS

    info = infos(Key.CLASSWISE_ECE, Key.BRIER_CALIBRATION)

    def __post_init__(self) -> None:
        require_count(self.num_classes, "num_classes", least=2)
        require_count(self.bins, "bins")

    def zeros(self) -> Sums:
        return zero_bins(self.num_classes, self.bins)

    def sums(self, batch: PredictionBatch) -> Sums:
        classes = batch.probabilities.shape[-1]
        if classes != self.num_classes:
            raise ValueError(f"predictions have {classes} classes, the metric was made for {self.num_classes}")
        return as_sums(classwise_sums(batch.probabilities, batch.required_labels(), bins=self.bins))

    def compute(self, sums: Sums, *, level: float) -> Estimates:
        bins = bin_sums_of(sums)
        require_samples(bins.samples[0])
        interval = calibration_error_interval(bins, level=level)
        floor = float(noise_floor(bins).mean())
        part = brier_calibration_interval(bins, level=level)
        return {
            Key.CLASSWISE_ECE: Estimate.of(float(classwise_calibration_error(bins)), interval, floor=floor),
            Key.BRIER_CALIBRATION: Estimate.of(float(brier_calibration(bins)), part),
        }

    def contrasts(self, sums: Sums) -> dict[str, Contrast]:
        """The mean over the classes of their sign cross-fit estimates."""
        terms = error_terms(BinSums(**sums))
        return {Key.CLASSWISE_ECE: Contrast(terms.estimate.mean(-1), terms.bias.mean(-1))}


@dataclass(frozen=True)
class PositiveCalibration:
    """Of two classes, the calibration error of the probability of the class 1, whichever is predicted."""

    bins: int = DEFAULT_BINS

    info = infos(Key.POSITIVE_ECE)

    def __post_init__(self) -> None:
        require_count(self.bins, "bins")

    def zeros(self) -> Sums:
        return zero_bins(self.bins)

    def sums(self, batch: PredictionBatch) -> Sums:
        if batch.probabilities.shape[-1] != 2:
            raise ValueError(f"predictions have {batch.probabilities.shape[-1]} classes; a positive one is of two")
        positive = batch.probabilities[:, 1].clamp(max=1)
        return as_sums(sums_by_index(bin_index(positive, self.bins), positive, batch.required_labels() == 1, self.bins))

    def compute(self, sums: Sums, *, level: float) -> Estimates:
        bins = bin_sums_of(sums)
        require_samples(bins.samples)
        interval = calibration_error_interval(bins, level=level)
        error = float(expected_calibration_error(bins))
        return {Key.POSITIVE_ECE: Estimate.of(error, interval, floor=float(noise_floor(bins)))}

    def contrasts(self, sums: Sums) -> dict[str, Contrast]:
        """The sign cross-fit estimate, before its cut at 0."""
        terms = error_terms(BinSums(**sums))
        return {str(Key.POSITIVE_ECE): Contrast(terms.estimate, terms.bias)}


def _unbiased(value: Tensor) -> Contrast:
    return Contrast(value, torch.zeros_like(value))


def _largest_nll(batch: PredictionBatch) -> Tensor:
    """The NLL `[n]` that each sample would have with its least likely class as the label."""
    if batch.logits is None:
        return -batch.probabilities.amin(-1).log()
    return batch.logits.amax(-1) - batch.logits.amin(-1) - batch.probabilities.amax(-1).log()


def largest_possible_nll(sums: Sums) -> float:
    """From the sums of `Performance`, what the NLL of any of the samples could have been; up to a few percent above."""
    return math.pow(float(sums["nll_possible"]), 1 / _POWER)


def brier_scores(batch: PredictionBatch) -> Tensor:
    """`sum_k (p_k - 1[k = y])^2` of each sample, float64 `[n]`."""
    labels = batch.required_labels()
    # The label comes off before squaring: of a sure model, the sum of squares less 2 p_y - 1 is a rounding error.
    residual = batch.probabilities.clone()
    residual[torch.arange(len(labels), device=labels.device), labels] -= 1
    return residual.square_().sum(-1, dtype=torch.float64)


def brier_refinement(brier: Estimate, calibration: Estimate) -> Estimate:
    """The Brier score less its calibration part; the interval adds the widths of both, as if independent."""
    value = brier.value - calibration.value
    half = sum(((part.high - part.low) / 2) ** 2 for part in (brier, calibration)) ** 0.5
    centre = (brier.low + brier.high) / 2 - (calibration.low + calibration.high) / 2
    # In this order a limit that is NaN stays so.
    return Estimate.of(value, Interval(max(centre - half, 0.0), max(centre + half, 0.0)))


def bin_sums_of(sums: Sums) -> BinSums:
    """The sums of a calibration metric as `BinSums`, on the host."""
    return BinSums(**sums).map(torch.Tensor.cpu)


def require_samples(count: Tensor) -> int:
    """The number of samples, refusing 0."""
    samples = int(count)
    if samples == 0:
        raise NoSamplesError
    return samples


def zero_bins(*shape: int) -> Sums:
    """The sums of no samples in bins of that shape."""
    integers = {"count", "hits"}
    return {
        field.name: torch.zeros(shape, dtype=torch.int64 if field.name in integers else torch.float64)
        for field in fields(BinSums)
    }


def as_sums(bins: BinSums) -> Sums:
    """The sums of bins by name; `bin_sums_of` is the way back."""
    return {field.name: getattr(bins, field.name) for field in fields(BinSums)}
