"""Networks of torchvision and timm, with random weights."""

from types import ModuleType

from torch import nn

from counterpoise._extras import require
from counterpoise.models.cnn import convolution_3x3

PLAIN_STEMS = (("conv1", "maxpool"), ("features.conv0", "features.pool0"))
"""First convolution and max-pool of the networks that have a small-image form: ResNets and DenseNets."""

TWO_HEADED = ("googlenet", "inception_v3")
"""Which in training would return more than the logits."""


def torchvision_model(name: str, *, classes: int, channels: int) -> nn.Module:
    """A classifier of torchvision."""
    if channels != 3:
        raise ValueError(
            f"torchvision/{name} takes images of 3 channels, these have {channels}: "
            "the models of timm and those of counterpoise take any number"
        )
    get_model = torchvision_models().get_model
    model: nn.Module = (
        get_model(name, weights=None, num_classes=classes, aux_logits=False, init_weights=True)
        if name in TWO_HEADED
        else get_model(name, weights=None, num_classes=classes)
    )
    return model


def timm_model(name: str, *, classes: int, channels: int) -> nn.Module:
    """A classifier of timm."""
    model: nn.Module = timm().create_model(
        name,
        pretrained=False,
        # The normalisation of weights that are not loaded yet: random ones take images of any.
        pretrained_cfg_overlay={"mean": None, "std": None},
        num_classes=classes,
        in_chans=channels,
    )
    return model


def torchvision_models() -> ModuleType:
    """`torchvision.models`."""
    return require("torchvision.models", extra="train", purpose="a torchvision model")


def timm() -> ModuleType:
    """`timm`."""
    return require("timm", extra="train", purpose="a timm model")


def torchvision_names() -> list[str]:
    """The classifiers of torchvision; its detectors and the like live in other modules of it."""
    library = torchvision_models()
    return list(library.list_models(module=library))


def timm_names() -> list[str]:
    """The classifiers of timm."""
    return list(timm().list_models())


def convert_stem(model: nn.Module, name: str) -> None:
    """Give a network a stem for small images: a 3x3 convolution of stride 1, and no max-pool."""
    modules = dict(model.named_modules())
    for first, pool in PLAIN_STEMS:
        convolution = modules.get(first)
        if isinstance(convolution, nn.Conv2d) and isinstance(modules.get(pool), nn.MaxPool2d):
            model.set_submodule(first, convolution_3x3(convolution.in_channels, convolution.out_channels))
            model.set_submodule(pool, nn.Identity())
            return
    raise ValueError(f"{name} has no small-image form here: pass small_images=False, and images of the size it expects")
