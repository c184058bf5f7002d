"""A backbone as plain data."""

from dataclasses import dataclass
from typing import Final

STANDARD_WIDTH = 64
MOST_WIDTH = 1 << 16
RANDOM: Final = "random"
PRETRAINED: Final = "pretrained"

RESNETS: dict[str, tuple[bool, tuple[int, int, int, int]]] = {
    "resnet10": (False, (1, 1, 1, 1)),
    "resnet18": (False, (2, 2, 2, 2)),
    "resnet34": (False, (3, 4, 6, 3)),
    "resnet50": (True, (3, 4, 6, 3)),
    "resnet101": (True, (3, 4, 23, 3)),
    "resnet152": (True, (3, 8, 36, 3)),
}
"""Whether the blocks have a bottleneck, and how many of them each stage has."""


@dataclass(frozen=True)
class Backbone:
    """Which network, and in which form.

    Attributes:
        name: `resnet10` to `resnet152`, `cnn`, `torchvision/<name>` or `timm/<name>`; see `list_models`.
        width: channels of the first stage of a ResNet, or of the first layer of the `cnn`.
        small_images: a 3x3 stem of stride 1 and no max-pool, as is usual for images of 32x32 or 64x64. The `cnn` has
            this form only.
        weights: `random`; `pretrained`, those that timm or torchvision publish for the network; a safetensors file; or
            a folder that `counterpoise export --to hub` wrote. They get a new head where the number of classes differs.
    """

    name: str = "resnet18"
    width: int = STANDARD_WIDTH
    small_images: bool = True
    weights: str = RANDOM

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MOST_WIDTH:
            raise ValueError(f"width must be at least 1 and at most {MOST_WIDTH}, got {self.width}")
        if "/" in self.name and self.width != STANDARD_WIDTH:
            raise ValueError(
                f"{self.name} has a width of its own: set width to {STANDARD_WIDTH} (of a recipe, --primary.width or "
                f"--auxiliary.width), not {self.width}"
            )
        if not self.weights:
            raise ValueError(f"weights must be {RANDOM}, {PRETRAINED}, a safetensors file or a folder; they are empty")
        if self.weights == PRETRAINED and "/" not in self.name:
            raise ValueError(
                f"{self.name} has no {PRETRAINED} weights: name a network of timm or torchvision, such as "
                f"timm/{self.name} or torchvision/{self.name}, or give a safetensors file"
            )
        if self.weights == PRETRAINED and self.small_images:
            raise ValueError(
                f"{PRETRAINED} weights are of the usual stem, not of that for small images: set small_images to false "
                "(of a recipe, --primary.no-small-images or --auxiliary.no-small-images)"
            )
