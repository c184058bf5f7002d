"""Every loss of the package as a row: the tests of losses run over all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from torch import Tensor

import oracles
from counterpoise import LossSum
from counterpoise.functional.batch_terms import dca_term, dtdp_term, mdca_term, mmce_term, weighted_mmce_term
from counterpoise.functional.losses import (
    cross_entropy,
    entropy_regularised,
    focal,
    focal_sample_dependent,
    label_smoothing,
)


@dataclass(frozen=True)
class LossRow:
    """A loss, what it should compute (slow, in NumPy, from probabilities), and whether it takes soft labels."""

    loss: Callable[..., Tensor]
    oracle: Callable[[np.ndarray, np.ndarray], float]
    soft_labels: bool = True


LOSSES: dict[str, LossRow] = {
    "cross_entropy": LossRow(cross_entropy, oracles.cross_entropy),
    "label_smoothing": LossRow(
        partial(label_smoothing, smoothing=0.1), partial(oracles.label_smoothing, smoothing=0.1)
    ),
    "entropy_regularised": LossRow(
        partial(entropy_regularised, beta=0.2), partial(oracles.entropy_regularised, beta=0.2)
    ),
    "focal_2": LossRow(partial(focal, gamma=2.0), partial(oracles.focal, gamma=2.0)),
    "focal_half": LossRow(partial(focal, gamma=0.5), partial(oracles.focal, gamma=0.5)),
    "flsd53": LossRow(focal_sample_dependent, oracles.flsd53),
    "dca_term": LossRow(dca_term, oracles.dca),
    "dca": LossRow(
        LossSum(cross_entropy, dca_term, weight=10.0), lambda p, y: oracles.cross_entropy(p, y) + 10 * oracles.dca(p, y)
    ),
    "mdca": LossRow(mdca_term, oracles.mdca),
    "dtdp_quadratic": LossRow(partial(dtdp_term, alpha=5.0), partial(oracles.huber_gap, alpha=5.0)),
    "dtdp_linear": LossRow(partial(dtdp_term, alpha=0.005), partial(oracles.huber_gap, alpha=0.005)),
    "mmce": LossRow(mmce_term, oracles.mmce, soft_labels=False),
    "mmce_root": LossRow(
        partial(mmce_term, square_root=True), lambda p, y: oracles.mmce(p, y) ** 0.5, soft_labels=False
    ),
    "weighted_mmce": LossRow(weighted_mmce_term, oracles.weighted_mmce, soft_labels=False),
    "weighted_mmce_squared": LossRow(
        partial(weighted_mmce_term, square_root=False), lambda p, y: oracles.weighted_mmce(p, y) ** 2, soft_labels=False
    ),
    "weighted_mmce_twice": LossRow(
        partial(weighted_mmce_term, normalise_twice=True),
        partial(oracles.weighted_mmce, normalise_twice=True),
        soft_labels=False,
    ),
}

GRADIENTS = [(2, False), (3, False), (10, False), (100, True), pytest.param(100, False, marks=pytest.mark.long)]
"""Classes, and whether gradients are compared along a random direction instead of one logit after another."""
