"""Cells of confidence: one for each distinct value, or a fine histogram in constant memory.

Ranks and equal-mass bins need the order of all confidences: exact from the first kind, streamed through the second.

A cell is the leading bits of a score's float32 representation: sign, exponent and the first bits of the mantissa, so
resolution is relative and no range has to be known in advance. Scores in [0, 1] go through their log-odds first,
because confidences crowd at 1.
"""

import torch
from torch import Tensor

from counterpoise.functional.calibration import BinSums, equal_mass_bins, sums_by_index
from counterpoise.functional.confidence import UNIT_INTERVAL_SCORES

CELL_BITS = 18
"""Sign, 8 bits of exponent, 9 of mantissa: cells 1/512 of the score's size wide, 262,144 of them."""

CELLS = 1 << CELL_BITS


def score_cells(scores: Tensor) -> Tensor:
    """Cell of each score, in ascending order of score, infinities included.

    >>> cells = score_cells(torch.tensor([-torch.inf, -2.0, -0.0, 0.0, 1e-30, 2.0, torch.inf]))
    >>> bool((cells.diff() >= 0).all()), cells.diff()[2].item()
    (True, 0)
    """
    bits = (scores.float() + 0.0).view(torch.int32)  # adding 0.0 turns -0.0 into 0.0
    # Negative floats sort downwards as integers: flipping the other bits turns them round.
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() + (1 << 31)
    return ordered >> (32 - CELL_BITS)


def cell_floor(cell: Tensor) -> Tensor:
    """Smallest score of each cell, float32: the threshold that accepts the cell and everything above it.

    >>> cell_floor(score_cells(torch.tensor([-torch.inf, 0.0, 1.0, 1.0009])))
    tensor([-inf, 0., 1., 1.])
    """
    ordered = (cell << (32 - CELL_BITS)) - (1 << 31)
    floor = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(torch.int32).view(torch.float32)
    return torch.where(floor.isnan(), -torch.inf, floor)  # what lies below -inf in its cell are bits of NaN


def confidence_cells(confidence: Tensor) -> Tensor:
    """Cell of each confidence in [0, 1], by its log-odds."""
    return score_cells(torch.logit(confidence.double()))


def unit_or_score_cells(score: str, values: Tensor) -> Tensor:
    """Cells of a confidence score of that name: by log-odds where it lies in [0, 1], else by the score itself."""
    return confidence_cells(values.clamp(0, 1)) if score in UNIT_INTERVAL_SCORES else score_cells(values)


def exact_cells(confidence: Tensor, hits: Tensor) -> BinSums:
    """`BinSums` with one cell for each distinct confidence, ascending; confidence `[N]`, hits `[N]` boolean."""
    distinct, cell = torch.unique(confidence, return_inverse=True)
    return sums_by_index(cell, confidence, hits, len(distinct))


def histogram_cells(confidence: Tensor, hits: Tensor) -> BinSums:
    """`BinSums` over the `CELLS` of `confidence_cells`."""
    return sums_by_index(confidence_cells(confidence), confidence, hits, CELLS)


def coarsen_to_equal_mass(fine: BinSums, *, bins: int) -> tuple[BinSums, Tensor]:
    """Equal-mass `BinSums` from fine cells in ascending order, and a bound on the error that the cells cause in ECE.

    Only cells that a boundary of the exact bins falls into can hold samples of the wrong bin; each such sample moves
    at most 1/N from one bin's gap to another's. (From `exact_cells` the result is exact, and the bound has no meaning.)
    """
    occupied = fine.count > 0
    count = fine.count[occupied]
    index = equal_mass_bins(count, bins)

    def coarse(values: Tensor) -> Tensor:
        return torch.zeros(bins, dtype=values.dtype, device=values.device).index_add_(0, index, values[occupied])

    end = torch.cumsum(count, 0)
    straddles = (end - 1) * bins // count.sum() != index
    return fine.map(coarse), 2 * count[straddles & (count > 1)].sum().double() / count.sum()
