"""How to load a shared folder, as Python that a reader can copy from the card and run there."""

import inspect

from counterpoise.export import plain
from counterpoise.export.config import ModelConfig
from counterpoise.models.backbone import RESNETS, Backbone
from counterpoise.models.libraries import TWO_HEADED

_LOADING = """\
with open("config.json", encoding="utf-8") as file:
    config = json.load(file)
{network}
load_model(model, "model.safetensors")
model.eval()

inputs = {inputs}
{normalisation}with torch.inference_mode():
    logits = model(inputs)
probabilities = torch.softmax(logits / config["temperature"], -1)
confidence, index = probabilities[0].max(-1)
print(config["class_names"][index], float(confidence))"""

_NORMALISATION = """\
mean, std = (torch.tensor(config[name]).view({view}) for name in ("mean", "std"))
inputs = (inputs - mean) / std
"""

_TRANSFORMERS = """\
import torch
from transformers import {name}

model = {name}.from_pretrained(".").eval()
inputs = ...  # yours, as the model takes them
with torch.inference_mode():
    logits = model(inputs).logits
probabilities = torch.softmax(logits / {temperature!r}, -1)"""


def loading_snippet(config: ModelConfig, *, transformers_class: str | None) -> str:
    """A script that prints one prediction; it imports no more than the network needs.

    Args:
        config: of the folder.
        transformers_class: of a model that transformers saved.
    """
    if transformers_class is not None:
        return _TRANSFORMERS.format(name=transformers_class, temperature=config.temperature)
    imports, definition, network = _network(config)
    shape = "..." if config.shape is None else f"torch.rand(1, {', '.join(map(str, config.shape))})"
    normalised = config.mean is not None
    head = ["import json", "", "import torch", *imports, "from safetensors.torch import load_model", ""]
    loading = _LOADING.format(
        network=network,
        inputs=f"{shape}  # yours{', with pixels from 0 to 1' if normalised else ''}",
        normalisation=_NORMALISATION.format(view=", ".join(["-1", *["1"] * (len(config.shape or ()) - 1)]))
        if normalised
        else "",
    )
    return "\n".join([*head, *(["", f"{definition}\n"] if definition else []), loading])


def _network(config: ModelConfig) -> tuple[list[str], str, str]:
    """Imports, a definition to copy, and the line that builds the network."""
    backbone = config.backbone
    if backbone is None or config.shape is None:
        return [], "", "model = ...  # the network that was trained, built by your own code"
    classes, channels = len(config.class_names), config.shape[0]
    sizes = f"classes={classes}, channels={channels}"
    if backbone.name == "cnn":
        definition = inspect.getsource(plain.cnn)
        return ["from torch import nn"], definition, f"model = cnn(width={backbone.width}, {sizes})"
    if backbone.name in RESNETS:
        bottleneck, blocks = RESNETS[backbone.name]
        definition = f"{inspect.getsource(plain.Block)}\n\n{inspect.getsource(plain.resnet)}"
        form = f"blocks={blocks}, bottleneck={bottleneck}, small_images={backbone.small_images}"
        network = f"model = resnet({form}, width={backbone.width}, {sizes})"
        return ["from torch import Tensor, nn"], definition, network
    return _library_network(backbone, classes=classes, channels=channels)


def _library_network(backbone: Backbone, *, classes: int, channels: int) -> tuple[list[str], str, str]:
    library, _, name = backbone.name.partition("/")
    if backbone.small_images:  # a stem that no library has: only counterpoise can build it
        network = f'build_model(Backbone("{backbone.name}"), classes={classes}, channels={channels})'
        return ["from counterpoise.models import Backbone, build_model"], "", f"model = {network}"
    if library == "timm":
        return ["import timm"], "", f'model = timm.create_model("{name}", num_classes={classes}, in_chans={channels})'
    form = ", aux_logits=False, init_weights=True" if name in TWO_HEADED else ""
    return ["import torchvision"], "", f'model = torchvision.models.get_model("{name}", num_classes={classes}{form})'
