"""Calibration errors as functions of per-bin sums.

Everything that is binned is computed from `BinSums`, which add up over batches, workers and ranks. Bins are of equal
width and right-closed, (lo, hi]; a confidence of 0 belongs to the first bin. Edges are compared in the dtype of the
confidences, so that 1/3 in float32 and 1/3 in float64 fall into the same bin.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise._choices import DEFAULT_BINS as DEFAULT_BINS


@dataclass(frozen=True)
class BinSums:
    """Sufficient statistics of a binned calibration error, `[B]` or `[K, B]`.

    Attributes:
        count: samples in the bin (int64).
        hits: samples in the bin that are right (int64).
        confidence: sum of p (float64, as the rest).
        confidence_squared: sum of p^2.
        confidence_hits: sum of p over the samples that are right.
    """

    count: Tensor
    hits: Tensor
    confidence: Tensor
    confidence_squared: Tensor
    confidence_hits: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> "BinSums":
        return BinSums(*(function(getattr(self, field.name)) for field in fields(self)))

    def plus(self, other: "BinSums") -> "BinSums":
        return BinSums(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def samples(self) -> Tensor:
        """Number of samples, over all bins: `[]` or `[K]`."""
        return self.count.sum(-1)

    @property
    def share(self) -> Tensor:
        """`n_b / N` per bin."""
        return self.count.double() / self.samples.unsqueeze(-1)

    @property
    def gap(self) -> Tensor:
        """`(hits - sum p) / N` per bin: the share of the bin times (accuracy - confidence)."""
        return (self.hits - self.confidence) / self.samples.unsqueeze(-1)

    @property
    def squared_residual(self) -> Tensor:
        """Sum of `(hit - p)^2` per bin."""
        return (self.hits - 2 * self.confidence_hits + self.confidence_squared).clamp(min=0)

    @property
    def calibrated_variance(self) -> Tensor:
        """Variance that the hits of a bin would have if the confidences were true: `sum p - sum p^2`."""
        return (self.confidence - self.confidence_squared).clamp(min=0)


def bin_edges(bins: int, *, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """The `bins + 1` edges i / bins, each rounded once to `dtype`."""
    return torch.arange(bins + 1, dtype=dtype, device=device) / bins


def bin_index(confidence: Tensor, bins: int) -> Tensor:
    """Index of the right-closed bin of each confidence in [0, 1].

    >>> bin_index(torch.tensor([0.0, 0.1, 0.2, 0.21, 1.0]), bins=10)
    tensor([0, 0, 1, 2, 9])
    """
    guess = (confidence * bins).ceil_().sub_(1).clamp_(0, bins - 1)
    # The product may round across an edge; comparing with the edges themselves settles it. They are computed anew for
    # each sample, as `bin_edges` does: faster than looking them up.
    above, below = confidence > (guess + 1) / bins, confidence <= guess / bins
    return guess.add_(above).sub_(below.to(guess.dtype)).clamp_(0, bins - 1).long()


def sums_by_index(index: Tensor, confidence: Tensor, hits: Tensor, size: int) -> BinSums:
    """`BinSums` of `[size]` from each sample's own bin index; confidence `[N]`, hits `[N]` boolean."""
    p = confidence.double()
    # One pass for right and wrong together: even cells are wrong, odd ones right.
    cell = 2 * index + hits
    count = torch.bincount(cell, minlength=2 * size).view(size, 2)
    total, squares = (weighted_bincount(cell, weights, 2 * size).view(size, 2) for weights in (p, p * p))
    return BinSums(
        count=count.sum(-1),
        hits=count[:, 1],
        confidence=total.sum(-1),
        confidence_squared=squares.sum(-1),
        confidence_hits=total[:, 1],
    )


def weighted_bincount(index: Tensor, weights: Tensor, size: int) -> Tensor:
    """Sum of float64 weights for each index, `[size]`; of nothing too, where `torch.bincount` returns integers."""
    if weights.is_cuda and torch.are_deterministic_algorithms_enabled():  # which `bincount` refuses there
        return weights.new_zeros(size).index_add(0, index, weights)
    return torch.bincount(index, weights=weights, minlength=size).to(weights.dtype)


def top_label_sums(probabilities: Tensor, labels: Tensor, *, bins: int = DEFAULT_BINS) -> BinSums:
    """`BinSums` of the predicted class, `[B]`, from probabilities `[N, K]` and labels `[N]`."""
    confidence, prediction = probabilities.max(-1)
    return sums_by_index(bin_index(confidence, bins), confidence, prediction == labels, bins)


def equal_mass_bins(count: Tensor, bins: int) -> Tensor:
    """Equal-mass bin of each group of equal confidence, from the groups' sizes `[G]` in ascending order.

    It is `floor(bins * r / N)`, r being the number of samples below the group: equal confidences share a bin, so the
    order of the samples does not matter.

    >>> equal_mass_bins(torch.tensor([1, 1, 2, 2]), bins=3)
    tensor([0, 0, 1, 2])
    """
    below = torch.cumsum(count, 0) - count
    return below * bins // count.sum()


def expected_calibration_error(sums: BinSums) -> Tensor:
    """`sum_b (n_b / N) abs(accuracy_b - confidence_b)`; from `[K, B]` sums, one value a class.

    >>> probabilities = torch.tensor([[0.95, 0.05], [1.0, 0.0]])
    >>> expected_calibration_error(top_label_sums(probabilities, torch.tensor([0, 1])))
    tensor(0.4750, dtype=torch.float64)
    """
    return sums.gap.abs().sum(-1)


def classwise_calibration_error(sums: BinSums) -> Tensor:
    """Mean over the classes of their calibration errors, from `[K, B]` sums of every class."""
    return expected_calibration_error(sums).mean()


def maximum_calibration_error(sums: BinSums) -> Tensor:
    """`max_b abs(accuracy_b - confidence_b)` over the bins that hold a sample."""
    return ((sums.hits - sums.confidence).abs() / sums.count.clamp(min=1)).amax(-1)


def mean_gap(sums: BinSums) -> Tensor:
    """Mean confidence minus accuracy: positive where the model is overconfident."""
    return -sums.gap.sum(-1)


def debiased_calibration_error(sums: BinSums) -> Tensor:
    """The sign cross-fit estimator: the plug-in ECE without most of its upward bias.

    If the samples were split in two random halves, the sign of a bin's gap taken from one half and its size from the
    other, a calibrated bin would contribute 0 on average instead of its noise. With normal noise of standard deviation
    s, the mean over all splits given the whole bin's gap d is `d (2 Phi(d/s) - 1) - 2 s phi(d/s)`; this is the sum of
    it over the bins, at least 0. It is unbiased for bins that are calibrated and for bins that clearly are not, and
    too low by at most 0.48 s in between.
    """
    return cross_fit_size(sums.gap, gap_deviation(sums)).sum(-1).clamp(min=0)


def gap_deviation(sums: BinSums) -> Tensor:
    """Standard deviation of `sums.gap`, per bin: `sqrt((mean (hit - p)^2 - gap^2) / N)`.

    Where no error, or no hit, has been seen yet, the residuals hardly vary, and what is left of the gap would be taken
    for certain: there it is at least that of a calibrated bin, `sqrt(mean p (1 - p) / N)`.
    """
    samples = sums.samples.unsqueeze(-1)
    variance = sums.squared_residual / samples - sums.gap**2
    one_sided = (sums.hits == 0) | (sums.hits == sums.count)
    least = torch.where(one_sided, sums.calibrated_variance / samples, 0.0)
    return (torch.maximum(variance, least) / samples).sqrt()


def cross_fit_size(gap: Tensor, deviation: Tensor) -> Tensor:
    """`d (2 Phi(d/s) - 1) - 2 s phi(d/s)`, and abs(d) where s is 0."""
    ratio = gap / deviation.clamp(min=torch.finfo(gap.dtype).tiny)
    density = torch.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    return gap * torch.erf(ratio / math.sqrt(2)) - 2 * deviation * density


class ErrorTerms(NamedTuple):
    """What the interval of a calibration error is made of, `[...]` from `[..., B]` sums.

    Attributes:
        estimate: sign cross-fit estimate, before its cut at 0.
        bias: bound of how far it lies below the population value on average.
        variance: of the estimate.
        variance_near_zero: the same where all but clear gaps are taken for noise.
    """

    estimate: Tensor
    bias: Tensor
    variance: Tensor
    variance_near_zero: Tensor


def error_terms(sums: BinSums) -> ErrorTerms:
    """Estimate, bias and variance of a binned calibration error."""
    gap, deviation = sums.gap, gap_deviation(sums)
    ratio = gap.abs() / deviation.clamp(min=torch.finfo(gap.dtype).tiny)
    biased = ratio.clamp(min=_RATIO_OF_LARGEST_BIAS)
    signed = torch.erf(ratio / math.sqrt(2)) * gap.abs()
    covariance = (signed.sum(-1) ** 2 - (signed**2).sum(-1)) / sums.samples

    def variance(shrink: float) -> Tensor:
        # The square of the ratio is too large by 1 on average. Near 0 the lower limit can take the variance of a
        # calibrated bin for all but clear gaps, since gaps that are neither bias the estimate downwards.
        return (_term_variance((ratio**2 - shrink).clamp(min=0).sqrt()) * deviation**2).sum(-1) - covariance

    return ErrorTerms(
        estimate=cross_fit_size(gap, deviation).sum(-1),
        bias=(2 * biased * torch.special.ndtr(-biased / math.sqrt(2)) * deviation).sum(-1),
        variance=variance(1.0),
        variance_near_zero=variance(4.0),
    )


_RATIO_OF_LARGEST_BIAS = 1.05
"""Gap over deviation at which the sign cross-fit estimate is most biased, by 0.48 deviations."""


@lru_cache(maxsize=1)
def _term_variance_table() -> tuple[Tensor, float]:
    """Variance of `cross_fit_size(d, 1)` for d normal around 0, 1/64, ... 8 with deviation 1, and the step.

    By the trapezoid rule, which is exact to rounding for smooth functions that vanish at both ends.
    """
    step = 1 / 64
    centre = torch.arange(0, 8 + step, step, dtype=torch.float64)
    node = torch.linspace(-9, 9, 145, dtype=torch.float64)
    weight = torch.softmax(-0.5 * node**2, 0)
    values = cross_fit_size(centre.unsqueeze(-1) + node, torch.ones(1, dtype=torch.float64))
    mean = values @ weight
    return ((values - mean.unsqueeze(-1)) ** 2) @ weight, step


def _term_variance(ratio: Tensor) -> Tensor:
    """Variance of a term over s^2, given gap over deviation: 0.70 at 0, 1.64 at most, 1 for clear gaps."""
    table, step = _term_variance_table()
    table = table.to(ratio.device)
    place = (ratio / step).clamp(max=len(table) - 2)
    left = place.nan_to_num().floor().long()  # without samples, a term is NaN, and so is its variance
    fraction = place - left
    return table[left] * (1 - fraction) + table[left + 1] * fraction


def noise_floor(sums: BinSums) -> Tensor:
    """Expected plug-in error of a model with these confidences that is perfectly calibrated.

    Per bin, the mean absolute deviation of a binomial count (De Moivre's closed form, exact where samples are few),
    scaled to the variance `sum p - sum p^2` of hits whose probabilities differ within the bin.
    """
    n = sums.count.double()
    p = (sums.confidence / n.clamp(min=1)).clamp(0, 1)
    m = torch.floor(n * p).clamp(max=n - 1).clamp(min=0)
    log_choose = torch.lgamma(n + 1) - torch.lgamma(m + 1) - torch.lgamma((n - m).clamp(min=0))
    log_deviation = log_choose + torch.xlogy(m + 1, p) + torch.special.xlog1py(n - m, -p)
    binomial = torch.where(n > 0, 2 * log_deviation.exp(), 0.0)
    variance = n * p * (1 - p)
    ratio = torch.where(variance > 0, sums.calibrated_variance / variance.clamp(min=torch.finfo(p.dtype).tiny), 0.0)
    return (binomial * ratio.sqrt()).sum(-1) / sums.samples


def brier_calibration(sums: BinSums) -> Tensor:
    """The part of the Brier score that recalibration of each class in its bins would remove.

    `sum_k sum_b (n_kb / N) (accuracy_kb - confidence_kb)^2` from `[K, B]` sums. The rest of the score is refinement.
    """
    return (sums.gap**2 / sums.share.clamp(min=1 / float(sums.samples[0]))).sum()
