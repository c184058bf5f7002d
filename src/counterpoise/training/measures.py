"""What a model is watched by while it trains, and chosen by when it is tuned."""

from collections.abc import Iterable

from counterpoise.metrics import Key, Performance, Stream, TopLabelCalibration
from counterpoise.metrics.protocol import Estimates
from counterpoise.recipes.config import Measure

MEASURES: dict[Measure, Key] = {"nll": Key.NLL, "accuracy": Key.ACCURACY, "ece": Key.ECE}
"""What is measured on the validation images after every epoch."""


def measuring_streams() -> list[Stream]:
    """New streams that together measure all of them."""
    return [Stream(Performance()), Stream(TopLabelCalibration())]


def measured(streams: Iterable[Stream]) -> dict[str, float]:
    """The value of each measure, from streams that have seen the predictions."""
    estimates: Estimates = {}
    for stream in streams:
        estimates |= stream.compute()
    return {name: float(estimates[key].value) for name, key in MEASURES.items()}
