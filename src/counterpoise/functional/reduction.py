"""What every loss does before and after its own formula: labels, masks, weights, and sums over ranks.

Nothing here looks at values on the host: shapes and dtypes are checked, contents never are, so no GPU is
synchronised and `torch.compile(fullgraph=True)` finds no graph break. (`gather_over_ranks` is the one exception, and
says why.)
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

IGNORE_INDEX = -100
"""The label of a position that takes no part, as in `torch.nn.functional.cross_entropy`."""


class LabelledBatch(NamedTuple):
    """Log-probabilities with the labels and weights that belong to them.

    Attributes:
        log_probabilities: `[..., K]`, float32 or float64.
        labels: class indices `[...]`, or soft labels `[..., K]`; 0 where the weight is 0.
        weight: `[...]`, 0 where ignored.
    """

    log_probabilities: Tensor
    labels: Tensor
    weight: Tensor


def has_soft_labels(batch: LabelledBatch) -> bool:
    """Whether the labels are distributions over classes."""
    return batch.labels.is_floating_point()


def upcast(logits: Tensor) -> Tensor:
    """Half precision to float32; float32 and float64 unchanged."""
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating point, got {logits.dtype}; convert them with .float()")
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def as_labelled_batch(
    logits: Tensor, labels: Tensor, *, ignore_index: int, sample_weight: Tensor | None
) -> LabelledBatch:
    """Log-softmax of `[..., K]` logits with their labels; an ignored position has weight 0.

    Whatever a row of weight 0 holds, NaN included, reaches neither the loss nor a gradient.
    """
    logits = upcast(logits)
    if logits.ndim < 1 or logits.shape[-1] < 1:
        raise ValueError(f"logits must have shape [..., K] with K >= 1, got {list(logits.shape)}")
    leading = logits.shape[:-1]
    if labels.is_floating_point():
        if labels.shape != logits.shape:
            raise ValueError(
                f"soft (floating point) labels must have the shape of the logits {list(logits.shape)}, "
                f"got {list(labels.shape)}; class indices must be integers"
            )
        weight = torch.ones(leading, dtype=logits.dtype, device=logits.device)
        labels = labels.to(logits.dtype)
    else:
        if labels.dtype == torch.bool or labels.is_complex():
            raise ValueError(f"labels must be integer class indices or floating-point soft labels, got {labels.dtype}")
        if labels.shape != leading:
            raise ValueError(
                f"labels must have shape {list(leading)} for logits {list(logits.shape)}, got {list(labels.shape)}"
            )
        labels = labels.long()  # before the comparison: among 8-bit labels, -100 is class 156
        valid = labels != ignore_index
        weight = valid.to(logits.dtype)
        labels = torch.where(valid, labels, 0)
    if sample_weight is not None:
        if sample_weight.shape != leading:
            raise ValueError(f"sample_weight must have shape {list(leading)}, got {list(sample_weight.shape)}")
        weight = weight * sample_weight.to(logits.dtype)
        counts = weight != 0
        labels = torch.where(counts.unsqueeze(-1) if labels.is_floating_point() else counts, labels, 0)
    return LabelledBatch(log_probabilities_where(logits, weight), labels, weight)


def log_probabilities_where(logits: Tensor, weight: Tensor) -> Tensor:
    """Log-softmax over the last axis; rows of weight 0 count as rows of equal logits, whatever they hold."""
    return torch.log_softmax(torch.where((weight != 0).unsqueeze(-1), upcast(logits), 0.0), dim=-1)


def weighted_means(values: Sequence[Tensor], weight: Tensor, *, group: dist.ProcessGroup | None) -> tuple[Tensor, ...]:
    """`sum(weight * v) / sum(weight)` of each v, over all positions and over all ranks of `group`; 0 without weight.

    All sums of one call travel in one all-reduce.
    """
    sums = [(weight * value).sum() for value in values]
    *numerators, denominator = sum_over_ranks(torch.stack([*sums, weight.sum()]), group=group).unbind()
    return tuple(numerator / at_least_tiny(denominator) for numerator in numerators)


def weighted_mean(values: Tensor, weight: Tensor, *, group: dist.ProcessGroup | None) -> Tensor:
    """`weighted_means` of one tensor."""
    return weighted_means([values], weight, group=group)[0]


def at_least_tiny(total: Tensor) -> Tensor:
    """A total weight that can be divided by: where it is 0, so is what is divided."""
    return total.clamp(min=torch.finfo(total.dtype).tiny)


def sum_over_ranks(values: Tensor, *, group: dist.ProcessGroup | None) -> Tensor:
    """Element-wise sum over the ranks of `group`, with the gradient that data parallelism needs.

    Each rank computes the same loss F(S) of the summed S, and `DistributedDataParallel` divides the summed gradients
    by the world size W. So the local gradient is W dF/dS, which needs no communication in the backward pass.

    `group=None` means no communication; the default group is `torch.distributed.group.WORLD`.
    """
    if group is None:
        return values
    total = values.detach().clone()
    dist.all_reduce(total, group=group)
    return total + dist.get_world_size(group) * (values - values.detach())


def gather_over_ranks(rows: Tensor, *, group: dist.ProcessGroup | None) -> Tensor:
    """Rows `[n, c]` of all ranks, concatenated in rank order; gradients as in `sum_over_ranks`.

    Shards may be of different lengths. Their lengths are the shape of the result, so this reads them on the host:
    one synchronisation a step, only where a group is given.
    """
    if group is None:
        return rows
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    lengths = torch.zeros(world, dtype=torch.int64, device=rows.device)
    lengths[rank] = rows.shape[0]
    dist.all_reduce(lengths, group=group)
    sizes: list[int] = lengths.tolist()
    padded = rows.new_zeros(max(sizes), rows.shape[1])
    padded[: rows.shape[0]] = rows.detach()
    shards = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(shards, padded, group=group)
    pieces = [shard[:size] for shard, size in zip(shards, sizes, strict=True)]
    pieces[rank] = rows.detach() + world * (rows - rows.detach())
    return torch.cat(pieces)
