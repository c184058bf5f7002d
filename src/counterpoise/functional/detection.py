"""Ranking by confidence: misclassification and out-of-distribution detection, selective prediction.

All metrics are functions of `RankCounts`: how many positives and negatives have each distinct score, from the highest
score down. So ties are exact and the order of the samples cannot matter. Positive is what should score high:
correctly classified, or in-distribution.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

DEFAULT_TPR = 0.95
LARGEST_DETECTION_ERROR = 0.5
"""Of the best threshold: that which accepts everything has it."""


class _Sides(NamedTuple):
    positive: Tensor
    negative: Tensor


class RankCounts(_Sides):
    """Positives and negatives `[G]` in each group of equal score, highest first; counts, or weights in a bootstrap."""

    @cached_property
    def accepted(self) -> tuple[Tensor, Tensor]:
        """Positives and negatives down to each group, in float64: most metrics begin with them."""
        return self.positive.cumsum(-1, dtype=torch.float64), self.negative.cumsum(-1, dtype=torch.float64)

    @cached_property
    def risk_area(self) -> Tensor:
        """What `aurc` gives."""
        right, wrong = self.accepted
        size = (self.positive + self.negative).double()
        end = right + wrong
        start, before = end - size, wrong - self.negative
        rate = self.negative / size.clamp(min=1)
        # The sum over n in a group of (errors before + rate (n - start)) / n, with harmonic numbers for the sums of
        # 1/n, which begin where those of the group before have ended.
        harmonic = torch.digamma(end + 1)
        sums = harmonic.diff(dim=-1, prepend=torch.digamma(torch.ones_like(end[..., :1])))
        return ((before - rate * start) * sums + rate * size).sum(-1) / end[..., -1]


def rank_counts(scores: Tensor, positive: Tensor) -> RankCounts:
    """Group samples by score; scores `[N]`, positive `[N]` boolean.

    >>> rank_counts(torch.tensor([0.9, 0.5, 0.9]), torch.tensor([True, False, False]))
    RankCounts(positive=tensor([1, 0]), negative=tensor([1, 1]))
    """
    return rank_groups(scores, positive)[0]


def rank_groups(scores: Tensor, positive: Tensor) -> tuple[RankCounts, Tensor]:
    """`rank_counts`, and the score of each group `[G]`, highest first."""
    distinct, group = torch.unique(scores, return_inverse=True)
    size = len(distinct)
    positives = torch.bincount(group[positive], minlength=size)
    counts = RankCounts(positives.flip(0), (torch.bincount(group, minlength=size) - positives).flip(0))
    return counts, distinct.flip(0)


def balanced_mass(counts: RankCounts) -> Tensor:
    """Share of the positives plus share of the negatives in each group, `[..., G]`: neither side can be overlooked."""
    positive, negative = (side.double() / side.sum(-1, keepdim=True).clamp(min=1) for side in counts)
    return positive + negative


def merged_groups(counts: RankCounts, groups: int) -> Tensor:
    """New group of each group `[G]`, of at most so many, neighbours merged to about equal `balanced_mass`."""
    mass = balanced_mass(counts)
    below = mass.cumsum(-1) - mass
    return (below * (groups / mass.sum())).long().clamp(max=groups - 1)


def auroc(counts: RankCounts) -> Tensor:
    """Probability that a positive scores above a negative, ties counting half.

    >>> auroc(rank_counts(torch.tensor([0.9, 0.5, 0.9]), torch.tensor([True, False, False])))
    tensor(0.7500, dtype=torch.float64)
    """
    positive, negative = counts.positive.double(), counts.negative.double()
    right, wrong = counts.accepted
    wins = (positive * (wrong[..., -1:] - wrong + 0.5 * negative)).sum(-1)
    return wins / (right[..., -1] * wrong[..., -1])


def average_precision(counts: RankCounts) -> Tensor:
    """Area under the precision-recall curve as a step function: `sum_g (recall_g - recall_{g-1}) precision_g`."""
    right, wrong = counts.accepted
    return _step_area(counts.positive, right, wrong)


def average_precision_of_negatives(counts: RankCounts) -> Tensor:
    """`average_precision` with the negatives as the class to find, by low scores."""
    right, wrong = ((side[..., -1:] - side) + own for side, own in zip(counts.accepted, counts, strict=True))
    return _step_area(counts.negative, wrong, right)


def _step_area(wanted: Tensor, found: Tensor, others: Tensor) -> Tensor:
    """Mean over what is `wanted` of the share of it among all that is accepted with it."""
    precision = found / (found + others).clamp(min=torch.finfo(torch.float64).tiny)
    return (wanted * precision).sum(-1) / wanted.sum(-1)


def fpr_at_tpr(counts: RankCounts, *, tpr: float = DEFAULT_TPR) -> Tensor:
    """Smallest false positive rate of any threshold whose true positive rate is at least `tpr`; no interpolation."""
    true_rate, false_rate = rates(counts)
    return torch.where(true_rate >= tpr, false_rate, torch.inf).amin(-1)


def interpolated_fpr_at_tpr(counts: RankCounts, *, tpr: float = DEFAULT_TPR) -> Tensor:
    """`fpr_at_tpr` with the scores of a group spread evenly over it: it changes with every sample that is left out.

    >>> counts = RankCounts(torch.tensor([90, 10]), torch.tensor([5, 20]))
    >>> fpr_at_tpr(counts), interpolated_fpr_at_tpr(counts)
    (tensor(1., dtype=torch.float64), tensor(0.6000, dtype=torch.float64))
    """
    true_rate, false_rate = rates(counts)
    group = (true_rate >= tpr).to(torch.int8).argmax(-1, keepdim=True)

    def ends(rate: Tensor) -> tuple[Tensor, Tensor]:
        padded = torch.nn.functional.pad(rate, (1, 0))
        return padded.gather(-1, group).squeeze(-1), padded.gather(-1, group + 1).squeeze(-1)

    (true_before, true_after), (false_before, false_after) = ends(true_rate), ends(false_rate)
    return false_before + (false_after - false_before) * (tpr - true_before) / (true_after - true_before)


def minimum_detection_error(counts: RankCounts) -> Tensor:
    """Minimum over all thresholds of (false negative rate + false positive rate) / 2."""
    true_rate, false_rate = rates(counts)
    return (0.5 * (1 - true_rate + false_rate)).amin(-1).clamp(max=LARGEST_DETECTION_ERROR)


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
    return counts.risk_area


def excess_aurc(counts: RankCounts) -> Tensor:
    """`aurc` minus that of a ranking which puts every error last."""
    right, wrong = (side[..., -1] for side in counts.accepted)
    best = RankCounts(
        torch.stack([right, torch.zeros_like(right)], -1), torch.stack([torch.zeros_like(wrong), wrong], -1)
    )
    return aurc(counts) - aurc(best)


def risk_coverage(counts: RankCounts) -> tuple[Tensor, Tensor]:
    """Coverage and error rate when everything down to each group is accepted, `[G]` each."""
    right, wrong = counts.accepted
    accepted = right + wrong
    return accepted / accepted[..., -1:], wrong / accepted


def rates(counts: RankCounts) -> tuple[Tensor, Tensor]:
    """True and false positive rate when everything down to each group is accepted, `[G]` each."""
    right, wrong = counts.accepted
    return right / right[..., -1:], wrong / wrong[..., -1:]


Range = tuple[Tensor, Tensor]
"""Smallest and largest value that a metric can have."""


def range_within_groups(metric: Callable[[RankCounts], Tensor], counts: RankCounts) -> Range:
    """Range of a metric over all orders of the samples inside each group, where groups are cells of a histogram.

    For metrics that are extreme where the positives of every group come first, and where they come last, and that do
    not depend on ties within one class: AUROC, FPR at a TPR, the minimum detection error, AURC.
    """
    values = [metric(order) for order in (_positives_first(counts), _positives_last(counts))]
    return torch.minimum(*values), torch.maximum(*values)


def average_precision_range(counts: RankCounts) -> Range:
    """The same for `average_precision`.

    It is largest where the positives of a group come first, all with one score, and smallest where they come last, each
    with its own: the sum over j = 1..n of (a + j) / (b + j) then is n - (b - a) (H(b + n) - H(b)).
    """
    positive, negative = counts.positive.double(), counts.negative.double()
    before = positive.cumsum(-1) - positive
    accepted = before + negative.cumsum(-1)
    harmonic = torch.digamma(accepted + positive + 1) - torch.digamma(accepted + 1)
    smallest = (positive - (accepted - before) * harmonic).sum(-1) / positive.sum(-1)
    return smallest, average_precision(_positives_first(counts))


def average_precision_of_negatives_range(counts: RankCounts) -> Range:
    """The same for `average_precision_of_negatives`."""
    return average_precision_range(RankCounts(counts.negative.flip(-1), counts.positive.flip(-1)))


def detection_error_at_tpr_range(counts: RankCounts, *, tpr: float = DEFAULT_TPR) -> Range:
    """The same for `detection_error_at_tpr`: the true positive rate lies between `tpr` and that of the whole group."""
    true_rate, _ = rates(counts)
    reached = torch.where(true_rate >= tpr, true_rate, torch.inf).amin(-1)
    smallest, largest = range_within_groups(partial(fpr_at_tpr, tpr=tpr), counts)
    return 0.5 * (1 - reached + smallest), 0.5 * (1 - tpr + largest)


def _positives_first(counts: RankCounts) -> RankCounts:
    zero = torch.zeros_like(counts.positive)
    return RankCounts(
        torch.stack([counts.positive, zero], -1).flatten(), torch.stack([zero, counts.negative], -1).flatten()
    )


def _positives_last(counts: RankCounts) -> RankCounts:
    negative, positive = _positives_first(RankCounts(counts.negative, counts.positive))
    return RankCounts(positive, negative)
