"""The networks of a run: built from its recipe, read back from its folder, and described in the files they leave."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from counterpoise._files import FilePath, read_safetensors
from counterpoise._json import parsed
from counterpoise.data.images import Images
from counterpoise.export import describe, load_safetensors
from counterpoise.export.weights import require_fit
from counterpoise.models import Backbone, Normalisation, Renormalised, build_model, normalisation_of
from counterpoise.models.backbone import RANDOM
from counterpoise.objectives.models import call_for_logits
from counterpoise.predictions import Header
from counterpoise.recipes.config import Recipe
from counterpoise.recipes.methods import METHODS
from counterpoise.training.folder import RunFolder, installed_versions, local_run, trained_folders

ModelFactory = Callable[[int], Sequence[nn.Module]]
"""Makes the models of one training from its seed: the primary first, then auxiliaries or peers."""

LARGEST_IMAGE = 1 << 28
"""Numbers in one image that a file may say its network takes."""

Say = Callable[[str], None]
"""Shows a line of progress."""


class Members(nn.Module):
    """The members of an ensemble side by side: logits `[n, M, K]`, whose probabilities are averaged when scored."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([call_for_logits(model, (images,), {}) for model in self.models], dim=1)


@dataclass(frozen=True)
class Trained:
    """A trained model and what is needed to use it.

    Attributes:
        recipe: that it was trained by.
        model: the primary, or the `Members` of an ensemble.
        classes: what its logits stand for.
        shape: of an image: channels, height, width.
        mean: of each channel, which images are normalised with.
        std: of each channel.
        metadata: of its file.
    """

    recipe: Recipe
    model: nn.Module
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    metadata: dict[str, str]


def recipe_models(
    recipe: Recipe,
    *,
    classes: int,
    channels: int,
    normalisation: Normalisation | None = None,
    say: Say = lambda _: None,
) -> ModelFactory:
    """The networks that a recipe names.

    Args:
        recipe: names them, and their weights.
        classes: of the images.
        channels: of the images.
        normalisation: of the images. An auxiliary whose weights expect another normalises them for itself.
        say: told where weights come from that are not random.
    """
    count = METHODS[recipe.method].models

    def seed_of(index: int, seed: int) -> int:
        if recipe.initial_weights == "by-count":
            return count * seed + index
        # Mixed, because torch takes 32 bits on the CPU: a sum would soon be the seed of another run's primary.
        return seed if index == 0 else int(np.random.SeedSequence([seed, index]).generate_state(1)[0])

    def network(backbone: Backbone, role: str, *, seed: int) -> nn.Module:
        def told(line: str) -> None:
            if backbone.weights != RANDOM:
                say(f"{role}: {line}")

        model = build_model(backbone, classes=classes, channels=channels, seed=seed, say=told)
        as_they_are = normalisation is None or normalisation_of(model) in (None, normalisation)
        return model if as_they_are else Renormalised(model, given=normalisation)

    def build(seed: int) -> list[nn.Module]:
        auxiliaries = [network(recipe.auxiliary, "auxiliary", seed=seed_of(index, seed)) for index in range(1, count)]
        return [network(recipe.primary, "primary", seed=seed_of(0, seed)), *auxiliaries]

    return build


def as_built(model: nn.Module) -> nn.Module:
    """A trained network on the CPU, in the memory layout of a new one: it decides the last bits of what it computes."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.cpu().clone(memory_format=torch.contiguous_format)
        tensor.grad = None
    return model


def load_run(
    folder: str | FilePath,
    *,
    models: ModelFactory | None = None,
    member: int | None = None,
    networks: Sequence[nn.Module] | None = None,
) -> Trained:
    """The trained model of a run.

    Args:
        folder: of the run, or its address in an object store.
        models: your own networks, if the run was trained with them.
        member: of an ensemble, counted from 0; None for all of them.
        networks: to be filled with the weights, one for each member, instead of new ones.
    """
    run = RunFolder(local_run(folder))
    recipe, folders = run.recipe(), trained_folders(run, member=member)
    metadata, tensors = read_safetensors(folders[0].primary)
    if missing := [name for name in ("class_names", "channels", "size", "mean", "std") if name not in metadata]:
        raise ValueError(f"{folders[0].primary} was not written by a run: its metadata lack {', '.join(missing)}")
    classes, mean, std = stated_lists(metadata, folders[0].primary)
    channels, height, width = image_shape(metadata)
    if networks is None:
        backbone = replace(recipe.primary, weights=RANDOM)
        if models is None:
            if "model" in metadata and "width" not in metadata:
                raise ValueError(
                    f"{folders[0].path} was trained in Python with a network of its own, {metadata['model']}: load it "
                    "there, with what makes the network: load_run(folder, models=...)"
                )
            with torch.device("meta"):  # so that a file is refused before its sizes are taken for granted
                network = build_model(backbone, classes=len(classes), channels=channels)
                require_fit(network, metadata, tensors, path=folders[0].primary)
        networks = [
            build_model(backbone, classes=len(classes), channels=channels) if models is None else models(0)[0]
            for _ in folders
        ]
    for network, part in zip(networks, folders, strict=True):
        load_safetensors(network, part.primary)
    return Trained(
        recipe=recipe,
        model=networks[0] if len(networks) == 1 else Members(networks),
        classes=classes,
        shape=(channels, height, width),
        mean=mean,
        std=std,
        metadata=metadata,
    )


def header_of(trained: Trained) -> Header:
    """Where predictions come from."""
    recipe = trained.recipe
    return Header(
        class_names=trained.classes,
        model="-w".join(trained.metadata[name] for name in ("model", "width") if name in trained.metadata),
        method=recipe.method,
        seed=recipe.seed,
        config_digest=recipe.digest,
        versions=installed_versions(),
    )


def image_shape(metadata: Mapping[str, str]) -> tuple[int, int, int]:
    """Channels, height and width of the images of a model, by the metadata of its file.

    >>> image_shape({"channels": "3", "size": "32"}), image_shape({"channels": "1", "size": "8x12"})
    ((3, 32, 32), (1, 8, 12))
    """
    height, _, width = metadata["size"].partition("x")
    sizes = [metadata["channels"], height, width or height]
    if not all(re.fullmatch(r"[1-9]\d{0,5}", size) for size in sizes) or math.prod(map(int, sizes)) > LARGEST_IMAGE:
        raise ValueError(f"its metadata state images of {' x '.join(sizes)[:80]!r}, which cannot be")
    return int(sizes[0]), int(sizes[1]), int(sizes[2])


def stated_lists(
    metadata: Mapping[str, str], path: FilePath
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Class names, means and standard deviations, by the metadata of a model's file."""
    try:
        names, mean, std = (parsed(metadata[name]) for name in ("class_names", "mean", "std"))
    except ValueError:
        raise ValueError(f"{path}: its class_names, mean or std are no JSON; write it again") from None
    numbers = [value for values in (mean, std) if isinstance(values, list) for value in values]
    if (
        not all(isinstance(values, list) for values in (names, mean, std))
        or not all(isinstance(name, str) for name in names)
        or not all(type(value) in (int, float) for value in numbers)
    ):
        raise ValueError(f"{path}: its class_names, mean or std are no lists of text and numbers; write it again")
    return tuple(names), tuple(mean), tuple(std)


def metadata_of(recipe: Recipe, images: Images, *, own: nn.Module | None) -> dict[str, str]:
    """What somebody who loads the weights must know: the network, its classes, and how images are normalised.

    Of a network that is the user's `own` and not the recipe's, the name of its class.
    """
    channels, height, width = images.pixels.shape[1:]
    network = {
        "model": recipe.primary.name,
        "width": str(recipe.primary.width),
        "small_images": str(recipe.primary.small_images).lower(),
    }
    return {
        "format": "counterpoise.primary",
        **(network if own is None else {"model": type(own).__name__}),
        "method": recipe.method,
        "channels": str(channels),
        "size": str(height) if height == width else f"{height}x{width}",
        "config_digest": recipe.digest,
    } | describe(class_names=images.classes, mean=images.mean, std=images.std)
