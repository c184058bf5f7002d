"""Evidence against "as in the reference": four e-processes, and how the total error is split over them.

The reference is a sample too. So bets are not against its mean, but against a confidence limit of the mean; where all
limits hold, each e-process is one, and the probability that anything ever alarms is at most the sum of what is spent on
the limits and on the alarms (`ERROR_ON_REFERENCE`).

Tensors may have leading dimensions, so that many streams are followed at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from counterpoise.functional.betting import (
    BETS,
    log_wealth,
    mean_limits,
    share_log_wealth,
    start_weight,
)
from counterpoise.functional.proportions import Limits, clopper_pearson

Part = Literal["accuracy", "calibration", "classes", "confidence"]
PARTS: tuple[Part, ...] = get_args(Part)
LABELLED: tuple[Part, ...] = ("accuracy", "calibration")
"""Those that need labels."""

ERROR_ON_REFERENCE = 0.5
"""Share of each part's error that is spent on the limits of the reference; the rest is for its alarm. The parts have
equal shares of `1 - level`: at 0.95, each 1.25%, half of it for limits and half for alarms, at an evidence of 160."""

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""Confidences below which the share of predictions is followed. They are fixed, and not quantiles of the reference:
limits of shares are exact for thresholds that do not hang on the sample."""


def alarm_threshold(level: float) -> float:
    """Evidence at which a part alarms.

    >>> round(alarm_threshold(0.95))
    160
    """
    return len(PARTS) / ((1 - level) * (1 - ERROR_ON_REFERENCE))


def reference_error(level: float) -> float:
    """Probability with which any of one part's limits may fail."""
    return (1 - level) * ERROR_ON_REFERENCE / len(PARTS)


class Tallies(NamedTuple):
    """Counts as tensors of doubles: `[..., K]` classes, and `[..., C]` cells of predictions, hits and misses.

    Those of a stream are `[..., N, K]` and `[..., N, C]`, of N windows.
    """

    classes: Tensor
    predictions: Tensor
    hits: Tensor
    misses: Tensor


@dataclass(frozen=True)
class Bounds:
    """Confidence limits of what is followed, from a reference.

    Attributes:
        values: confidence of each cell, `[C]`.
        misses: upper limit of the share of wrong predictions, `[...]`.
        gap: of the mean of `(1 + confidence - hit) / 2`, `[...]`.
        classes: of the share of each predicted class, `[..., K]`.
        below: of the share of predictions below each of `THRESHOLDS`, `[..., 14]`.
        mean: of the mean confidence, `[...]`.
    """

    values: Tensor
    misses: Tensor
    gap: Limits
    classes: Limits
    below: Limits
    mean: Limits


def bounds_of(reference: Tallies, values: Tensor, *, level: float) -> Bounds:
    """All limits of each part hold together with probability `1 - reference_error(level)`."""
    error = reference_error(level)
    samples = reference.predictions.sum(-1)
    misses, labelled = reference.misses.sum(-1), reference.misses.sum(-1) + reference.hits.sum(-1)
    classes, followed = reference.classes.shape[-1], len(THRESHOLDS) + 1
    return Bounds(
        values=values,
        misses=clopper_pearson(misses, labelled, error=error).high,
        gap=mean_limits(_outcomes(reference), _gaps(values), error=error / 2),
        classes=clopper_pearson(reference.classes, samples[..., None], error=error / (2 * max(1, classes))),
        below=clopper_pearson(_below(reference, values), samples[..., None], error=error / (2 * followed)),
        mean=mean_limits(reference.predictions, values, error=error / (2 * followed)),
    )


def log_products(seen: Tallies, bounds: Bounds) -> dict[Part, Tensor]:
    """Log of what fortunes are multiplied by in each window, `[..., N, questions, len(BETS)]`.

    Questions that have two sides are asked above first, then below.
    """
    values, samples = bounds.values, seen.predictions.sum(-1, keepdim=True)
    misses, hits = seen.misses.sum(-1, keepdim=True), seen.hits.sum(-1, keepdim=True)
    found: dict[Part, Tensor] = {
        "accuracy": share_log_wealth(misses, misses + hits, bounds.misses[..., None]),
        "calibration": _sides(_outcomes(seen), _gaps(values), bounds.gap),
    }
    if seen.classes.shape[-1]:
        found["classes"] = _share_sides(seen.classes, samples, bounds.classes)
    below = _share_sides(_below(seen, values), samples, bounds.below)
    found["confidence"] = torch.cat([below, _sides(seen.predictions, values, bounds.mean)], -2)
    return found


def question(part: Part, index: int, *, class_names: Sequence[str]) -> str:
    """What a question of a part is about, in words."""
    if part == "accuracy":
        return "more errors"
    if part == "calibration":
        return f"confidence {('above', 'below')[index]} accuracy, more than before"
    if part == "classes":
        classes = len(class_names)
        return f"{'more' if index < classes else 'fewer'} predictions of {class_names[index % classes]}"
    shares = len(THRESHOLDS)
    if index >= 2 * shares:
        return f"{('higher', 'lower')[index - 2 * shares]} mean confidence"
    return f"{'more' if index < shares else 'fewer'} predictions with a confidence below {THRESHOLDS[index % shares]:g}"


@dataclass
class Fortunes:
    """The e-process of a part: the sum of fortunes that began in each window, and what is not staked yet.

    Attributes:
        log_wealth: `[..., questions, len(BETS)]`, of all that have begun.
        windows: how many have passed.
        log_best: of the start that has most, likewise.
        best_start: which it is.
    """

    log_wealth: Tensor
    windows: int
    log_best: Tensor
    best_start: Tensor

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "Fortunes":
        empty = torch.full(shape, -math.inf, dtype=torch.float64)
        return cls(empty, 0, empty, torch.zeros(shape, dtype=torch.int64))

    def pass_window(self, index: int, log_product: Tensor) -> None:
        """See the window of that number, counted from 0; those between had no samples."""
        log_weight = math.log(start_weight(index + 1) - start_weight(self.windows))
        weight = torch.tensor(log_weight, dtype=torch.float64)
        self.log_wealth = torch.logaddexp(self.log_wealth, weight) + log_product
        self.best_start = torch.where(self.log_best < weight, index, self.best_start)
        self.log_best = torch.maximum(self.log_best, weight) + log_product
        self.windows = index + 1

    def log_evidence(self) -> Tensor:
        """Log of the e-process, `[...]`: the mean over questions and bets."""
        wealth = self.log_wealth.flatten(-2)
        staked = wealth.logsumexp(-1) - math.log(wealth.shape[-1])
        return torch.logaddexp(staked, torch.tensor(_log_unstaked(self.windows), dtype=torch.float64))

    def leading(self) -> tuple[int, int]:
        """Of one stream, the question with most evidence, and the window where what it shows began most likely."""
        place = int(self.log_best.argmax())
        return place // len(BETS), int(self.best_start.reshape(-1)[place])


def _log_unstaked(windows: int) -> float:
    return -math.log(math.log2(windows + 2))


def _outcomes(tallies: Tallies) -> Tensor:
    """Hits of each cell, then misses, `[..., 2 C]`."""
    return torch.cat([tallies.hits, tallies.misses], -1)


def _gaps(values: Tensor) -> Tensor:
    return torch.cat([values / 2, (1 + values) / 2])


def _below(tallies: Tallies, values: Tensor) -> Tensor:
    is_below = (values[:, None] < torch.tensor(THRESHOLDS, dtype=values.dtype)).to(values.dtype)
    return tallies.predictions @ is_below


def _sides(counts: Tensor, values: Tensor, limits: Limits) -> Tensor:
    above = log_wealth(counts, values, limits.high)
    return torch.stack([above, log_wealth(counts, 1 - values, 1 - limits.low)], -2)


def _share_sides(hits: Tensor, trials: Tensor, limits: Limits) -> Tensor:
    above = share_log_wealth(hits, trials, limits.high)
    return torch.cat([above, share_log_wealth(trials - hits, trials, 1 - limits.low)], -2)
