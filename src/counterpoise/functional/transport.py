"""The equations of mutual-transport ensembles (MTE) and of deep mutual learning (DML), one function each.

f is the primary, g_1..g_N are the auxiliaries; all logits are `[..., K]`. A distribution that is only a target carries
no gradient. So the one scalar `loss` of each result gives every model exactly the gradient of its own loss, and one
backward pass with one optimizer trains them all.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoise.functional.losses import expected_under_labels
from counterpoise.functional.reduction import (
    IGNORE_INDEX,
    as_labelled_batch,
    log_probabilities_where,
    upcast,
    weighted_means,
)


class MutualTransportTerms(NamedTuple):
    """The scalars of one MTE step; `loss = cross_entropy + alpha * primary_transport + sum(auxiliary_transport)`."""

    loss: Tensor
    cross_entropy: Tensor
    primary_transport: Tensor
    auxiliary_transport: tuple[Tensor, ...]


class DeepMutualTerms(NamedTuple):
    """The scalars of one DML step; `loss = sum(cross_entropy) + alpha * sum(transport)`."""

    loss: Tensor
    cross_entropy: tuple[Tensor, ...]
    transport: tuple[Tensor, ...]


def kl_divergence(target_logits: Tensor, logits: Tensor) -> Tensor:
    """`KL(t || p) = sum_k t_k (log t_k - log p_k)` per sample, `[...]`; a class with t_k = 0 adds 0.

    >>> kl_divergence(torch.tensor([[0.0, -torch.inf]]), torch.tensor([[0.0, 0.0]]))
    tensor([0.6931])
    """
    return _kl(torch.log_softmax(upcast(target_logits), -1), torch.log_softmax(upcast(logits), -1))


def mutual_transport(
    primary_logits: Tensor,
    auxiliary_logits: Sequence[Tensor],
    labels: Tensor,
    *,
    alpha: float | Tensor,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> MutualTransportTerms:
    """The primary's loss and the auxiliaries' losses, as one scalar.

    `L_f = CE(f, y) + alpha (1/N) sum_i KL(g_i || f)` moves f only, `L_gi = KL(f || g_i)` moves g_i only, and
    `loss = L_f + sum_i L_gi`. No label reaches an auxiliary.

    >>> f, g = torch.zeros(1, 2, requires_grad=True), torch.tensor([[1.0, 0.0]], requires_grad=True)
    >>> terms = mutual_transport(f, [g], torch.tensor([0]), alpha=0.8)
    >>> terms.loss.backward()
    >>> f.grad  # (1 + alpha) f - onehot(y) - alpha g
    tensor([[-0.6848,  0.6848]])
    >>> g.grad  # g - f
    tensor([[ 0.2311, -0.2311]])
    """
    _require_same_shape(primary_logits, auxiliary_logits)
    batch = as_labelled_batch(primary_logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    primary, weight = batch.log_probabilities, batch.weight
    auxiliaries = [log_probabilities_where(logits, weight) for logits in auxiliary_logits]
    cross_entropy, *transports = weighted_means(
        [
            expected_under_labels(batch, torch.neg),
            *(_kl(auxiliary.detach(), primary) for auxiliary in auxiliaries),
            *(_kl(primary.detach(), auxiliary) for auxiliary in auxiliaries),
        ],
        weight,
        group=group,
    )
    towards, auxiliary_transport = transports[: len(auxiliaries)], tuple(transports[len(auxiliaries) :])
    primary_transport = torch.stack(towards).mean() if towards else torch.zeros_like(cross_entropy)
    loss = cross_entropy + _weighted(alpha, primary_transport) + sum(auxiliary_transport)
    return MutualTransportTerms(loss, cross_entropy, primary_transport, auxiliary_transport)


def deep_mutual(
    logits: Sequence[Tensor],
    labels: Tensor,
    *,
    alpha: float | Tensor,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> DeepMutualTerms:
    """`L_i = CE(p_i, y) + alpha mean_{j != i} KL(p_j || p_i)` with p_j constant; `loss = sum_i L_i`.

    >>> terms = deep_mutual([torch.zeros(1, 2), torch.zeros(1, 2)], torch.tensor([0]), alpha=1.0)
    >>> terms.loss
    tensor(1.3863)
    """
    if len(logits) < 2:
        raise ValueError(f"deep mutual learning needs the logits of at least two models, got {len(logits)}")
    _require_same_shape(logits[0], logits[1:])
    batches = [
        as_labelled_batch(each, labels, ignore_index=ignore_index, sample_weight=sample_weight) for each in logits
    ]
    log_probabilities = [batch.log_probabilities for batch in batches]
    means = weighted_means(
        [
            *(expected_under_labels(batch, torch.neg) for batch in batches),
            *(_mean_kl_to_peers(index, log_probabilities) for index in range(len(batches))),
        ],
        batches[0].weight,
        group=group,
    )
    cross_entropy, transport = means[: len(batches)], means[len(batches) :]
    loss = torch.stack(cross_entropy).sum() + _weighted(alpha, torch.stack(transport).sum())
    return DeepMutualTerms(loss, cross_entropy, transport)


def _kl(target: Tensor, log_probabilities: Tensor) -> Tensor:
    """KL from log-probabilities. Where the target is 0 both logarithms are replaced, so that 0 * inf never arises."""
    mass = target.exp()
    impossible = mass == 0
    difference = target.masked_fill(impossible, 0.0) - log_probabilities.masked_fill(impossible, 0.0)
    return (mass * difference).sum(-1)


def _weighted(alpha: float | Tensor, term: Tensor) -> Tensor:
    """`alpha * term` in the precision of the term: between two scalar tensors the wider would win."""
    return (alpha.to(term.dtype) if isinstance(alpha, Tensor) else alpha) * term


def _mean_kl_to_peers(index: int, log_probabilities: Sequence[Tensor]) -> Tensor:
    peers = [*log_probabilities[:index], *log_probabilities[index + 1 :]]
    return torch.stack([_kl(peer.detach(), log_probabilities[index]) for peer in peers]).mean(0)


def _require_same_shape(first: Tensor, others: Sequence[Tensor]) -> None:
    for index, other in enumerate(others):
        if other.shape != first.shape:
            raise ValueError(
                f"all models must return logits of one shape: the first gave {list(first.shape)}, "
                f"number {index + 1} after it gave {list(other.shape)}"
            )
