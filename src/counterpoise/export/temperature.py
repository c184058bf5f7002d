"""A fitted temperature in what ships: the primary that returns calibrated probabilities."""

import json
from numbers import Real

import torch
from torch import Tensor, nn

from counterpoise.calibrators import FitState, TemperatureScaling
from counterpoise.calibrators.temperature import HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE
from counterpoise.export.guarantees import NONE, GuaranteedOutputs, Guarantees

Temperature = float | TemperatureScaling | None
"""A number, a fitted calibrator, or None for 1."""

TO_APPLY, FOLDED = "temperature", "folded_temperature"
"""Two names in the metadata, so that nobody divides a second time by what a program has divided by already."""


class Deployed(nn.Module):
    """The primary with its temperature: `logits` z / T and `probabilities` softmax(z / T), both `[n, K]`.

    With guarantees, also `set`, bool `[n, K]`, and `accept`, bool `[n]`.

    >>> Deployed(nn.Identity(), temperature=2.0)(torch.tensor([[2.0, 0.0]]))
    {'logits': tensor([[1., 0.]]), 'probabilities': tensor([[0.7311, 0.2689]])}
    """

    def __init__(self, primary: nn.Module, *, temperature: float, guarantees: Guarantees = NONE) -> None:
        super().__init__()
        self.primary = primary
        self.temperature = temperature
        self.guaranteed = GuaranteedOutputs(guarantees)

    @property
    def names(self) -> tuple[str, ...]:
        return ("logits", "probabilities", *self.guaranteed.guarantees.names)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        logits = self.primary(images)
        if self.temperature != 1:
            logits = logits / self.temperature
        guaranteed: dict[str, Tensor] = self.guaranteed(logits)
        return {"logits": logits, "probabilities": torch.softmax(logits, -1)} | guaranteed


def temperature_value(temperature: Temperature) -> float:
    """The T that logits are divided by; `ValueError` where it is none.

    >>> temperature_value(None), temperature_value(1.5)
    (1.0, 1.5)
    """
    if temperature is None:
        return 1.0
    if isinstance(temperature, TemperatureScaling):
        if temperature.state != FitState.CONVERGED:
            raise ValueError(
                f"the fit of the temperature ended {temperature.state}, {temperature.temperature:g}, which says little "
                "about other samples: fit it on more of them, or pass the number itself"
            )
        return temperature.temperature
    if not isinstance(temperature, Real):
        raise ValueError(f"a {type(temperature).__name__} is no temperature; only a temperature can be folded in")
    if not LOWEST_TEMPERATURE <= temperature <= HIGHEST_TEMPERATURE:  # so written because NaN compares as false
        raise ValueError(
            f"temperature must be a number from {LOWEST_TEMPERATURE} to {HIGHEST_TEMPERATURE:g} or a fitted "
            f"TemperatureScaling, got {temperature}"
        )
    return float(temperature)


def with_temperature(metadata: dict[str, str], temperature: float, *, folded: bool) -> dict[str, str]:
    """The metadata with the temperature as JSON, under the name that says whether it is applied already; none for 1.

    >>> with_temperature({"note": "x"}, 1.5, folded=False)
    {'note': 'x', 'temperature': '1.5'}
    """
    value = json.dumps(temperature)
    for name in (TO_APPLY, FOLDED):
        if metadata.get(name, value) != value:
            raise ValueError(
                f"the metadata name a {name} of {metadata[name]}, the file would have {value}: pass temperature="
                f"{metadata[name]}, or leave {name!r} out of the metadata"
            )
    others = {name: text for name, text in metadata.items() if name not in (TO_APPLY, FOLDED)}
    return others if temperature == 1 else others | {FOLDED if folded else TO_APPLY: value}
