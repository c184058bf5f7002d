"""Per-class bin sums of `[N, K]` probabilities, without ever holding N x K bin indices."""

import torch
from torch import Tensor

from counterpoise.functional.calibration import DEFAULT_BINS, BinSums, bin_edges, bin_index, weighted_bincount

_BLOCK_ELEMENTS = 1 << 17
"""Probabilities handled at a time: few enough to stay in a core's cache while they are read several times."""


def classwise_sums(probabilities: Tensor, labels: Tensor, *, bins: int = DEFAULT_BINS) -> BinSums:
    """`BinSums` `[K, B]`: for each class, all N samples binned by the probability of that class.

    Fewer than `bins` probabilities of a row exceed 1/bins, so nearly all fall into the first bin. Its sums are those of
    the whole column minus those of the other bins: a dense column sum, and a sparse pass over the few.

    >>> sums = classwise_sums(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 1]), bins=2)
    >>> sums.count
    tensor([[1, 1],
            [1, 1]])
    """
    samples, classes = probabilities.shape
    column, column_squared, above, cell = _dense_and_sparse(probabilities, bins)

    def by_class(index: Tensor) -> Tensor:
        return torch.bincount(index, minlength=classes * bins).view(classes, bins)

    def total_by_class(index: Tensor, weights: Tensor) -> Tensor:
        return weighted_bincount(index, weights, classes * bins).view(classes, bins)

    count, confidence, squared = by_class(cell), total_by_class(cell, above), total_by_class(cell, above * above)
    count[:, 0] = samples - count.sum(-1)
    # A difference of sums leaves rounding where nothing is left.
    rest = (count[:, 0] > 0).double()
    confidence[:, 0] = rest * (column - confidence.sum(-1)).clamp(min=0)
    squared[:, 0] = rest * (column_squared - squared.sum(-1)).clamp(min=0)
    of_label = probabilities.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    label_cell = labels * bins + bin_index(of_label, bins)
    return BinSums(
        count=count,
        hits=by_class(label_cell),
        confidence=confidence,
        confidence_squared=squared,
        confidence_hits=total_by_class(label_cell, of_label.double()),
    )


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
