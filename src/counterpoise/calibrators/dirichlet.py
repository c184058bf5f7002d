"""Dirichlet calibration with off-diagonal and intercept regularisation (ODIR)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from counterpoise.calibrators.convex import Affine, Penalties, mean_nll, minimise
from counterpoise.calibrators.inputs import LabelledLogits, labelled_logits, refuse_masked
from counterpoise.calibrators.linear import affine_tensors, on_host, scaled_identity, square_affine
from counterpoise.calibrators.protocol import FitState, apply, required
from counterpoise.calibrators.records import Record, write_record

PENALTY_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1e0)
FOLDS = 5
_FOLD_SEED = 0
_FOLD_ITERATIONS = 200
_FOLD_TOLERANCE = 1e-4


@dataclass(frozen=True)
class FittedDirichlet:
    """`log_softmax(W log_softmax(z) + b)`, `W` of `[K, K]` and `b` of `[K]`, and the penalties it was found with."""

    map: Affine
    penalties: Penalties
    state: FitState
    takes_masked: ClassVar[bool] = False

    @property
    def classes(self) -> int:
        return len(self.map.bias)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(self.map.scores(torch.log_softmax(logits, -1)), -1)


def fit_dirichlet(samples: LabelledLogits, candidates: list[Penalties]) -> FittedDirichlet:
    """The `W` and `b` that minimise the penalised mean NLL, with the candidate that cross-validation prefers."""
    features = LabelledLogits(torch.log_softmax(samples.logits.double(), -1), samples.labels)
    penalties = candidates[0] if len(candidates) == 1 else choose_penalties(features, candidates)
    fit = minimise(features, scaled_identity(features), penalties)
    return FittedDirichlet(on_host(fit.map), penalties, fit.state)


def choose_penalties(features: LabelledLogits, candidates: list[Penalties]) -> Penalties:
    """The candidate with the lowest NLL on the validation folds; the first of equals."""
    if len(features.labels) < 2:
        raise ValueError("penalties cannot be chosen by cross-validation from 1 sample; give both, or more samples")
    return candidates[int(torch.stack([*validation_nll(features, candidates)]).sum(0).argmin())]


def validation_nll(features: LabelledLogits, candidates: list[Penalties]) -> Iterator[Tensor]:
    """For each fold, the sum over its samples of their NLL when left out, one for each candidate `[C]`."""
    fold = fold_of_each(len(features.labels)).to(features.labels.device)
    for left_out in range(int(fold.max()) + 1):
        inside, outside = (
            LabelledLogits(features.logits[rows], features.labels[rows])
            for rows in (fold != left_out, fold == left_out)
        )
        fitted = scaled_identity(inside)
        sums = []
        for penalties in candidates:
            # Neighbours in the list of candidates have similar solutions.
            fitted = minimise(inside, fitted, penalties, iterations=_FOLD_ITERATIONS, tolerance=_FOLD_TOLERANCE).map
            sums.append(mean_nll(outside, fitted)[0] * len(outside.labels))
        yield torch.tensor(sums, dtype=torch.float64)


def fold_of_each(samples: int) -> Tensor:
    """Fold `[n]` of each sample: 5 of equal size (or as many as samples), in an order that is random and fixed."""
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(_FOLD_SEED), device="cpu")
    return order % min(FOLDS, samples)


@dataclass(eq=False)
class DirichletCalibration:
    """`log_softmax(W log_softmax(z) + b)`, kept near a diagonal map (Kull et al., 2019).

    Minimises `mean NLL + off_diagonal_penalty * mean of W_ij^2 over i != j + intercept_penalty * mean of b_j^2`. A
    penalty that is not given is chosen from 1e-4, 1e-3, 1e-2, 1e-1, 1 by the NLL of validation samples in 5 folds,
    drawn with a fixed seed. Logits of -inf are refused.
    """

    kind: ClassVar[str] = "dirichlet"
    off_diagonal_penalty: float | None = None
    intercept_penalty: float | None = None
    fitted: FittedDirichlet | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        strongest = self._candidates()[0]
        if self.off_diagonal_penalty is not None:
            self.off_diagonal_penalty = strongest.off_diagonal
        if self.intercept_penalty is not None:
            self.intercept_penalty = strongest.intercept

    @property
    def penalties(self) -> Penalties:
        """The penalties that the map was found with, given or chosen."""
        return required(self.fitted, self).penalties

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
        """Find the penalties, `W` and `b` from `[..., K]` logits and `[...]` labels."""
        samples = labelled_logits(logits, labels)
        refuse_masked(samples.logits, "DirichletCalibration")
        self.fitted = fit_dirichlet(samples, self._candidates())
        return self

    def __call__(self, logits: Any) -> Tensor:
        """`[..., K]` logits to `[..., K]` log-probabilities."""
        return apply(self.fitted, self, logits)

    def save(self, path: str | Path) -> None:
        """Write `W`, `b` and the penalties; `load_calibrator(path)` reads them."""
        fitted = required(self.fitted, self)
        settings = {"off_diagonal_penalty": self.off_diagonal_penalty, "intercept_penalty": self.intercept_penalty}
        results = {"off_diagonal": fitted.penalties.off_diagonal, "intercept": fitted.penalties.intercept}
        tensors = affine_tensors(fitted.map)
        write_record(path, Record(self.kind, fitted.classes, fitted.state, settings, results, tensors))

    @classmethod
    def from_record(cls, record: Record) -> Self:
        calibration = cls(record.setting("off_diagonal_penalty"), record.setting("intercept_penalty"))
        penalties = Penalties(record.result("off_diagonal"), record.result("intercept"))
        calibration.fitted = FittedDirichlet(square_affine(record), penalties, FitState(record.state))
        return calibration

    def _candidates(self) -> list[Penalties]:
        """Strongest first: where two do as well, the simpler map is preferred."""
        off_diagonal, intercept = (
            sorted(PENALTY_GRID, reverse=True) if given is None else [given]
            for given in (self.off_diagonal_penalty, self.intercept_penalty)
        )
        return [Penalties(one, other) for one, other in product(off_diagonal, intercept)]
