"""Per-class bin sums of `[N, K]` probabilities, without ever holding N x K bin indices."""

import torch
from torch import Tensor

from counterpoise.functional.calibration import DEFAULT_BINS, BinSums, bin_edges, bin_index, weighted_bincount

_BLOCK_ELEMENTS = 1 << 17
"""Probabilities handled at a time: few enough to stay in a core's cache while they are read several times."""

_FEW_CLASSES_PER_BIN = 2
"""Up to this many classes a bin, binning every probability is faster than finding the few large ones."""


def classwise_sums(probabilities: Tensor, labels: Tensor, *, bins: int = DEFAULT_BINS) -> BinSums:
    """`BinSums` `[K, B]`: for each class, all N samples binned by the probability of that class.

    Fewer than `bins` probabilities of a row exceed 1/bins, so with many classes nearly all fall into the first bin. Its
    sums are those of the whole column minus those of the other bins: a dense column sum, and a sparse pass over the
    few. With few classes, all are binned.

    >>> sums = classwise_sums(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 1]), bins=2)
    >>> sums.count
    tensor([[1, 1],
            [1, 1]])
    """
    samples, classes = probabilities.shape
    if classes <= _FEW_CLASSES_PER_BIN * bins:
        count, confidence, squared = _all_binned(probabilities, bins)
    else:
        total, total_squared, above, cell = _dense_and_sparse(probabilities, bins)
        count, confidence, squared = _sums_of_cells(cell, above, classes, bins)
        count[:, 0] = samples - count.sum(-1)
        # A difference of sums leaves rounding where nothing is left.
        rest = (count[:, 0] > 0).double()
        confidence[:, 0] = rest * (total - confidence.sum(-1)).clamp(min=0)
        squared[:, 0] = rest * (total_squared - squared.sum(-1)).clamp(min=0)
    of_label = probabilities.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    label_cell = labels * bins + bin_index(of_label, bins)
    hits, confidence_hits, _ = _sums_of_cells(label_cell, of_label.double(), classes, bins)
    return BinSums(
        count=count,
        hits=hits,
        confidence=confidence,
        confidence_squared=squared,
        confidence_hits=confidence_hits,
    )


def _sums_of_cells(cell: Tensor, values: Tensor, classes: int, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Count, sum and sum of squares `[K, B]` of float64 values, each with its cell `class * bins + bin`."""
    size = classes * bins
    totals = (weighted_bincount(cell, weights, size) for weights in (values, values * values))
    count, total, squares = (sums.view(classes, bins) for sums in (torch.bincount(cell, minlength=size), *totals))
    return count, total, squares


def _all_binned(probabilities: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Count, sum and sum of squares `[K, B]` of every probability, block by block."""
    classes, device = probabilities.shape[-1], probabilities.device
    offset = bins * torch.arange(classes, device=device)
    count = torch.zeros(classes, bins, dtype=torch.int64, device=device)
    total, squares = (torch.zeros(classes, bins, dtype=torch.float64, device=device) for _ in range(2))
    for block in torch.split(probabilities, max(1, _BLOCK_ELEMENTS // classes)):
        cell = (bin_index(block, bins) + offset).flatten()
        sums = _sums_of_cells(cell, block.double().flatten(), classes, bins)
        for running, part in zip((count, total, squares), sums, strict=True):
            running += part
    return count, total, squares


def _dense_and_sparse(probabilities: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Column sums of p and of p^2 `[K]`, and each p above the first bin with its cell `class * bins + bin`."""
    classes, device = probabilities.shape[-1], probabilities.device
    first_edge = bin_edges(bins, dtype=probabilities.dtype)[1]
    rows = max(1, _BLOCK_ELEMENTS // classes)
    column, column_squared = (torch.zeros(classes, dtype=torch.float64, device=device) for _ in range(2))
    buffer = torch.empty(min(rows, len(probabilities)), classes, dtype=torch.float64, device=device)
    values, columns = [], []
    for block in torch.split(probabilities, rows):
        # In float64, so that the sums do not depend on how samples are divided into batches.
        double = buffer[: len(block)].copy_(block)
        column += double.sum(0)
        column_squared += double.mul_(double).sum(0)
        flat = block.reshape(-1)
        place = _places(flat > first_edge)
        values.append(flat[place])
        columns.append(place % classes)
    above = torch.cat(values)
    return column, column_squared, above.double(), torch.cat(columns) * bins + bin_index(above, bins)


def _places(mask: Tensor) -> Tensor:
    """Indices of the few True entries of a boolean vector: eight entries at a time are looked at as one integer."""
    whole = mask.numel() // 8 * 8
    groups = torch.nonzero(mask[:whole].view(torch.int64))
    candidates = (8 * groups + torch.arange(8, device=mask.device)).flatten()
    candidates = torch.cat([candidates, torch.arange(whole, mask.numel(), device=mask.device)])
    return candidates[mask[candidates]]
