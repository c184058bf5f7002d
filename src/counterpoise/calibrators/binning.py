"""Histogram binning and isotonic regression: each class against the rest, on softmax probabilities."""

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from counterpoise._extras import require
from counterpoise.calibrators.inputs import LabelledLogits, labelled_logits, row_blocks
from counterpoise.calibrators.protocol import FitState, apply, required
from counterpoise.calibrators.records import Record, write_record
from counterpoise.functional.calibration import DEFAULT_BINS, bin_index
from counterpoise.functional.classwise import classwise_sums

FLOOR = 1e-6
"""The least probability of a class before the row is normalised: a class that was never seen is not ruled out."""


@dataclass(frozen=True)
class FittedHistogram:
    """Share of hits in each bin of each class.

    Attributes:
        values: `[K, B]` float64.
        state: `EXACT`.
    """

    values: Tensor
    state: FitState = FitState.EXACT
    takes_masked: ClassVar[bool] = True

    @property
    def classes(self) -> int:
        return len(self.values)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        values = self.values.to(_precise(logits.device)).to(logits.device)
        each = torch.arange(self.classes, device=logits.device)
        return _normalised(logits, lambda p: values[each, bin_index(p, values.shape[-1])])


@dataclass(frozen=True)
class FittedIsotonic:
    """A non-decreasing, piecewise linear function of the probability, for each class; constant beyond its ends.

    Attributes:
        thresholds: `[K, M]` float64, ascending; a row that needs fewer repeats its last.
        values: `[K, M]` float64, the function at the thresholds.
        state: `EXACT`.
    """

    thresholds: Tensor
    values: Tensor
    state: FitState = FitState.EXACT
    takes_masked: ClassVar[bool] = True

    @property
    def classes(self) -> int:
        return len(self.values)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        x, y = (part.to(_precise(logits.device)).to(logits.device) for part in (self.thresholds, self.values))
        return _normalised(logits, lambda p: _interpolate(p.T.contiguous(), x, y).T)


def fit_histogram(samples: LabelledLogits, bins: int) -> FittedHistogram:
    """The share of hits in each of the equal, right-closed bins (lo, hi] of each class's probability.

    A bin without samples has its midpoint: there, the probability is taken at its word.
    """
    sums = classwise_sums(torch.softmax(samples.logits.double(), -1), samples.labels, bins=bins)
    count = sums.count.clone()
    count[:, 0] -= (samples.logits == -torch.inf).sum(0)
    midpoint = (torch.arange(bins, dtype=torch.float64, device=count.device) + 0.5) / bins
    return FittedHistogram(torch.where(count > 0, sums.hits / count.clamp(min=1).double(), midpoint).cpu())


def fit_isotonic(samples: LabelledLogits) -> FittedIsotonic:
    """The non-decreasing function of each class's probability that is nearest to its hits in least squares.

    A class that is masked in every sample keeps its probability.
    """
    isotonic = require("sklearn.isotonic", extra="report", purpose="isotonic calibration")
    by_class = torch.softmax(samples.logits.double(), -1).T.contiguous()
    curves = []
    for column in range(samples.classes):
        possible = samples.logits[:, column] > -torch.inf
        if not bool(possible.any()):
            curves.append((torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])))
            continue
        p, hits = by_class[column, possible], (samples.labels[possible] == column).double()
        regression = isotonic.IsotonicRegression(y_min=0, y_max=1).fit(p.cpu().numpy(), hits.cpu().numpy())
        curves.append((torch.from_numpy(regression.X_thresholds_), torch.from_numpy(regression.y_thresholds_)))
    # At least two, so that there is a segment to interpolate on.
    length = max(2, *(len(x) for x, _ in curves))
    thresholds, values = (torch.stack([_padded(curve[part], length) for curve in curves]) for part in range(2))
    return FittedIsotonic(thresholds, values)


@dataclass(eq=False)
class HistogramBinning:
    """Each class's probability replaced by the share of hits in its bin (Zadrozny and Elkan, 2001).

    Bins are of equal width and right-closed, (lo, hi]; one that held no sample gives its midpoint. Values are raised to
    at least 1e-6, and each row is divided by its sum. A logit of -inf stays at log-probability -inf.

    >>> logits = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]).log()
    >>> binning = HistogramBinning(bins=2).fit(logits, torch.tensor([0, 0, 0, 1]))
    >>> binning(torch.tensor([0.51, 0.49]).log()).exp()
    tensor([0.7500, 0.2500])
    """

    kind: ClassVar[str] = "histogram"
    bins: int = DEFAULT_BINS
    fitted: FittedHistogram | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.bins, Integral) or isinstance(self.bins, bool) or self.bins < 1:
            raise ValueError(f"bins must be an integer of at least 1, got {self.bins!r}")
        self.bins = int(self.bins)

    @property
    def state(self) -> FitState:
        """How the fit ended."""
        return required(self.fitted, self).state

    def fit(self, logits: Any, labels: Any) -> Self:
        """Count hits from `[..., K]` logits and `[...]` labels."""
        self.fitted = fit_histogram(labelled_logits(logits, labels), self.bins)
        return self

    def __call__(self, logits: Any) -> Tensor:
        """`[..., K]` logits to `[..., K]` log-probabilities."""
        return apply(self.fitted, self, logits)

    def save(self, path: str | Path) -> None:
        """Write the values of the bins; `load_calibrator(path)` reads them."""
        fitted = required(self.fitted, self)
        tensors, settings = {"values": fitted.values}, {"bins": self.bins}
        write_record(path, Record(self.kind, fitted.classes, fitted.state, settings, {}, tensors))

    @classmethod
    def from_record(cls, record: Record) -> Self:
        binning = cls(record.setting("bins"))
        values = _probabilities("values", record.tensor("values", record.classes, binning.bins))
        binning.fitted = FittedHistogram(values, FitState(record.state))
        return binning


@dataclass(eq=False)
class IsotonicRegression:
    """Each class's probability replaced by a non-decreasing function of it (Zadrozny and Elkan, 2002).

    The function is fitted by scikit-learn (`pip install 'counterpoise[report]'`); calling, saving and loading do
    without. Values are raised to at least 1e-6, and each row is divided by its sum. A logit of -inf stays at
    log-probability -inf.
    """

    kind: ClassVar[str] = "isotonic"
    fitted: FittedIsotonic | None = field(default=None, init=False, repr=False)

    @property
    def state(self) -> FitState:
        """How the fit ended."""
        return required(self.fitted, self).state

    def fit(self, logits: Any, labels: Any) -> Self:
        """Find the functions from `[..., K]` logits and `[...]` labels."""
        self.fitted = fit_isotonic(labelled_logits(logits, labels))
        return self

    def __call__(self, logits: Any) -> Tensor:
        """`[..., K]` logits to `[..., K]` log-probabilities."""
        return apply(self.fitted, self, logits)

    def save(self, path: str | Path) -> None:
        """Write the functions; `load_calibrator(path)` reads them."""
        fitted = required(self.fitted, self)
        tensors = {"thresholds": fitted.thresholds, "values": fitted.values}
        write_record(path, Record(self.kind, fitted.classes, fitted.state, {}, {}, tensors))

    @classmethod
    def from_record(cls, record: Record) -> Self:
        thresholds = _probabilities("thresholds", record.tensor("thresholds", record.classes, -1))
        values = _probabilities("values", record.tensor("values", *thresholds.shape))
        if thresholds.shape[-1] < 2 or bool((thresholds.diff() < 0).any() | (values.diff() < 0).any()):
            raise ValueError("thresholds and values must be two or more for each class, and ascending")
        regression = cls()
        regression.fitted = FittedIsotonic(thresholds, values, FitState(record.state))
        return regression


def _normalised(logits: Tensor, calibrate: Callable[[Tensor], Tensor]) -> Tensor:
    """Log of `calibrate(softmax(z))`, at least the floor, over its sum; in blocks, as there are several temporaries.

    In float64, where the device has it: thresholds near 1 are one number in float32.
    """
    result = torch.empty_like(logits)
    for rows in row_blocks(*logits.shape):
        block = logits[rows].to(_precise(logits.device))
        q = calibrate(torch.softmax(block, -1)).clamp(min=FLOOR).masked_fill(block == -torch.inf, 0.0)
        result[rows] = (q / q.sum(-1, keepdim=True)).log()
    return result


def _precise(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _interpolate(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Piecewise linear functions with points x, y `[K, M]`, at p `[K, n]`."""
    right = torch.searchsorted(x, p).clamp(1, x.shape[-1] - 1)
    x0, x1, y0, y1 = (part.gather(-1, index) for part in (x, y) for index in (right - 1, right))
    width = x1 - x0
    # Where thresholds repeat, both ends have the same value.
    share = torch.where(width > 0, (p - x0) / width, 0.0).clamp(0, 1)
    return torch.lerp(y0, y1, share)


def _padded(values: Tensor, length: int) -> Tensor:
    return torch.cat([values.double(), values[-1:].double().expand(length - len(values))])


def _probabilities(name: str, values: Tensor) -> Tensor:
    if bool(((values < 0) | (values > 1)).any()):
        raise ValueError(f"the tensor {name!r} must hold probabilities, from 0 to 1")
    return values
