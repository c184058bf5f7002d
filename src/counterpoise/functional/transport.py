"""The equations of mutual-transport ensembles (MTE) and of deep mutual learning (DML), one function each.

f is the primary, g_1..g_N are the auxiliaries; all logits are `[..., K]`. Labels y are `[...]` indices or `[..., K]`
distributions, of which `CE(f, y) = -sum_k y_k log f_k`. A distribution that is only a target carries
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
    LabelledBatch,
    as_labelled_batch,
    as_weight,
    log_probabilities_where,
    require_dense_tensor,
    require_scalar,
    upcast,
    weighted_mean,
    weighted_means,
)


class PrimaryTerms(NamedTuple):
    """The scalars of the primary's loss; `loss = cross_entropy + alpha * transport`."""

    loss: Tensor
    cross_entropy: Tensor
    transport: Tensor


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
    _require_alike(target_logits, [logits])
    return _kl(torch.log_softmax(upcast(target_logits), -1), torch.log_softmax(upcast(logits), -1))


def primary_loss(
    primary_logits: Tensor,
    auxiliary_logits: Sequence[Tensor],
    labels: Tensor,
    *,
    alpha: float | Tensor,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> PrimaryTerms:
    """`L_f = CE(f, y) + alpha (1/N) sum_i KL(g_i || f)` with every g_i constant.

    Of the auxiliaries it needs nothing but their logits for the same batch: they may be computed elsewhere.

    >>> terms = primary_loss(torch.zeros(1, 2), [torch.tensor([[1.0, 0.0]])], torch.tensor([0]), alpha=0.8)
    >>> terms.loss
    tensor(0.7819)
    """
    require_scalar(alpha, name="alpha", low=0)
    _require_alike(primary_logits, auxiliary_logits)
    batch = as_labelled_batch(primary_logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    targets = [log_probabilities_where(logits.detach(), batch.weight) for logits in auxiliary_logits]
    return _primary_terms(weighted_means(_of_primary(batch, targets), batch.weight, group=group), alpha=alpha)


def auxiliary_loss(
    auxiliary_logits: Tensor,
    primary_logits: Tensor,
    *,
    sample_weight: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """`L_g = KL(f || g)` with f constant, as a mean over the samples. No label is needed.

    Positions that the primary ignores must have weight 0: `sample_weight=(labels != ignore_index).float()`.

    >>> auxiliary_loss(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2))
    tensor(0.1201)
    """
    _require_alike(primary_logits, [auxiliary_logits])
    logits = upcast(auxiliary_logits)
    weight = logits.new_ones(logits.shape[:-1]) if sample_weight is None else as_weight(sample_weight, logits)
    primary = log_probabilities_where(primary_logits.detach(), weight)
    return weighted_mean(_of_auxiliary(primary, log_probabilities_where(logits, weight)), weight, group=group)


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
    """`primary_loss` and each auxiliary's `auxiliary_loss`, as one scalar and in one all-reduce.

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
    batch = as_labelled_batch(primary_logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    return transport_of(batch, auxiliary_logits, alpha=alpha, group=group)


def transport_of(
    batch: LabelledBatch,
    auxiliary_logits: Sequence[Tensor],
    *,
    alpha: float | Tensor,
    group: dist.ProcessGroup | None,
) -> MutualTransportTerms:
    """`mutual_transport` where the primary's logits and the labels were read already."""
    require_scalar(alpha, name="alpha", low=0)
    _require_alike(batch.log_probabilities, auxiliary_logits)
    auxiliaries = [log_probabilities_where(logits, batch.weight) for logits in auxiliary_logits]
    of_primary = _of_primary(batch, auxiliaries)
    of_auxiliaries = [_of_auxiliary(batch.log_probabilities, auxiliary) for auxiliary in auxiliaries]
    means = weighted_means([*of_primary, *of_auxiliaries], batch.weight, group=group)
    primary, transport = _primary_terms(means[: len(of_primary)], alpha=alpha), means[len(of_primary) :]
    return MutualTransportTerms(primary.loss + sum(transport), primary.cross_entropy, primary.transport, transport)


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
    require_scalar(alpha, name="alpha", low=0)
    if len(logits) < 2:
        raise ValueError(f"deep mutual learning needs the logits of at least two models, got {len(logits)}")
    _require_alike(logits[0], logits[1:])
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


def _of_primary(batch: LabelledBatch, auxiliaries: Sequence[Tensor]) -> list[Tensor]:
    """Of each sample, the cross-entropy and the divergence from each auxiliary: what moves the primary."""
    divergences = (_kl(auxiliary.detach(), batch.log_probabilities) for auxiliary in auxiliaries)
    return [expected_under_labels(batch, torch.neg), *divergences]


def _of_auxiliary(primary: Tensor, auxiliary: Tensor) -> Tensor:
    """Of each sample, the divergence from the primary: what moves an auxiliary."""
    return _kl(primary.detach(), auxiliary)


def _primary_terms(means: Sequence[Tensor], *, alpha: float | Tensor) -> PrimaryTerms:
    cross_entropy, *divergences = means
    transport = torch.stack(divergences).mean() if divergences else torch.zeros_like(cross_entropy)
    return PrimaryTerms(cross_entropy + _weighted(alpha, transport), cross_entropy, transport)


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


def _require_alike(first: Tensor, others: Sequence[Tensor]) -> None:
    if isinstance(others, Tensor):
        raise TypeError("the other models' logits must be a list with one tensor for each model, got one tensor")
    for logits in (first, *others):
        require_dense_tensor(logits, name="logits")
    for index, other in enumerate(others, 1):
        if other.shape != first.shape:
            raise ValueError(
                f"all models must return logits of one shape: the first gave {list(first.shape)}, "
                f"number {index} after it gave {list(other.shape)}"
            )
        if other.device != first.device:
            raise ValueError(
                f"all logits must be on one device: the first are on {first.device}, number {index} after them on "
                f"{other.device}; move them with .to({str(first.device)!r})"
            )
