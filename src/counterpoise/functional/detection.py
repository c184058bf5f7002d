"""Ranking by confidence: misclassification and out-of-distribution detection, selective prediction.

All measures are functions of `RankCounts`: how many positives and negatives have each distinct score, from the highest
score down. So ties are exact and the order of the samples cannot matter. Positive is what should score high:
correctly classified, or in-distribution.
"""

from typing import NamedTuple

import torch
from torch import Tensor

DEFAULT_TPR = 0.95


class RankCounts(NamedTuple):
    """Positives and negatives `[G]` in each group of equal score, highest first; counts, or weights in a bootstrap."""

    positive: Tensor
    negative: Tensor


def rank_counts(scores: Tensor, positive: Tensor) -> RankCounts:
    """Group samples by score; scores `[N]`, positive `[N]` boolean.

    >>> rank_counts(torch.tensor([0.9, 0.5, 0.9]), torch.tensor([True, False, False]))
    RankCounts(positive=tensor([1, 0]), negative=tensor([1, 1]))
    """
    distinct, group = torch.unique(scores, return_inverse=True)
    size = len(distinct)
    positives = torch.bincount(group[positive], minlength=size)
    return RankCounts(positives.flip(0), (torch.bincount(group, minlength=size) - positives).flip(0))


def auroc(counts: RankCounts) -> Tensor:
    """Probability that a positive scores above a negative, ties counting half.

    >>> auroc(rank_counts(torch.tensor([0.9, 0.5, 0.9]), torch.tensor([True, False, False])))
    tensor(0.7500, dtype=torch.float64)
    """
    positive, negative = counts.positive.double(), counts.negative.double()
    below = negative.sum(-1, keepdim=True) - negative.cumsum(-1)
    wins = (positive * (below + 0.5 * negative)).sum(-1)
    return wins / (positive.sum(-1) * negative.sum(-1))


def average_precision(counts: RankCounts) -> Tensor:
    """Area under the precision-recall curve as a step function: `sum_g (recall_g - recall_{g-1}) precision_g`."""
    positive = counts.positive.double()
    accepted = (positive + counts.negative).cumsum(-1)
    precision = positive.cumsum(-1) / accepted.clamp(min=torch.finfo(torch.float64).tiny)
    return (positive * precision).sum(-1) / positive.sum(-1)


def average_precision_of_negatives(counts: RankCounts) -> Tensor:
    """`average_precision` with the negatives as the class to find, by low scores."""
    return average_precision(RankCounts(counts.negative.flip(-1), counts.positive.flip(-1)))


def fpr_at_tpr(counts: RankCounts, *, tpr: float = DEFAULT_TPR) -> Tensor:
    """Smallest false positive rate of any threshold whose true positive rate is at least `tpr`; no interpolation."""
    true_rate, false_rate = rates(counts)
    return torch.where(true_rate >= tpr, false_rate, torch.inf).amin(-1)


def minimum_detection_error(counts: RankCounts) -> Tensor:
    """Minimum over all thresholds of (false negative rate + false positive rate) / 2."""
    true_rate, false_rate = rates(counts)
    return (0.5 * (1 - true_rate + false_rate)).amin(-1).clamp(max=0.5)


def detection_error_at_tpr(counts: RankCounts, *, tpr: float = DEFAULT_TPR) -> Tensor:
    """(False negative rate + false positive rate) / 2 at the threshold that `fpr_at_tpr` chooses."""
    true_rate, false_rate = rates(counts)
    # The highest such threshold: rates only grow from there on.
    first = (true_rate >= tpr).to(torch.int8).argmax(-1, keepdim=True)
    return (0.5 * (1 - true_rate + false_rate)).gather(-1, first).squeeze(-1)


def aurc(counts: RankCounts) -> Tensor:
    """Area under the risk-coverage curve: the mean over n = 1..N of the error rate of the n most confident samples.

    Positive means correct. Among equal scores the error rate is the expected one over their orders.

    >>> aurc(rank_counts(torch.tensor([0.9, 0.8]), torch.tensor([True, False])))
    tensor(0.2500, dtype=torch.float64)
    """
    size = (counts.positive + counts.negative).double()
    end = size.cumsum(-1)
    start = end - size
    before = counts.negative.double().cumsum(-1) - counts.negative
    rate = counts.negative / size.clamp(min=1)
    # The sum over n in a group of (errors before + rate (n - start)) / n, with harmonic numbers for the sums of 1/n.
    harmonic = torch.digamma(end + 1) - torch.digamma(start + 1)
    return ((before - rate * start) * harmonic + rate * size).sum(-1) / end[..., -1]


def excess_aurc(counts: RankCounts) -> Tensor:
    """`aurc` minus that of a ranking which puts every error last."""
    right, wrong = counts.positive.sum(-1), counts.negative.sum(-1)
    best = RankCounts(
        torch.stack([right, torch.zeros_like(right)], -1), torch.stack([torch.zeros_like(wrong), wrong], -1)
    )
    return aurc(counts) - aurc(best)


def risk_coverage(counts: RankCounts) -> tuple[Tensor, Tensor]:
    """Coverage and error rate when everything down to each group is accepted, `[G]` each."""
    accepted = (counts.positive + counts.negative).double().cumsum(-1)
    return accepted / accepted[..., -1:], counts.negative.double().cumsum(-1) / accepted


def rates(counts: RankCounts) -> tuple[Tensor, Tensor]:
    """True and false positive rate when everything down to each group is accepted, `[G]` each."""
    positive, negative = counts.positive.double().cumsum(-1), counts.negative.double().cumsum(-1)
    return positive / positive[..., -1:], negative / negative[..., -1:]


def best_and_worst_order(counts: RankCounts) -> tuple[RankCounts, RankCounts]:
    """Counts in which the positives of each group come first, and in which they come last.

    Where groups are cells of a histogram, every measure of the unbinned scores lies between those of the two.
    """
    zero = torch.zeros_like(counts.positive)
    best = RankCounts(
        torch.stack([counts.positive, zero], -1).flatten(), torch.stack([zero, counts.negative], -1).flatten()
    )
    worst = RankCounts(
        torch.stack([zero, counts.positive], -1).flatten(), torch.stack([counts.negative, zero], -1).flatten()
    )
    return best, worst
