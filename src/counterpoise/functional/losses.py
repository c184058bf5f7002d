"""Losses that are a mean over samples. Logits are `[..., K]`; labels are `[...]` indices or `[..., K]` distributions.

All share the same last arguments:

- `ignore_index`: positions with this label take no part.
- `sample_weight`: `[...]`; the mean is `sum(w * loss) / sum(w)`.
- `group`: process group over which the batch is sharded. The value is then that of the whole batch on every rank, and
  the gradients that `DistributedDataParallel` averages are those of the whole batch, uneven shards included.

A soft label q means the expectation of the loss over a label drawn from it, `sum_k q_k loss(k)`; a one-hot q is its
class. `ignore_index` names no soft label: what is to be left out has weight 0. A class whose logit is -inf is out of
the race: its probability is 0, it gets no gradient, and label smoothing gives it no mass.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoise.functional.reduction import (
    IGNORE_INDEX,
    LabelledBatch,
    as_labelled_batch,
    has_soft_labels,
    require_scalar,
    weighted_mean,
)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Mean of `-log p_y`; with soft labels q, of `-sum_k q_k log p_k`.

    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor(1.3863)
    """
    batch = as_labelled_batch(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    return weighted_mean(expected_under_labels(batch, torch.neg), batch.weight, group=group)


def label_smoothing(
    logits: Tensor,
    labels: Tensor,
    *,
    smoothing: float = 0.1,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Cross-entropy with the target `(1 - smoothing) q + smoothing / K`, where q is `onehot(y)` or a soft label.

    >>> label_smoothing(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), smoothing=0.1)
    tensor(0.2269)
    """
    require_scalar(smoothing, name="smoothing", low=0, high=1)
    batch = as_labelled_batch(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    negative_log = -batch.log_probabilities
    possible = negative_log != torch.inf
    uniform = negative_log.masked_fill(~possible, 0.0).sum(-1) / possible.sum(-1)
    smoothed = (1 - smoothing) * expected_under_labels(batch, torch.neg) + smoothing * uniform
    return weighted_mean(smoothed, batch.weight, group=group)


def entropy_regularised(
    logits: Tensor,
    labels: Tensor,
    *,
    beta: float = 0.1,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Mean of `-log p_y - beta H(p)`, with the entropy `H(p) = -sum_k p_k log p_k`.

    With soft labels q, the first term is `-sum_k q_k log p_k`.

    >>> entropy_regularised(torch.zeros(1, 4), torch.tensor([0]), beta=0.1)
    tensor(1.2477)
    """
    require_scalar(beta, name="beta")
    batch = as_labelled_batch(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    regularised = expected_under_labels(batch, torch.neg) - beta * entropy(batch.log_probabilities)
    return weighted_mean(regularised, batch.weight, group=group)


def focal(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 2.0,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Mean of `-(1 - p_y)^gamma log p_y`; with soft labels q, of `-sum_k q_k (1 - p_k)^gamma log p_k`.

    >>> focal(torch.zeros(1, 2), torch.tensor([0]), gamma=2.0)
    tensor(0.1733)
    """
    require_scalar(gamma, name="gamma", low=0)
    batch = as_labelled_batch(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    return weighted_mean(expected_under_labels(batch, partial(_focal, gamma=gamma)), batch.weight, group=group)


def focal_sample_dependent(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma_uncertain: float = 5.0,
    gamma_confident: float = 3.0,
    threshold: float = 0.2,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """FLSD-53: focal loss with gamma 5 where `p_y < 0.2` and 3 elsewhere, chosen without gradient.

    With soft labels, gamma is chosen for each class by its own p_k.

    >>> focal_sample_dependent(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.0866)
    """
    require_scalar(gamma_uncertain, name="gamma_uncertain", low=0)
    require_scalar(gamma_confident, name="gamma_confident", low=0)
    require_scalar(threshold, name="threshold", low=0, high=1)

    def loss(log_probability: Tensor) -> Tensor:
        uncertain = log_probability.detach().exp() < threshold
        gamma = torch.full_like(log_probability, gamma_confident).masked_fill(uncertain, gamma_uncertain)
        return _focal(log_probability, gamma=gamma)

    batch = as_labelled_batch(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    return weighted_mean(expected_under_labels(batch, loss), batch.weight, group=group)


def expected_under_labels(batch: LabelledBatch, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """`loss` of the label's log-probability, `[...]`, or its mean under a soft label.

    Classes that the label gives no mass are never passed to `loss`: what is infinite there stays out of the gradient.
    """
    if has_soft_labels(batch):
        possible = batch.log_probabilities.masked_fill(batch.labels == 0, 0.0)
        return (batch.labels * loss(possible)).sum(-1)
    return loss(batch.log_probabilities.gather(-1, batch.labels.unsqueeze(-1)).squeeze(-1))


def entropy(log_probabilities: Tensor) -> Tensor:
    """`-sum_k p_k log p_k` over the last axis, with 0 log 0 = 0 in value and gradient."""
    finite = log_probabilities.masked_fill(log_probabilities == -torch.inf, 0.0)
    return -(log_probabilities.exp() * finite).sum(-1)


def _focal(log_probability: Tensor, *, gamma: float | Tensor) -> Tensor:
    # For gamma < 1 the derivative of (1-p)^gamma is infinite at p = 1, although that of the loss is 0: kept off 0.
    # expm1 keeps 1-p exact near p = 1. At p = 0 the loss is infinite, with the gradient of cross-entropy: that of 1-p
    # would be infinity times zero.
    impossible = log_probability == -torch.inf
    miss = (-torch.expm1(log_probability.masked_fill(impossible, 0.0))).clamp(
        min=torch.finfo(log_probability.dtype).tiny
    )
    return -torch.where(impossible, 1.0, miss**gamma) * log_probability
