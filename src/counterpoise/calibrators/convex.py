"""The convex problem that vector scaling, matrix scaling and Dirichlet calibration share.

Scores are `w * x + b` with a weight `[K]`, or `W x + b` with a weight `[K, K]`. What is minimised is

    mean(-log_softmax(scores)_y) + off_diagonal * mean of W_ij^2 over i != j + intercept * mean of b_j^2
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from counterpoise.calibrators.inputs import LabelledLogits, row_blocks
from counterpoise.calibrators.protocol import FitState

GRADIENT_TOLERANCE = 1e-6
"""Of the largest entry of the gradient, in coordinates of curvature 1: the value is within about 1e-12 a parameter."""

ITERATIONS = 1000
_LEAST_CURVATURE = 1e-6


@dataclass(frozen=True)
class Penalties:
    """Weights of the mean squared off-diagonal entry (lambda) and of the mean squared intercept (mu)."""

    off_diagonal: float = 0.0
    intercept: float = 0.0

    def __post_init__(self) -> None:
        for name in ("off_diagonal", "intercept"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
                raise ValueError(f"the {name} penalty must be a number of at least 0, got {value!r}")
            object.__setattr__(self, name, float(value))

    def curvatures(self, classes: int) -> tuple[float, float]:
        """Second derivatives with respect to an off-diagonal entry and to an intercept."""
        return 2 * self.off_diagonal / (classes * (classes - 1)), 2 * self.intercept / classes


@dataclass(frozen=True)
class Affine:
    """`w * x + b` or `W x + b`, float64; also a gradient with respect to them, and a direction.

    Attributes:
        weight: `[K]` or `[K, K]`.
        bias: `[K]`.
    """

    weight: Tensor
    bias: Tensor

    def scores(self, features: Tensor) -> Tensor:
        """`[n, K]` features to `[n, K]` scores, in their dtype and on their device; -inf stays, if `w` is `[K]`."""
        weight, bias = (part.to(features.dtype).to(features.device) for part in (self.weight, self.bias))
        if weight.ndim == 2:
            return torch.addmm(bias, features, weight.T)
        masked = features == -torch.inf
        return (features.masked_fill(masked, 0.0) * weight + bias).masked_fill(masked, -torch.inf)


@dataclass(frozen=True)
class Fit:
    """A solution and how it was reached."""

    map: Affine
    state: FitState


def mean_nll(samples: LabelledLogits, at: Affine) -> tuple[float, Affine]:
    """Mean of `-log_softmax(scores)_y`, and its gradient; `samples.logits` are the features."""
    total = torch.zeros((), dtype=torch.float64, device=samples.logits.device)
    weight, bias = torch.zeros_like(at.weight), torch.zeros_like(at.bias)
    for rows in row_blocks(*samples.logits.shape):
        features, labels = samples.logits[rows].double(), samples.labels[rows].unsqueeze(-1)
        log_p = torch.log_softmax(at.scores(features), -1)
        total -= log_p.gather(-1, labels).sum()
        residual = log_p.exp_()
        residual.scatter_add_(-1, labels, torch.full_like(labels, -1.0, dtype=torch.float64))
        bias += residual.sum(0)
        if weight.ndim == 2:
            weight.addmm_(residual.T, features)
        else:
            # The residual of a masked class is 0, and 0 times -inf is not.
            weight += residual.mul_(features.masked_fill(features == -torch.inf, 0.0)).sum(0)
    n = len(samples.labels)
    return float(total) / n, Affine(weight / n, bias / n)


def objective(samples: LabelledLogits, at: Affine, penalties: Penalties) -> tuple[float, Affine]:
    """The penalised mean NLL, and its gradient."""
    value, gradient = mean_nll(samples, at)
    off_diagonal = at.weight - at.weight.diag().diag() if at.weight.ndim == 2 else torch.zeros_like(at.weight)
    by_weight, by_bias = penalties.curvatures(samples.classes)
    return (
        value + by_weight / 2 * float((off_diagonal**2).sum()) + by_bias / 2 * float((at.bias**2).sum()),
        Affine(gradient.weight + by_weight * off_diagonal, gradient.bias + by_bias * at.bias),
    )


def least_penalty(at: Affine) -> Affine:
    """The map with the least penalties among those that give the same probabilities.

    What is added to a whole column of W, or to all of b, adds to all scores of a sample alike. Left to the penalties,
    however weak, these directions would be the last in which the fit converges.
    """
    bias = at.bias - at.bias.mean()
    if at.weight.ndim == 1:
        return Affine(at.weight, bias)
    off_diagonal_mean = (at.weight.sum(0) - at.weight.diag()) / (len(bias) - 1)
    return Affine(at.weight - off_diagonal_mean, bias)


@dataclass(frozen=True)
class Coordinates:
    """Parameters in which the problem is round: `W = s W'` and `b_i = r_i b'_i - sum_j W_ij c_ij`, flattened.

    Attributes:
        centre: c, of the shape of the weight.
        weight_scale: s, of the shape of the weight.
        bias_scale: r, `[K]`.
    """

    centre: Tensor
    weight_scale: Tensor
    bias_scale: Tensor

    def flatten(self, at: Affine) -> Tensor:
        """W' and b' as one vector."""
        return torch.cat(
            [(at.weight / self.weight_scale).reshape(-1), (at.bias + self._offset(at.weight)) / self.bias_scale]
        )

    def unflatten(self, flat: Tensor) -> Affine:
        """W and b."""
        entries = self.centre.numel()
        weight = self.weight_scale * flat[:entries].view(self.centre.shape)
        return Affine(weight, self.bias_scale * flat[entries:] - self._offset(weight))

    def flatten_gradient(self, gradient: Affine) -> Tensor:
        """The gradient with respect to W' and b', from that with respect to W and b."""
        by_bias = gradient.bias.view(-1, *[1] * (self.centre.ndim - 1))
        weight = self.weight_scale * (gradient.weight - by_bias * self.centre)
        return torch.cat([weight.reshape(-1), self.bias_scale * gradient.bias])

    def _offset(self, weight: Tensor) -> Tensor:
        product = weight * self.centre
        return product.sum(-1) if product.ndim == 2 else product


def round_coordinates(samples: LabelledLogits, at: Affine, penalties: Penalties) -> Coordinates:
    """Coordinates in which each weight has curvature 1 and none with its class's intercept, at the given map.

    What counts is where samples are undecided: with the weights `v_ni = p_ni (1 - p_ni)`, class i has the curvature
    `mean v_ni` for its intercept, `mean v_ni x_nj^2` for its weights and `mean v_ni x_nj` for both, plus the penalties.
    """
    square, n = at.weight.ndim == 2, len(samples.labels)
    mass, first, second = torch.zeros_like(at.bias), torch.zeros_like(at.weight), torch.zeros_like(at.weight)
    for rows in row_blocks(*samples.logits.shape):
        features = samples.logits[rows].double()
        p = torch.softmax(at.scores(features), -1)
        undecided = p * (1 - p) / n
        features = features.masked_fill(features == -torch.inf, 0.0)
        mass += undecided.sum(0)
        first += undecided.T @ features if square else (undecided * features).sum(0)
        second += undecided.T @ features**2 if square else (undecided * features**2).sum(0)
    by_weight, by_bias = penalties.curvatures(samples.classes)
    mass = (mass + by_bias).clamp(min=_LEAST_CURVATURE)
    rows_of_mass = mass.unsqueeze(-1) if square else mass
    curvature = second - first**2 / rows_of_mass
    if square:
        curvature = curvature + by_weight * (1 - torch.eye(samples.classes, dtype=mass.dtype, device=mass.device))
    return Coordinates(first / rows_of_mass, curvature.clamp(min=_LEAST_CURVATURE).rsqrt(), mass.rsqrt())


def minimise(
    samples: LabelledLogits,
    start: Affine,
    penalties: Penalties,
    *,
    iterations: int = ITERATIONS,
    tolerance: float = GRADIENT_TOLERANCE,
) -> Fit:
    """L-BFGS from `start`, in round coordinates; the value never exceeds that at `start`.

    The gradient is that at the map of least penalty, which is also the gradient of the least value over all maps of the
    same probabilities.
    """
    coordinates = round_coordinates(samples, start, penalties)
    flat = coordinates.flatten(start)
    best_value, best, best_gradient = torch.inf, start, torch.inf

    def closure() -> float:
        nonlocal best_value, best, best_gradient
        at = least_penalty(coordinates.unflatten(flat))
        value, gradient = objective(samples, at, penalties)
        flat.grad = coordinates.flatten_gradient(gradient)
        if value <= best_value:
            best_value, best, best_gradient = value, at, float(flat.grad.abs().max())
        return value

    optimiser = torch.optim.LBFGS(
        [flat],
        max_iter=iterations,
        max_eval=2 * iterations,
        tolerance_grad=tolerance,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )
    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return Fit(best, _state(samples, best, penalties, converged=best_gradient <= tolerance))


def _state(samples: LabelledLogits, at: Affine, penalties: Penalties, *, converged: bool) -> FitState:
    if _has_no_minimum(samples, at, penalties):
        return FitState.NO_MINIMUM
    return FitState.CONVERGED if converged else FitState.NOT_CONVERGED


def _has_no_minimum(samples: LabelledLogits, at: Affine, penalties: Penalties) -> bool:
    """Whether there is a direction in which the likelihood rises without end and no penalty does.

    Two are looked for: that of a class which is no sample's label, and that of the map itself, without its penalised
    parts, if it puts each label first. Data that are told apart in part only can have others.
    """
    features, labels = samples.logits, samples.labels
    absent = torch.bincount(labels, minlength=samples.classes) == 0
    if penalties.intercept > 0:
        # Only the diagonal is free, and lowers the score of a class everywhere if its features have one sign.
        lowered = (features.amax(0) < 0) | (features.amin(0) > 0)
    else:
        lowered = features.amax(0) > -torch.inf
    if bool((absent & lowered).any()):
        return True
    penalised = penalties.off_diagonal > 0 and at.weight.ndim == 2
    weight = at.weight.diag().diag() if penalised else at.weight
    bias = torch.zeros_like(at.bias) if penalties.intercept > 0 else at.bias
    direction = Affine(weight, bias)
    for rows in row_blocks(*features.shape):
        scores, own = direction.scores(features[rows].double()), labels[rows].unsqueeze(-1)
        others = scores.scatter(-1, own, -torch.inf).amax(-1)
        if not bool((scores.gather(-1, own).squeeze(-1) > others).all()):
            return False
    return True
