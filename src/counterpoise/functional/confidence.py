"""Confidence scores: one number a sample, larger where the model is surer.

Scores over logits are computed in float32 or float64, never in half precision, which makes ties where there are none.
"""

import torch
from torch import Tensor

from counterpoise._choices import LOGIT_SCORES as LOGIT_SCORES
from counterpoise._choices import PROBABILITY_SCORES as PROBABILITY_SCORES
from counterpoise._choices import require_score
from counterpoise.functional.losses import entropy
from counterpoise.functional.reduction import upcast

UNIT_INTERVAL_SCORES = ("max_softmax", "margin")
"""Scores that lie in [0, 1]."""


def max_softmax(probabilities: Tensor) -> Tensor:
    """`max_k p_k` of `[..., K]` probabilities."""
    return probabilities.amax(-1)


def negative_entropy(log_probabilities: Tensor) -> Tensor:
    """`sum_k p_k log p_k` of `[..., K]` log-probabilities."""
    return -entropy(log_probabilities)


def margin(probabilities: Tensor) -> Tensor:
    """Largest minus second largest of `[..., K]` probabilities."""
    top = probabilities.topk(2, dim=-1).values
    return top[..., 0] - top[..., 1]


def max_logit(logits: Tensor) -> Tensor:
    """`max_k z_k` of `[..., K]` logits."""
    return upcast(logits).amax(-1)


def energy(logits: Tensor) -> Tensor:
    """Negative free energy, `log sum_k exp z_k`, of `[..., K]` logits."""
    return torch.logsumexp(upcast(logits), -1)


def confidence_score(name: str, *, logits: Tensor | None = None, probabilities: Tensor | None = None) -> Tensor:
    """The score of that name from logits, or from probabilities where they suffice.

    >>> confidence_score("energy", logits=torch.zeros(1, 2))
    tensor([0.6931])
    >>> confidence_score("margin", probabilities=torch.tensor([[0.7, 0.2, 0.1]]))
    tensor([0.5000])
    """
    if (logits is None) == (probabilities is None):
        raise ValueError("give either logits or probabilities")
    require_score(name)
    if logits is not None:
        if name == "max_logit":
            return max_logit(logits)
        if name == "energy":
            return energy(logits)
        log_probabilities = torch.log_softmax(upcast(logits), -1)
        if name == "negative_entropy":
            return negative_entropy(log_probabilities)
        probabilities = log_probabilities.exp()
    assert probabilities is not None  # noqa: S101
    if name not in PROBABILITY_SCORES:
        raise ValueError(f"{name} needs logits: probabilities do not determine it")
    if name == "negative_entropy":
        return negative_entropy(upcast(probabilities).log())
    return max_softmax(probabilities) if name == "max_softmax" else margin(probabilities)
