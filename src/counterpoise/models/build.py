"""The model that a backbone describes."""

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

import torch
from torch import nn

from counterpoise._extras import require
from counterpoise.models.backbone import RESNETS, Backbone
from counterpoise.models.cnn import small_cnn
from counterpoise.models.libraries import (
    convert_stem,
    timm_model,
    timm_names,
    torchvision_model,
    torchvision_names,
)
from counterpoise.models.weights import load_weights

LIBRARIES = {
    "torchvision": (torchvision_names, torchvision_model),
    "timm": (timm_names, timm_model),
}
"""What lists the names, and what builds one."""


def build_model(
    backbone: Backbone,
    *,
    classes: int,
    channels: int = 3,
    seed: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> nn.Module:
    """A model from images `[n, channels, height, width]` to logits `[n, classes]`, with the backbone's weights.

    With a seed random weights, a new head among them, depend on nothing else than the arguments: they are made on the
    CPU, and the global random state is left as it was. Without one they are drawn from the global random state, like
    those of any module. `say` is told in one line where the weights come from.

    >>> model = build_model(Backbone("cnn", width=8), classes=10, channels=1, seed=0)
    >>> model(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    for what, number in (("classes", classes), ("channels", channels)):
        if number < 1:
            raise ValueError(f"{what} must be at least 1, got {number}")
    with _seeded(seed):
        model = _build(backbone, classes=classes, channels=channels)
        say(load_weights(model, backbone, classes=classes, channels=channels))
        return model


def list_models(pattern: str = "*") -> list[str]:
    """Names for `Backbone`, all of them or those that match a pattern of `*` and `?`.

    >>> list_models("resnet?0")
    ['resnet10', 'resnet50']
    """
    names = ["cnn", *RESNETS]
    for library, (names_of, _) in LIBRARIES.items():
        names += [f"{library}/{name}" for name in names_of()]
    return [name for name in names if fnmatchcase(name, pattern)]


def _build(backbone: Backbone, *, classes: int, channels: int) -> nn.Module:
    if backbone.name == "cnn":
        return small_cnn(width=backbone.width, classes=classes, channels=channels)
    if backbone.name in RESNETS:
        require("torchvision", extra="train", purpose=f"the backbone {backbone.name}")
        from counterpoise.models.resnet import ResNet

        bottleneck, layers = RESNETS[backbone.name]
        return ResNet(
            layers,
            bottleneck=bottleneck,
            width=backbone.width,
            classes=classes,
            channels=channels,
            small_images=backbone.small_images,
        )
    library, _, name = backbone.name.partition("/")
    names_of, build = LIBRARIES.get(library, (list, None))
    if build is None or name not in names_of():
        raise ValueError(_unknown(backbone.name))
    model = build(name, classes=classes, channels=channels)
    if backbone.small_images:
        convert_stem(model, backbone.name)
    return model


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, list_models(), n=4)
    meant = f"did you mean {', '.join(close)}? " if close else ""
    return f"no backbone is called {name!r}: {meant}counterpoise.models.list_models() gives all names"


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    if seed is None:
        yield
        return
    # torch.manual_seed would also seed the accelerators, whose state is not restored here.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield
