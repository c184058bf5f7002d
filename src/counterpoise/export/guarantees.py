"""Guarantees in what ships: outputs that say which labels a prediction leaves open, and whether to accept it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise._choices import DEFAULT_DELTA
from counterpoise.calibrators import ConformalSets, SelectiveThreshold, TemperatureScaling, second_half

SET, ACCEPT = "set", "accept"
"""Names of the outputs, and of the metadata that describe them."""


@dataclass(frozen=True)
class Guarantees:
    """What a file promises beside its probabilities; both are fitted to logits at the temperature that is folded in.

    Attributes:
        sets: of labels, for the output `set`.
        accept: threshold of the confidence, for the output `accept`.
    """

    sets: ConformalSets | None = None
    accept: SelectiveThreshold | None = None

    def __post_init__(self) -> None:
        if self.sets is not None and (self.sets.by == "slice" or self.sets.randomised):
            what = "slices" if self.sets.by == "slice" else "random numbers"
            raise ValueError(f"a file takes images and nothing else, and these sets take {what}: fit them without")

    @property
    def names(self) -> tuple[str, ...]:
        both: dict[str, object] = {SET: self.sets, ACCEPT: self.accept}
        return tuple(name for name, each in both.items() if each is not None)

    def added_to(self, metadata: dict[str, str]) -> dict[str, str]:
        """The metadata with what the outputs promise, each as JSON under its name, and no promise of another file."""
        found = {name: text for name, text in metadata.items() if name not in (SET, ACCEPT)}
        found |= {} if self.sets is None else {SET: self.sets.to_json(indent=None)}
        return found if self.accept is None else found | {ACCEPT: self.accept.to_json(indent=None)}

    def require_classes(self, classes: int) -> None:
        for each in (self.sets, self.accept):
            if each is not None and each.classes != classes:
                raise ValueError(
                    f"{type(each).__name__} was fitted to {each.classes} classes, and the model has {classes}"
                )


NONE = Guarantees()


class GuaranteedOutputs(nn.Module):
    """The outputs `set`, bool `[n, K]`, and `accept`, bool `[n]`, where there are such guarantees."""

    thresholds: Tensor

    def __init__(self, guarantees: Guarantees) -> None:
        super().__init__()
        self.guarantees = guarantees
        values = () if guarantees.sets is None else guarantees.sets.thresholds
        self.register_buffer("thresholds", torch.tensor(values, dtype=torch.float64), persistent=False)

    def forward(self, logits: Tensor) -> dict[str, Tensor]:
        sets, accept = self.guarantees.sets, self.guarantees.accept
        found = {} if sets is None else {SET: sets.scores(logits) <= self.thresholds}
        return found if accept is None else found | {ACCEPT: accept.accepts(logits)}


def first_half_temperature(logits: Tensor, labels: Tensor, ids: Any) -> TemperatureScaling:
    """A temperature from the half of the samples that no guarantee is fitted to.

    Samples whose label has the probability 0, which no temperature changes, are left out.
    """
    possible = torch.isfinite(logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1))
    rows = possible & ~second_half(ids)
    return TemperatureScaling().fit(logits[rows], labels[rows])


def fit_guarantees(
    logits: Tensor,
    labels: Tensor,
    ids: Any,
    *,
    temperature: float = 1.0,
    alpha: float | None = None,
    risk: float | None = None,
    delta: float = DEFAULT_DELTA,
) -> Guarantees:
    """Guarantees from samples that the model was not trained on, by the half of them that no temperature has seen.

    A temperature that was fitted to the same samples has made them likelier than new ones, and thresholds fitted to
    them would promise slightly too much. So `second_half` of the ids decides: the temperature, and where to look for
    a threshold of the confidence, come from the first half; what is promised comes from the second alone.

    Args:
        logits: `[n, K]`, as the model gives them.
        labels: `[n]`.
        ids: `[n]`, integers or text.
        temperature: that the file divides logits by.
        alpha: for sets that miss the label with at most this probability; None for none.
        risk: for accepting predictions of which at most this share is wrong; None for none.
        delta: largest probability that the share is larger.
    """
    scaled, kept = logits / temperature, second_half(ids)
    return Guarantees(
        sets=None if alpha is None else ConformalSets.fit(scaled[kept], labels[kept], alpha=alpha),
        accept=None if risk is None else SelectiveThreshold.fit(scaled, labels, risk=risk, delta=delta, ids=ids),
    )
