"""What every loss does before and after its own formula: labels, masks, weights, and sums over ranks.

Types, shapes, dtypes and devices are checked everywhere, values on a CPU alone and outside of compiled code: no GPU is
synchronised, and `torch.compile(fullgraph=True)` finds no graph break. (`gather_over_ranks` is the one exception, and
says why.) Elsewhere a negative weight makes the loss NaN, and a label of no class is what the device makes of it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

IGNORE_INDEX = -100
"""The label of a position that takes no part, as in `torch.nn.functional.cross_entropy`."""


FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    require_dense_tensor(logits, name="logits")
    if logits.dtype not in FLOATING:
        raise ValueError(
            "logits must be floating point, of 16, 32 or 64 bits (float16, bfloat16, float32, float64), "
            f"got {logits.dtype}; convert them with .float()"
        )
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def as_labelled_batch(
    logits: Tensor, labels: Tensor, *, ignore_index: int, sample_weight: Tensor | None
) -> LabelledBatch:
    """Log-softmax of `[..., K]` logits with their labels; an ignored position has weight 0.

    Whatever a row of weight 0 holds, NaN included, reaches neither the loss nor a gradient.
    """
    labels, weight = labels_and_weight(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    return LabelledBatch(log_probabilities_where(logits, weight), labels, weight)


def labels_and_weight(
    logits: Tensor, labels: Tensor, *, ignore_index: int, sample_weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Labels that were checked, and what each position counts, `[...]`; labels of weight 0 are 0."""
    logits = upcast(logits)
    if logits.ndim < 1 or logits.shape[-1] < 1:
        raise ValueError(f"logits must have shape [..., K] with K >= 1, got {list(logits.shape)}")
    leading = logits.shape[:-1]
    _require_beside(labels, logits, name="labels")
    if not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an integer, got {type(ignore_index).__name__}")
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
        weight = weight * as_weight(sample_weight, logits)
        counts = weight != 0
        labels = torch.where(counts.unsqueeze(-1) if labels.is_floating_point() else counts, labels, 0)
    _require_labels_in_range(labels, classes=logits.shape[-1], ignore_index=ignore_index)
    return labels, weight


def as_weight(sample_weight: Tensor, logits: Tensor) -> Tensor:
    """Weights `[...]` of `[..., K]` logits in their dtype; NaN where one is negative, so that the loss is."""
    _require_beside(sample_weight, logits, name="sample_weight")
    if sample_weight.shape != logits.shape[:-1]:
        raise ValueError(f"sample_weight must have shape {list(logits.shape[:-1])}, got {list(sample_weight.shape)}")
    if sample_weight.is_complex():
        raise ValueError(f"sample_weight must be real, got {sample_weight.dtype}")
    weight = sample_weight.to(logits.dtype)
    bounds = _bounds_on_host(weight.detach())
    if bounds is not None and not 0 <= bounds[0] <= bounds[1] < math.inf:
        raise ValueError(
            f"sample_weight must be finite and at least 0, got values from {bounds[0]:g} to {bounds[1]:g}; a sample of "
            "weight 0 takes no part"
        )
    return torch.where(weight < 0, torch.nan, weight)


def require_dense_tensor(value: Tensor, *, name: str) -> None:
    """Refuse what is no tensor, and tensors whose rows are not all of one length or not all there."""
    if not isinstance(value, Tensor):
        many = isinstance(value, list | tuple) and value and isinstance(value[0], Tensor)
        remedy = f"torch.stack({name})" if many else f"torch.as_tensor({name})"
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}; make one with {remedy}")
    if value.is_nested:
        raise ValueError(
            f"{name} must not be a nested tensor; pad it with torch.nested.to_padded_tensor, and give the padded "
            "positions the label ignore_index"
        )
    if value.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor, got the layout {value.layout}; convert it with .to_dense()")


def require_scalar(value: float | Tensor, *, name: str, low: float = -math.inf, high: float = math.inf) -> None:
    """Refuse a hyper-parameter that is not one number from `low` to `high`; of a tensor the value is not looked at."""
    if isinstance(value, Tensor):
        if value.ndim:
            raise ValueError(
                f"{name} must be one number for the whole batch, got a tensor of shape {list(value.shape)}; single "
                "samples are weighted by sample_weight"
            )
    elif not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}; give it as float({name})")
    elif not (low <= value <= high and math.isfinite(value)):
        upper = "finite" if high == math.inf else f"at most {high:g}"
        lower = "" if low == -math.inf else f"at least {low:g} and "
        raise ValueError(f"{name} must be {lower}{upper}, got {value}")


def _require_beside(value: Tensor, logits: Tensor, *, name: str) -> None:
    require_dense_tensor(value, name=name)
    if value.device != logits.device:
        raise ValueError(
            f"{name} must be where the logits are, on {logits.device}, not on {value.device}; "
            f"{name}.to(logits.device) moves it there"
        )


def _require_labels_in_range(labels: Tensor, *, classes: int, ignore_index: int) -> None:
    """Refuse labels of no class, and soft labels that are no distribution; those of weight 0 are 0 by now."""
    bounds = _bounds_on_host(labels)
    if bounds is None:
        return
    low, high = bounds
    if labels.is_floating_point():
        if not 0 <= low <= high < math.inf:
            raise ValueError(
                f"soft labels must be finite and at least 0, got values from {low:g} to {high:g}; logits become "
                "probabilities by torch.softmax"
            )
    elif low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise ValueError(
            f"there is a label {wrong}, and logits of {classes} classes, 0 to {classes - 1}; positions to leave out "
            f"have the label {ignore_index} (ignore_index)"
        )


def _bounds_on_host(values: Tensor) -> tuple[float, float] | None:
    """Smallest and largest value, NaN if there is one; None where they cannot be had without waiting for a device."""
    if torch.compiler.is_compiling() or values.device.type != "cpu" or not values.numel():
        return None
    try:
        low, high = torch.aminmax(values)
        return low.item(), high.item()
    except RuntimeError:  # within torch.func transforms, and of fake tensors, there are no values
        return None


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
    _require_group(group)
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
    _require_group(group)
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


def _require_group(group: dist.ProcessGroup) -> None:
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"group must be a process group such as torch.distributed.group.WORLD, got {type(group).__name__}"
        )
