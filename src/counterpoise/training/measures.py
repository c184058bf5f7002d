"""What a model is watched by while it trains, and chosen by when it is tuned."""

from counterpoise.metrics import Key
from counterpoise.recipes.config import Measure

MEASURES: dict[Measure, Key] = {"nll": Key.NLL, "accuracy": Key.ACCURACY, "ece": Key.ECE}
"""What is measured on the validation images after every epoch."""
