"""What a calibrator is: `fit(logits, labels)`, then logits in and log-probabilities out."""

from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor

from counterpoise.calibrators.inputs import checked_logits, refuse_masked
from counterpoise.calibrators.records import Record


class FitState(StrEnum):
    """How a fit ended."""

    CONVERGED = "converged"
    """The minimum has been found."""
    EXACT = "exact"
    """Computed directly; nothing had to converge."""
    AT_LOWEST_TEMPERATURE = "at lowest temperature"
    """The likelihood still rises at T = 0.01; it does without end where every sample is right."""
    AT_HIGHEST_TEMPERATURE = "at highest temperature"
    """The likelihood still rises at T = 100: the logits are very large, or say nothing about the labels, or the
    contrary."""
    NO_MINIMUM = "no minimum"
    """The parameters would grow without end: a class is no sample's label, or the samples are told apart entirely."""
    NOT_CONVERGED = "not converged"
    """The gradient was not yet 0 at the last iteration."""


class Calibrator(Protocol):
    """A map of logits to calibrated log-probabilities, learned from samples that the model was not trained on."""

    kind: ClassVar[str]
    """What files call it."""

    @property
    def state(self) -> FitState:
        """How the fit ended; `ValueError` where there was none."""

    def fit(self, logits: Any, labels: Any) -> Self:
        """Learn the map from `[..., K]` logits and `[...]` labels, and return the calibrator itself."""

    def __call__(self, logits: Any) -> Tensor:
        """`[..., K]` logits to `[..., K]` log-probabilities; `ValueError` where not fitted."""

    def save(self, path: str | Path) -> None:
        """Write what was learned; `load_calibrator(path)` reads it."""

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """The fitted calibrator that a file describes; `ValueError` where it describes none."""


class Fitted(Protocol):
    """What was learned: a pure function, for checked logits."""

    @property
    def classes(self) -> int:
        """K."""

    @property
    def takes_masked(self) -> bool:
        """Whether a logit may be -inf."""

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """`[n, K]` logits to `[n, K]` log-probabilities, on their device and in their dtype."""


FittedT = TypeVar("FittedT")


def required(fitted: FittedT | None, calibrator: object) -> FittedT:
    """What was learned, or an error that says what to do."""
    if fitted is None:
        raise ValueError(f"{type(calibrator).__name__} is not fitted; call fit(logits, labels) first")
    return fitted


def apply(fitted: Fitted | None, calibrator: object, logits: Any) -> Tensor:
    """Log-probabilities `[..., K]` of logits that are checked first."""
    learned = required(fitted, calibrator)
    values = checked_logits(logits, classes=learned.classes)
    if not learned.takes_masked:
        refuse_masked(values, type(calibrator).__name__)
    # A product of matrices would be computed in half precision where a model runs under autocast.
    with torch.autocast(values.device.type, enabled=False):
        found = learned.log_probabilities(values.reshape(-1, learned.classes))
    bad = torch.isnan(found.detach()).any(-1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"logits row {row} is too large for {type(calibrator).__name__}: from "
            f"{float(values.reshape(-1, learned.classes)[row].detach().abs().max()):.3g} its scores overflow; "
            "mask classes with -inf"
        )
    return found.reshape(values.shape)
