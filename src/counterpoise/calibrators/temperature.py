"""Temperature scaling: one number, found exactly."""

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from counterpoise.calibrators.inputs import LabelledLogits, labelled_logits, row_blocks
from counterpoise.calibrators.protocol import FitState, apply, required
from counterpoise.calibrators.records import Record, write_record

LOWEST_TEMPERATURE = 0.01
HIGHEST_TEMPERATURE = 100.0
_RELATIVE_TOLERANCE = 1e-12
_FAR = -1e300
"""In place of -inf, whose product with a probability of 0 is NaN; its softmax is 0 as well."""


@dataclass(frozen=True)
class FittedTemperature:
    """`log_softmax(z / T)`.

    Attributes:
        classes: K.
        temperature: T, from 0.01 to 100.
        state: `CONVERGED`, or at which bound T is.
    """

    classes: int
    temperature: float
    state: FitState
    takes_masked: ClassVar[bool] = True

    def log_probabilities(self, logits: Tensor) -> Tensor:
        # Relative to the largest, so that the quotient by a small T cannot overflow to +inf.
        return torch.log_softmax((logits - logits.amax(-1, keepdim=True)) / self.temperature, -1)


def fit_temperature(samples: LabelledLogits) -> FittedTemperature:
    """The T in [0.01, 100] that minimises the mean of `-log_softmax(z / T)_y`.

    In s = 1/T the mean is convex, and its slope `mean(E_p[z] - z_y)` rises with s. The root of the slope is found by
    Newton's method, kept inside a bracket that each step narrows. Where logits are equal in every row, all T are as
    good, and T is 1.
    """
    right, flat = _all_right_and_all_flat(samples)
    if flat:
        return FittedTemperature(samples.classes, 1.0, FitState.CONVERGED)
    if right:
        # Asked of the logits, since the slope of samples that are clearly right rounds to 0 long before s = 100.
        return FittedTemperature(samples.classes, LOWEST_TEMPERATURE, FitState.AT_LOWEST_TEMPERATURE)
    low, high = 1 / HIGHEST_TEMPERATURE, 1 / LOWEST_TEMPERATURE
    untried = {low, high}
    s = 1.0
    while True:
        slope, curvature = _slope_and_curvature(samples, s)
        if slope < 0 and s == 1 / LOWEST_TEMPERATURE:
            return FittedTemperature(samples.classes, LOWEST_TEMPERATURE, FitState.AT_LOWEST_TEMPERATURE)
        if slope > 0 and s == 1 / HIGHEST_TEMPERATURE:
            return FittedTemperature(samples.classes, HIGHEST_TEMPERATURE, FitState.AT_HIGHEST_TEMPERATURE)
        untried.discard(s)
        low, high = (s, high) if slope < 0 else (low, s)
        newton = s - slope / max(curvature, sys.float_info.min)
        # The second holds where Newton's method has arrived, the third where it ran into the rounding of the slope.
        if slope == 0 or abs(newton - s) <= _RELATIVE_TOLERANCE * s or high - low <= _RELATIVE_TOLERANCE * high:
            return FittedTemperature(samples.classes, 1 / s, FitState.CONVERGED)
        end = high if newton >= high else low
        if low < newton < high:
            s = newton
        elif end in untried:
            s = end
        else:
            s = math.sqrt(low * high)


@dataclass(eq=False)
class TemperatureScaling:
    """`log_softmax(z / T)` with the T that makes the labels most likely (Guo et al., 2017).

    The order of the classes never changes. A logit of -inf stays at log-probability -inf.

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> scaling = TemperatureScaling().fit(logits, torch.tensor([0, 0, 0, 1]))
    >>> round(scaling.temperature, 4), str(scaling.state)
    (3.641, 'converged')
    >>> scaling(torch.tensor([4.0, 0.0])).exp()
    tensor([0.7500, 0.2500])
    """

    kind: ClassVar[str] = "temperature"
    fitted: FittedTemperature | None = field(default=None, init=False, repr=False)

    @property
    def temperature(self) -> float:
        """T; above 1 where the model was overconfident."""
        return required(self.fitted, self).temperature

    @property
    def state(self) -> FitState:
        """How the fit ended."""
        return required(self.fitted, self).state

    def fit(self, logits: Any, labels: Any) -> Self:
        """Find T from `[..., K]` logits and `[...]` labels."""
        self.fitted = fit_temperature(labelled_logits(logits, labels))
        return self

    def __call__(self, logits: Any) -> Tensor:
        """`[..., K]` logits to `[..., K]` log-probabilities."""
        return apply(self.fitted, self, logits)

    def save(self, path: str | Path) -> None:
        """Write T; `load_calibrator(path)` reads it."""
        fitted = required(self.fitted, self)
        tensors = {"temperature": torch.tensor(fitted.temperature, dtype=torch.float64)}
        write_record(path, Record(self.kind, fitted.classes, fitted.state, {}, {}, tensors))

    @classmethod
    def from_record(cls, record: Record) -> Self:
        temperature = float(record.tensor("temperature"))
        if not LOWEST_TEMPERATURE <= temperature <= HIGHEST_TEMPERATURE:
            raise ValueError(f"temperature {temperature} is outside [{LOWEST_TEMPERATURE}, {HIGHEST_TEMPERATURE}]")
        scaling = cls()
        scaling.fitted = FittedTemperature(record.classes, temperature, FitState(record.state))
        return scaling


def _below_largest(samples: LabelledLogits, rows: slice) -> tuple[Tensor, Tensor]:
    """Logits less the largest of their row, `[m, K]` and at least -1e300, and the same of the labels `[m]`."""
    z = samples.logits[rows].double()
    z = (z - z.amax(-1, keepdim=True)).clamp_(min=_FAR)
    return z, z.gather(-1, samples.labels[rows].unsqueeze(-1)).squeeze(-1)


def _all_right_and_all_flat(samples: LabelledLogits) -> tuple[bool, bool]:
    """Whether each label has the largest logit of its row; whether all logits but -inf are equal in every row."""
    right = flat = True
    for rows in row_blocks(*samples.logits.shape):
        z, of_label = _below_largest(samples, rows)
        right = right and bool((of_label == 0).all())
        flat = flat and bool(((z == 0) | (samples.logits[rows] == -torch.inf)).all())
    return right, flat


def _slope_and_curvature(samples: LabelledLogits, s: float) -> tuple[float, float]:
    """First and second derivative of the mean NLL with respect to s: `mean(E_p[z] - z_y)` and `mean(Var_p[z])`."""
    sums = torch.zeros(2, dtype=torch.float64, device=samples.logits.device)
    for rows in row_blocks(*samples.logits.shape):
        z, of_label = _below_largest(samples, rows)
        weighted = torch.softmax(s * z, -1).mul_(z)
        mean = weighted.sum(-1)
        variance = weighted.mul_(z).sum(-1) - mean**2
        sums += torch.stack([(mean - of_label).sum(), variance.sum()])
    slope, curvature = (sums / len(samples.labels)).tolist()
    return slope, curvature
