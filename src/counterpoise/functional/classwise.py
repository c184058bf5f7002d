"""Per-class bin sums of `[N, K]` probabilities, without ever holding N x K bin indices."""

import torch
from torch import Tensor

from counterpoise.functional.calibration import DEFAULT_BINS, BinSums, bin_edges, bin_index

_BLOCK_ELEMENTS = 1 << 19
"""Elements of probability handled at a time: what stays in a core's cache while it is read several times."""


def classwise_sums(probabilities: Tensor, labels: Tensor, *, bins: int = DEFAULT_BINS) -> BinSums:
    """`BinSums` `[K, B]`: for each class, all N samples binned by the probability of that class.

    At most `bins` probabilities of a row exceed 1/bins, so nearly all fall into the first bin. Its sums are those of
    the whole column minus those of the other bins: a dense column sum, and a sparse pass over the few.

    >>> sums = classwise_sums(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 1]), bins=2)
    >>> sums.count
    tensor([[1, 1],
            [1, 1]])
    """
    samples, classes = probabilities.shape
    device = probabilities.device
    cells = classes * bins
    sums = {name: torch.zeros(cells, dtype=torch.float64, device=device) for name in ("p", "p2")}
    count = torch.zeros(cells, dtype=torch.int64, device=device)
    column, column_squared = (torch.zeros(classes, dtype=torch.float64, device=device) for _ in range(2))
    first_edge = bin_edges(bins, dtype=probabilities.dtype)[1]
    rows = max(1, _BLOCK_ELEMENTS // classes)
    squares = torch.empty(rows, classes, dtype=probabilities.dtype, device=device)
    for block in torch.split(probabilities, rows):
        column += block.sum(0)
        column_squared += torch.mul(block, block, out=squares[: len(block)]).sum(0)
        flat = block.reshape(-1)
        above = torch.nonzero(flat > first_edge).squeeze(-1)
        p = flat[above]
        cell = (above % classes) * bins + bin_index(p, bins)
        p = p.double()
        count.index_add_(0, cell, torch.ones_like(cell))
        sums["p"].index_add_(0, cell, p)
        sums["p2"].index_add_(0, cell, p * p)
    by_class = {name: total.view(classes, bins) for name, total in sums.items()}
    count = count.view(classes, bins)
    count[:, 0] = samples - count.sum(-1)
    by_class["p"][:, 0] = (column - by_class["p"].sum(-1)).clamp(min=0)
    by_class["p2"][:, 0] = (column_squared - by_class["p2"].sum(-1)).clamp(min=0)
    of_label = probabilities.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    label_cell = labels * bins + bin_index(of_label, bins)
    return BinSums(
        count=count,
        hits=torch.bincount(label_cell, minlength=cells).view(classes, bins),
        confidence=by_class["p"],
        confidence_squared=by_class["p2"],
        confidence_hits=torch.bincount(label_cell, weights=of_label.double(), minlength=cells).view(classes, bins),
    )
