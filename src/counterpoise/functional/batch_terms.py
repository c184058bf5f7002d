"""Calibration terms that are functions of the whole batch; methods add one of them to a loss, with a weight.

p is the confidence (the largest probability), c is 1 where the prediction is right and has no gradient. Arguments
shared with `losses` mean the same here; weights enter every mean. None of these terms is the mean of its shards, so
under data parallelism they need `group`: without it each rank regularises its own shard, which is another objective
(64 samples: an MDCA term of 0.035 as a whole, 0.084 as the mean of four shards).
"""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoise.functional.reduction import (
    IGNORE_INDEX,
    LabelledBatch,
    as_labelled_batch,
    at_least_tiny,
    gather_over_ranks,
    has_soft_labels,
    require_scalar,
    sum_over_ranks,
    weighted_mean,
)

MMCE_BANDWIDTH = 0.4
"""Width of the Laplace kernel of MMCE, as in the published code."""

SMALLEST_BANDWIDTH = 0.02
"""exp(1 / bandwidth) must be finite in float32."""


def dca_term(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Difference of confidence and accuracy: `abs(mean p - mean c)`.

    >>> dca_term(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor(0.)
    """
    batch = as_labelled_batch(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    return _confidence_gap(batch, group=group).abs()


def dtdp_term(
    logits: Tensor,
    labels: Tensor,
    *,
    alpha: float = 0.005,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Huber function of `d = mean p - mean c`: `d^2/2` where `abs(d) <= alpha`, else `alpha (abs(d) - alpha/2)`.

    (`smooth_l1_loss(beta=alpha)` is the same divided by alpha: 200 times larger at the default.)

    >>> dtdp_term(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), alpha=0.1)
    tensor(0.0450)
    """
    require_scalar(alpha, name="alpha", low=0)
    batch = as_labelled_batch(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    gap = _confidence_gap(batch, group=group)
    return torch.where(gap.abs() <= alpha, 0.5 * gap**2, alpha * (gap.abs() - 0.5 * alpha))


def mdca_term(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Multi-class DCA: `(1/K) sum_k abs(mean_i p_ik - mean_i [y_i = k])`.

    >>> mdca_term(torch.zeros(2, 2), torch.tensor([0, 0]))
    tensor(0.5000)
    """
    batch = as_labelled_batch(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    classes = batch.log_probabilities.shape[-1]
    excess = batch.log_probabilities.exp().reshape(-1, classes)
    if has_soft_labels(batch):
        excess = excess - batch.labels.reshape(-1, classes)
    else:
        index = batch.labels.reshape(-1, 1)
        excess = excess.scatter_add(-1, index, excess.new_full(index.shape, -1.0))
    weight = batch.weight.reshape(-1, 1)
    # Not a matrix product, which autocast would round to half precision.
    sums = sum_over_ranks(torch.cat([(weight * excess).sum(0), weight.sum().unsqueeze(0)]), group=group)
    return sums[:-1].abs().mean() / at_least_tiny(sums[-1])


def mmce_term(
    logits: Tensor,
    labels: Tensor,
    *,
    square_root: bool = False,
    bandwidth: float = MMCE_BANDWIDTH,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Maximum mean calibration error: `(1/n^2) sum_ij (c_i - p_i)(c_j - p_j) exp(-abs(p_i - p_j) / bandwidth)`.

    The paper of MMCE takes the square root of this; the published codes do not, and neither does the default here.

    >>> mmce_term(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.2500)
    """
    points = _correctness(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight, group=group)
    total = at_least_tiny(points.weight.sum())
    form = _laplace_form(points.confidence, points.weight * (points.correct - points.confidence) / total, bandwidth)
    return _square_root(form) if square_root else form


def weighted_mmce_term(
    logits: Tensor,
    labels: Tensor,
    *,
    square_root: bool = True,
    normalise_twice: bool = False,
    bandwidth: float = MMCE_BANDWIDTH,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """MMCE with right and wrong samples weighted alike (m right, w wrong, k the kernel of `mmce_term`).

    `sqrt(sum_cc (1-p_i)(1-p_j) k/m^2 + sum_ww p_i p_j k/w^2 - 2 sum_cw (1-p_i) p_j k/(m w))`, and 0 where all are
    right or all are wrong. `normalise_twice` divides each sum by its m^2, w^2 or m w once more, as published code does.

    >>> weighted_mmce_term(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor(0.)
    """
    points = _correctness(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight, group=group)
    right, wrong = points.weight * points.correct, points.weight * (1 - points.correct)
    both = (right.sum() > 0) & (wrong.sum() > 0)
    # The three sums are one quadratic form in these coefficients.
    coefficients = _share(right, normalise_twice) * (1 - points.confidence)
    coefficients = coefficients - _share(wrong, normalise_twice) * points.confidence
    form = _laplace_form(points.confidence, torch.where(both, coefficients, 0.0), bandwidth)
    return _square_root(form) if square_root else form


def _share(weight: Tensor, normalise_twice: bool) -> Tensor:  # noqa: FBT001
    share = weight / at_least_tiny(weight.sum())
    return share / (weight > 0).sum().clamp(min=1) if normalise_twice else share


class _Points(NamedTuple):
    """Confidence, correctness (0 or 1) and weight of each sample of the whole batch, flat."""

    confidence: Tensor
    correct: Tensor
    weight: Tensor


def _top(batch: LabelledBatch) -> tuple[Tensor, Tensor]:
    """Confidence and correctness `[...]`; under a soft label, correctness is the mass it gives to the prediction."""
    top, prediction = batch.log_probabilities.max(-1)
    if has_soft_labels(batch):
        return top.exp(), batch.labels.gather(-1, prediction.unsqueeze(-1)).squeeze(-1)
    return top.exp(), (prediction == batch.labels).to(top.dtype)


def _confidence_gap(batch: LabelledBatch, *, group: dist.ProcessGroup | None) -> Tensor:
    confidence, correct = _top(batch)
    return weighted_mean(confidence - correct, batch.weight, group=group)


def _correctness(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int,
    sample_weight: Tensor | None,
    group: dist.ProcessGroup | None,
) -> _Points:
    batch = as_labelled_batch(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    if has_soft_labels(batch):
        raise ValueError(
            "MMCE compares pairs of right and wrong predictions, so it needs integer labels, not soft ones"
        )
    confidence, correct = _top(batch)
    rows = torch.stack([confidence.reshape(-1), correct.reshape(-1), batch.weight.reshape(-1)], dim=-1)
    return _Points(*gather_over_ranks(rows, group=group).unbind(-1))


def _laplace_form(points: Tensor, coefficients: Tensor, bandwidth: float) -> Tensor:
    """`sum_ij a_i a_j exp(-abs(p_i - p_j) / bandwidth)` for p in [0, 1], in O(n log n) time and O(n) memory.

    In ascending order the kernel factorises, exp(-p_i/b) exp(p_j/b) for j before i, so a cumulative sum replaces the
    n x n matrix: a batch of pixels fits. Between equal p the absolute value has a kink; the mean of the two orders of
    equal points gives it derivative 0, whatever the order of the samples.
    """
    require_scalar(bandwidth, name="bandwidth", low=SMALLEST_BANDWIDTH)
    if points.is_cuda and torch.are_deterministic_algorithms_enabled():  # which a cumulative sum on a GPU has none of
        return _pairwise_form(points, coefficients, bandwidth)
    up = torch.argsort(points, stable=True)
    down = torch.argsort(points, descending=True, stable=True).flip(0)
    return 0.5 * (
        _sorted_form(points[up], coefficients[up], bandwidth)
        + _sorted_form(points[down], coefficients[down], bandwidth)
    )


def _pairwise_form(points: Tensor, coefficients: Tensor, bandwidth: float) -> Tensor:
    """The same by its definition, in O(n^2) time and memory."""
    kernel = torch.exp(-(points[:, None] - points).abs() / bandwidth)
    return (coefficients[:, None] * coefficients * kernel).sum()


def _sorted_form(points: Tensor, coefficients: Tensor, bandwidth: float) -> Tensor:
    growing = coefficients * torch.exp(points / bandwidth)
    before = torch.cumsum(growing, 0) - growing
    return (coefficients**2).sum() + 2 * (coefficients * torch.exp(-points / bandwidth) * before).sum()


def _square_root(form: Tensor) -> Tensor:
    # The form is a squared norm: 0 at its minimum, where the root's own derivative is infinite.
    positive = form > 0
    return torch.where(positive, torch.where(positive, form, 1.0).sqrt(), 0.0)
