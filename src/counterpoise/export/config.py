"""What a shared folder says about its weights: data only, as strict JSON."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from counterpoise._documents import read_document, to_document
from counterpoise.export.temperature import temperature_value
from counterpoise.models import Backbone, build_model
from counterpoise.models.backbone import RANDOM

SCHEMA, SCHEMA_VERSION = "counterpoise.model", 1


@dataclass(frozen=True)
class ModelConfig:
    """What somebody must know to use the weights.

    Attributes:
        class_names: what the logits stand for, in order.
        shape: of one input, such as channels, height and width.
        mean: of each channel, for pixels from 0 to 1, that inputs are normalised with.
        std: of each channel.
        temperature: that logits are divided by before the softmax: a number, or a fitted scaling, of which it is kept.
        backbone: the network by its name in `counterpoise.models`; None for a network of your own.
    """

    class_names: tuple[str, ...]
    shape: tuple[int, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    temperature: float = 1.0
    backbone: Backbone | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", temperature_value(self.temperature))
        if not self.class_names:
            raise ValueError("class_names is empty: name what each logit stands for")
        if self.shape is not None and min(self.shape, default=0) < 1:
            raise ValueError(
                f"shape must have sizes of at least 1, such as channels, height and width, got {self.shape}"
            )
        if (self.mean is None) != (self.std is None):
            raise ValueError("give both mean and std, or neither")
        if self.mean is not None and self.std is not None:
            if self.shape is None or not len(self.mean) == len(self.std) == self.shape[0]:
                raise ValueError(f"mean and std have one value for each channel of shape, which is {self.shape}")
            if not all(value > 0 for value in self.std):
                raise ValueError(f"every std must be positive, got {self.std}")
            if not all(map(math.isfinite, (*self.mean, *self.std))):
                raise ValueError(f"every mean and std must be finite, got {self.mean} and {self.std}")
        if self.backbone is not None and self.shape is None:
            raise ValueError("shape is missing: the backbone is built for its number of channels")

    def build(self) -> nn.Module:
        if self.backbone is None or self.shape is None:
            raise ValueError("the configuration names no backbone: build the network yourself and pass it as model=")
        network = replace(self.backbone, weights=RANDOM)
        return build_model(network, classes=len(self.class_names), channels=self.shape[0])

    def to_json(self) -> str:
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION)

    @classmethod
    def load(cls, path: str | Path) -> "ModelConfig":
        """Read what `to_json` gave; anything else is a `ValueError` that names the file and the place."""
        return read_document(cls, path, schema=SCHEMA, version=SCHEMA_VERSION)
