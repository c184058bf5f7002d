"""Vector and matrix scaling: softmax of an affine map of the logits."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from counterpoise.calibrators.convex import Affine, Penalties, minimise
from counterpoise.calibrators.inputs import LabelledLogits, labelled_logits, refuse_masked
from counterpoise.calibrators.protocol import FitState, apply, required
from counterpoise.calibrators.records import Record, write_record
from counterpoise.calibrators.temperature import fit_temperature


@dataclass(frozen=True)
class FittedAffine:
    """`log_softmax(w * z + b)`, in which a logit of -inf stays, or `log_softmax(W z + b)`, which takes none."""

    map: Affine
    state: FitState

    @property
    def classes(self) -> int:
        return len(self.map.bias)

    @property
    def takes_masked(self) -> bool:
        """Whether a logit may be -inf."""
        return self.map.weight.ndim == 1

    def log_probabilities(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(self.map.scores(logits), -1)


def fit_vector(samples: LabelledLogits) -> FittedAffine:
    """The `w` and `b` that minimise the mean of `-log_softmax(w * z + b)_y`, from temperature scaling on."""
    fit = minimise(samples, scaling_of_each(samples), Penalties())
    return FittedAffine(on_host(fit.map), fit.state)


def fit_matrix(samples: LabelledLogits, penalties: Penalties) -> FittedAffine:
    """The `W` and `b` that minimise the penalised mean of `-log_softmax(W z + b)_y`, from temperature scaling on."""
    fit = minimise(samples, scaled_identity(samples), penalties)
    return FittedAffine(on_host(fit.map), fit.state)


@dataclass(eq=False)
class VectorScaling:
    """`log_softmax(w * z + b)`: a weight and an intercept for each class (Guo et al., 2017).

    It is applied to the logits as they are. A constant added to all logits is learned away; another constant for each
    sample is not.

    >>> logits = torch.tensor([[2.0, 0.0]] * 4 + [[0.0, 2.0]] * 2)
    >>> scaling = VectorScaling().fit(logits, torch.tensor([0, 0, 0, 1, 0, 1]))
    >>> scaling(torch.tensor([[2.0, 0.0], [0.0, 2.0]])).exp()
    tensor([[0.7500, 0.2500],
            [0.5000, 0.5000]])
    """

    kind: ClassVar[str] = "vector"
    fitted: FittedAffine | None = field(default=None, init=False, repr=False)

    @property
    def weight(self) -> Tensor:
        """`w`, `[K]` float64."""
        return required(self.fitted, self).map.weight

    @property
    def bias(self) -> Tensor:
        """`b`, `[K]` float64."""
        return required(self.fitted, self).map.bias

    @property
    def state(self) -> FitState:
        """How the fit ended."""
        return required(self.fitted, self).state

    def fit(self, logits: Any, labels: Any) -> Self:
        """Find `w` and `b` from `[..., K]` logits and `[...]` labels."""
        self.fitted = fit_vector(labelled_logits(logits, labels))
        return self

    def __call__(self, logits: Any) -> Tensor:
        """`[..., K]` logits to `[..., K]` log-probabilities."""
        return apply(self.fitted, self, logits)

    def save(self, path: str | Path) -> None:
        """Write `w` and `b`; `load_calibrator(path)` reads them."""
        fitted = required(self.fitted, self)
        write_record(path, Record(self.kind, fitted.classes, fitted.state, {}, {}, affine_tensors(fitted.map)))

    @classmethod
    def from_record(cls, record: Record) -> Self:
        scaling = cls()
        parameters = Affine(record.tensor("weight", record.classes), record.tensor("bias", record.classes))
        scaling.fitted = FittedAffine(parameters, FitState(record.state))
        return scaling


@dataclass(eq=False)
class MatrixScaling:
    """`log_softmax(W z + b)`: every class has a say in the score of every other (Guo et al., 2017).

    K^2 + K parameters overfit where samples are few: without penalties, use it for few classes and many samples. The
    penalties are those of `DirichletCalibration`: `off_diagonal_penalty` times the mean of `W_ij^2` over i != j, and
    `intercept_penalty` times the mean of `b_j^2`. Logits of -inf are refused.
    """

    kind: ClassVar[str] = "matrix"
    off_diagonal_penalty: float = 0.0
    intercept_penalty: float = 0.0
    fitted: FittedAffine | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        penalties = Penalties(self.off_diagonal_penalty, self.intercept_penalty)
        self.off_diagonal_penalty, self.intercept_penalty = penalties.off_diagonal, penalties.intercept

    @property
    def weight(self) -> Tensor:
        """`W`, `[K, K]` float64: row i holds what adds to the score of class i."""
        return required(self.fitted, self).map.weight

    @property
    def bias(self) -> Tensor:
        """`b`, `[K]` float64."""
        return required(self.fitted, self).map.bias

    @property
    def state(self) -> FitState:
        """How the fit ended."""
        return required(self.fitted, self).state

    def fit(self, logits: Any, labels: Any) -> Self:
        """Find `W` and `b` from `[..., K]` logits and `[...]` labels."""
        samples = labelled_logits(logits, labels)
        refuse_masked(samples.logits, "MatrixScaling")
        self.fitted = fit_matrix(samples, Penalties(self.off_diagonal_penalty, self.intercept_penalty))
        return self

    def __call__(self, logits: Any) -> Tensor:
        """`[..., K]` logits to `[..., K]` log-probabilities."""
        return apply(self.fitted, self, logits)

    def save(self, path: str | Path) -> None:
        """Write `W` and `b`; `load_calibrator(path)` reads them."""
        fitted = required(self.fitted, self)
        settings = {"off_diagonal_penalty": self.off_diagonal_penalty, "intercept_penalty": self.intercept_penalty}
        write_record(path, Record(self.kind, fitted.classes, fitted.state, settings, {}, affine_tensors(fitted.map)))

    @classmethod
    def from_record(cls, record: Record) -> Self:
        scaling = cls(record.setting("off_diagonal_penalty"), record.setting("intercept_penalty"))
        scaling.fitted = FittedAffine(square_affine(record), FitState(record.state))
        return scaling


def scaling_of_each(samples: LabelledLogits) -> Affine:
    """The map of temperature scaling, `[K]` and `[K]`: where all fits start, so that none is worse."""
    ones = torch.ones(samples.classes, dtype=torch.float64, device=samples.logits.device)
    return Affine(ones / fit_temperature(samples).temperature, torch.zeros_like(ones))


def scaled_identity(samples: LabelledLogits) -> Affine:
    """The same map as `[K, K]` and `[K]`."""
    start = scaling_of_each(samples)
    return Affine(start.weight.diag(), start.bias)


def on_host(parameters: Affine) -> Affine:
    """Where what was learned is kept, whatever device the samples were on."""
    return Affine(parameters.weight.cpu(), parameters.bias.cpu())


def affine_tensors(parameters: Affine) -> dict[str, Tensor]:
    """The tensors of a file."""
    return {"weight": parameters.weight, "bias": parameters.bias}


def square_affine(record: Record) -> Affine:
    """The `[K, K]` map of a file."""
    return Affine(record.tensor("weight", record.classes, record.classes), record.tensor("bias", record.classes))
