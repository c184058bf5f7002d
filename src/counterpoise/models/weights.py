"""Where the weights of a network come from, what they expect of images, and how they get a new head."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from torch import Tensor, nn

from counterpoise._files import read_safetensors
from counterpoise._json import parsed
from counterpoise.models.backbone import PRETRAINED, RANDOM, Backbone
from counterpoise.models.libraries import timm, torchvision_models
from counterpoise.models.pairs import Normalisation

FOLDER_WEIGHTS: Final = "model.safetensors"
"""The weights in a folder that `counterpoise export --to hub` wrote."""

_NAMED = 3
"""Tensors that do not fit, of which a message names so many."""

_COUNTER = "num_batches_tracked"
"""Of BatchNorm, which files from before it was counted do not have, and which changes nothing in a usual network."""

_UNREACHABLE = (OSError, RuntimeError, ValueError)
"""With which the clients of hubs say that they have no connection, and no copy."""


def load_weights(model: nn.Module, backbone: Backbone, *, classes: int, channels: int) -> str:
    """Put a backbone's weights into a network that was built for it, and say in one line what was done.

    The head is a new one where the weights have none, or one for another number of classes.
    """
    if backbone.weights == RANDOM:
        return f"{backbone.name} with random weights"
    source, tensors = _tensors(backbone, channels=channels)
    kept = _put(model, tensors, source=source, name=backbone.name)
    heads = heads_of(model)
    for head in () if kept else heads:
        # As torch initialises any new layer. Libraries' own rules are for training from scratch: that of timm's
        # EfficientNets gives so large logits where classes are few that the first epoch goes to shrinking them.
        if callable(reset := getattr(model.get_submodule(head), "reset_parameters", None)):
            reset()
    normalisation, known = expected_normalisation(backbone, channels=channels), getattr(model, "pretrained_cfg", None)
    classifier = heads[0] if len(heads) == 1 else heads
    described: dict[str, Any] = {"classifier": classifier} | (normalisation._asdict() if normalisation else {})
    model.pretrained_cfg = (known if isinstance(known, dict) else {}) | described  # type: ignore[assignment]
    said = f"its head of {classes} classes too" if kept else f"with a new head of {classes} classes"
    return f"{backbone.name} with the weights of {source}, {said}"


def expected_normalisation(backbone: Backbone, *, channels: int) -> Normalisation | None:
    """What a backbone's weights expect of images: what their file says, else what the network's library says.

    None for random weights, which take images of any normalisation. For another number of channels than the weights
    were trained with, each gets the mean of theirs.
    """
    found = None if backbone.weights == RANDOM else _stated_normalisation(backbone)
    if found is None or len(found.mean) == channels:
        return found
    return Normalisation((fmean(found.mean),) * channels, (fmean(found.std),) * channels)


def _stated_normalisation(backbone: Backbone) -> Normalisation | None:
    library, _, name = backbone.name.partition("/")
    if backbone.weights != PRETRAINED:
        metadata, _ = read_safetensors(_file(backbone))
        if "mean" in metadata and "std" in metadata:
            return Normalisation(*(tuple(parsed(metadata[key])) for key in ("mean", "std")))
    if library == "timm" and name:
        config = timm().get_pretrained_cfg(name)
        return None if config is None else Normalisation(tuple(config.mean), tuple(config.std))
    if library == "torchvision" and name:
        transforms = _torchvision_weights(name).transforms()
        return Normalisation(tuple(transforms.mean), tuple(transforms.std))
    return None


def heads_of(model: nn.Module) -> tuple[str, ...]:
    """Names of a classifier's last layers: what timm calls the classifier, else the last module with parameters.

    Distilled transformers and a few other networks of timm have two heads, whose logits they average.

    >>> heads_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    ('2',)
    """
    config = getattr(model, "pretrained_cfg", None)
    named = config.get("classifier") if isinstance(config, dict) else None
    if isinstance(named, str):
        return (named,)
    modules = dict(model.named_modules())
    if isinstance(named, list | tuple) and (heads := tuple(name for name in named if name in modules)):
        return heads
    holders = [name for name, module in modules.items() if any(True for _ in module.parameters(recurse=False))]
    if not holders:
        raise ValueError(f"{type(model).__name__} has no parameters, and so no head")
    return (holders[-1],)


def misfits(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """What is missing in a state, unexpected, or of another dtype or shape."""
    return [
        *(f"{name} is missing" for name in expected if name not in found),
        *(f"{name} is unexpected" for name in found if name not in expected),
        *(
            f"{name} is {found[name].dtype} {list(found[name].shape)}, not {value.dtype} {list(value.shape)}"
            for name, value in expected.items()
            if name in found and (found[name].dtype, found[name].shape) != (value.dtype, value.shape)
        ),
    ]


def _put(model: nn.Module, tensors: Mapping[str, Tensor], *, source: str, name: str) -> bool:
    """Fill the model, all of it or all but its head; whether the head was filled too."""
    expected = model.state_dict()
    heads = tuple(f"{head}." for head in heads_of(model))
    own = {key for key in expected if key.startswith(heads)}
    kept = all(key in tensors and tensors[key].shape == expected[key].shape for key in own)
    left = set() if kept else own | {key for key in tensors if key.startswith(heads)}
    wanted = {key: value for key, value in expected.items() if key not in left}
    given = {
        # Weights that are stored in half precision train in the network's own.
        key: value.to(expected[key].dtype) if key in expected and value.is_floating_point() else value
        for key, value in tensors.items()
        if key not in left
    }
    given |= {key: value for key, value in wanted.items() if key.endswith(_COUNTER) and key not in given}
    if problems := misfits(wanted, given):
        more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise ValueError(
            f"the weights of {source} do not fit {name}: {'; '.join(problems[:_NAMED])}{more}. Name the network that "
            "they were trained in, with --primary.name or --auxiliary.name"
        )
    model.load_state_dict(given, strict=False)
    return kept


def _tensors(backbone: Backbone, *, channels: int) -> tuple[str, Mapping[str, Tensor]]:
    """What to call the source of the weights, and the weights."""
    if backbone.weights != PRETRAINED:
        path = _file(backbone)
        return str(path), read_safetensors(path)[1]
    library, _, name = backbone.name.partition("/")
    try:
        return _pretrained_timm(name, channels=channels) if library == "timm" else _pretrained_torchvision(name)
    except _UNREACHABLE as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(
            f"the pretrained weights of {backbone.name} could not be had: {first}. They come from {library} once, "
            "and from its cache from then on (HF_HOME, TORCH_HOME; HF_HUB_OFFLINE=1 uses the cache alone); or give a "
            "file, --primary.weights FILE.safetensors, or begin at random, --primary.weights random; those of the "
            "auxiliary have --auxiliary.weights"
        ) from error


def _pretrained_timm(name: str, *, channels: int) -> tuple[str, Mapping[str, Tensor]]:
    """As timm itself loads them: names converted where the file has older ones, the stem for other channels than 3."""
    model: nn.Module = timm().create_model(name, pretrained=True, in_chans=channels)
    config: Any = model.pretrained_cfg
    return f"timm's {config.get('hf_hub_id') or name}", model.state_dict()


def _pretrained_torchvision(name: str) -> tuple[str, Mapping[str, Tensor]]:
    weights = _torchvision_weights(name)
    state: Mapping[str, Tensor] = weights.get_state_dict(
        progress=False, check_hash=True, weights_only=True, map_location="cpu"
    )
    return f"torchvision's {weights}", state


def _torchvision_weights(name: str) -> Any:
    return torchvision_models().get_model_weights(name).DEFAULT


def _file(backbone: Backbone) -> Path:
    """The safetensors file that is meant: itself, or the one in a folder to share."""
    path = Path(backbone.weights).expanduser()
    if path.is_dir():
        path = path / FOLDER_WEIGHTS
    if path.suffix in (".pth", ".pt", ".bin", ".ckpt", ".tar"):
        target = path.with_suffix(".safetensors")
        convert = (
            "import sys, torch, safetensors.torch as s; "
            "s.save_file(torch.load(sys.argv[1], weights_only=True), sys.argv[2])"
        )
        raise ValueError(
            f"{path} may hold code, which is not loaded; convert it once, and give {target}: "
            f"{shlex.join(['python', '-c', convert, str(path), str(target)])}"
        )
    if not path.is_file():
        raise ValueError(
            f"there are no weights {path}; weights are {RANDOM}, {PRETRAINED}, a safetensors file, or a folder that "
            "counterpoise export --to hub wrote"
        )
    return path
