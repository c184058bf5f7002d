"""What a run costs, counted before it starts: FLOPs, image passes, steps and disk, without opening a file of data."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from counterpoise.data.sets import SETS
from counterpoise.models import Backbone, build_model
from counterpoise.models.backbone import RANDOM
from counterpoise.objectives import SharedTrunk, halfway
from counterpoise.recipes.checks import corruption_names
from counterpoise.recipes.config import Recipe
from counterpoise.recipes.methods import METHODS
from counterpoise.recipes.savings import HALF, SavingOptions
from counterpoise_study.cells import Stage

REFERENCE = "ce"
"""The method whose cost the others are measured by."""

BACKWARD = 2
"""FLOPs of a backward pass in forward passes: gradients to the weights, and to the inputs of each layer."""

_FLOAT = 4
# Weights and momentum, of the newest checkpoint, the one before it, and the best one.
_CHECKPOINT_BYTES = 3 * 2 * _FLOAT
# Measured: columns and footer of a prediction file, a line of `steps.csv`, and scores, record and page of a cell.
_ROW_BYTES, _FILE_BYTES, _STEP_BYTES, _CELL_BYTES = 10, 5_000, 60, 600_000


@dataclass(frozen=True)
class Cost:
    """What one image costs, and how large the networks are.

    Attributes:
        training_flops: of an image in a training step: forward and backward through all networks.
        inference_flops: of an image through what ships.
        parameters: of all networks that train.
        shipped_parameters: of what ships.
        networks: that train.
        shipped_networks: that ship.
    """

    training_flops: float
    inference_flops: float
    parameters: int
    shipped_parameters: int
    networks: int
    shipped_networks: int


@dataclass(frozen=True)
class Work:
    """What a cell, or a number of cells, has to do.

    Attributes:
        steps: of the optimizer, over all members of an ensemble.
        training_passes: images through networks, forward and backward.
        inference_passes: images through networks, forward only: validation after every epoch, and predictions.
        training_flops: of the former.
        inference_flops: of the latter.
        corrupted: images that are made by corruptions.
        kept_bytes: on disk, for good.
        running_bytes: on disk, of checkpoints, until the cell is committed; of several cells, the most of one.
    """

    steps: int = 0
    training_passes: int = 0
    inference_passes: int = 0
    training_flops: float = 0.0
    inference_flops: float = 0.0
    corrupted: int = 0
    kept_bytes: int = 0
    running_bytes: int = 0

    @property
    def passes(self) -> int:
        """Images through networks."""
        return self.training_passes + self.inference_passes

    @property
    def flops(self) -> float:
        """Of training and inference."""
        return self.training_flops + self.inference_flops

    def minus(self, part: "Work") -> "Work":
        """What is left when a part is done; the disk that checkpoints need stays."""
        left = {name: value - getattr(part, name) for name, value in vars(self).items()}
        return Work(**left | {"running_bytes": self.running_bytes})


def combined(works: Iterable[Work]) -> Work:
    """The work of several cells."""
    each = list(works)
    sums = {item.name: sum(getattr(work, item.name) for work in each) for item in fields(Work)}
    return Work(**sums | {"running_bytes": max((work.running_bytes for work in each), default=0)})


def networks_of(recipe: Recipe) -> list[Backbone]:
    """The networks that train together, the primary first."""
    return [recipe.primary] + [recipe.auxiliary] * (METHODS[recipe.method].models - 1)


def counted(recipe: Recipe, *, classes: int, shape: tuple[int, int, int]) -> Cost:
    """The cost of a recipe's networks for images of `(channels, height, width)`.

    Multiplications and additions of convolutions and matrix products are counted; a backward pass counts as two
    forward passes. An ensemble counts as often as it has members.

    >>> cost = counted(Recipe(method="mte1", auxiliary=Backbone(), primary=Backbone()), classes=10, shape=(3, 32, 32))
    >>> cost.training_flops / cost.inference_flops  # two networks, forward and backward
    6.0
    """
    members, savings = METHODS[recipe.method].members, recipe.savings_in_force
    backbones = networks_of(recipe)
    shipped_flops, shipped_parameters = forward_flops(backbones[0], classes, shape)
    others = [_auxiliary(backbone, classes, shape, savings) for backbone in backbones[1:]]
    return Cost(
        training_flops=members * sum(training_flops(recipe, classes=classes, shape=shape)),
        inference_flops=members * shipped_flops,
        parameters=members * (shipped_parameters + sum(parameters for _, parameters in others)),
        shipped_parameters=members * shipped_parameters,
        networks=members * len(backbones),
        shipped_networks=members,
    )


def training_flops(recipe: Recipe, *, classes: int, shape: tuple[int, int, int]) -> list[float]:
    """Of an image in a training step, by networks that train together."""
    primary, *others = networks_of(recipe)
    own = (1 + BACKWARD) * forward_flops(primary, classes, shape)[0]
    return [own, *(_auxiliary(backbone, classes, shape, recipe.savings_in_force)[0] for backbone in others)]


def _auxiliary(
    backbone: Backbone, classes: int, shape: tuple[int, int, int], savings: SavingOptions
) -> tuple[float, int]:
    """FLOPs of an auxiliary, or peer, for an image in a training step, as a mean over steps; and its parameters."""
    flops, parameters = forward_flops(backbone, classes, shape, savings.trunk)
    forward = 1 / savings.every if savings.cached else 1.0
    return flops * (forward + BACKWARD / savings.every), parameters


@cache
def forward_flops(
    backbone: Backbone, classes: int, shape: tuple[int, int, int], trunk: str | None = None
) -> tuple[float, int]:
    """FLOPs of one image's forward pass, and the number of parameters; without what it shares of another network."""
    with torch.device("meta"):
        model = build_model(replace(backbone, weights=RANDOM), classes=classes, channels=shape[0]).eval()
        image = torch.empty(1, *shape)
    with torch.no_grad(), FlopCounterMode(display=False, depth=100) as counter:
        model(image)
    flops = float(counter.get_total_flops())
    if trunk is not None:
        counts, name = counter.get_flop_counts(), type(model).__name__
        shared = SharedTrunk(model, after=halfway(model) if trunk == HALF else trunk).features
        flops -= sum(sum(counts[f"{name}.{module}"].values()) for module in shared if f"{name}.{module}" in counts)
    return flops, sum(parameter.numel() for parameter in model.parameters())


def reference_of(recipe: Recipe) -> Recipe:
    """The same run by cross-entropy."""
    return replace(recipe, method=REFERENCE, hyper={}, savings=SavingOptions())


def relative_cost(recipe: Recipe) -> float:
    """FLOPs of a training step over those of cross-entropy.

    >>> round(relative_cost(Recipe(method="mte-lite")), 2), relative_cost(Recipe(method="de3"))
    (1.32, 3.0)
    """
    classes, shape = shape_of(recipe)
    own, reference = (counted(each, classes=classes, shape=shape) for each in (recipe, reference_of(recipe)))
    return own.training_flops / reference.training_flops


def shape_of(recipe: Recipe) -> tuple[int, tuple[int, int, int]]:
    """Number of classes, and `(channels, height, width)` of the images that a recipe trains on.

    >>> shape_of(Recipe())
    (10, (3, 32, 32))
    """
    name = recipe.data.name
    if name not in SETS:
        raise ValueError(f"the cost of {name!r} cannot be counted: only of {', '.join(SETS)} is known what they hold")
    found = SETS[name]
    size = recipe.data.size or found.size
    if size is None:
        raise ValueError(f"the images of {name} differ in size; set data.size")
    classes = len(found.classes) or found.class_count
    if classes is None:
        raise ValueError(f"how many classes {name} has is not known; its entry in SETS may state class_count")
    return classes, (found.channels, size, size)


def work_of(recipe: Recipe, stage: Stage = "complete") -> Work:
    """What a cell has to do from nothing, as far as it is wanted."""
    classes, shape = shape_of(recipe)
    cost = counted(recipe, classes=classes, shape=shape)
    members, evaluation = METHODS[recipe.method].members, recipe.evaluation
    given, test = _images_of(recipe.data.name, recipe.data.domain)
    rows = min(given, recipe.data.limit or given)
    share = recipe.data.validation
    validation = round(share * rows) if isinstance(share, float) else share
    steps = _steps(recipe, rows - validation)
    predicted, files, corrupted = validation, 1, 0
    if stage == "complete":
        wanted = [test, *(_images_of(name, None)[1] for name in evaluation.ood)]
        shown = [min(images, evaluation.images or images) for images in wanted]
        variants = len(corruption_names(evaluation.corruptions)) * len(evaluation.severities)
        corrupted = variants * min(shown[0], evaluation.corrupted_images or shown[0])
        predicted += sum(shown) + corrupted
        files += len(shown)
    trained = steps * recipe.batch
    seen = validation * recipe.epochs + predicted
    return Work(
        steps=members * steps,
        training_passes=trained * cost.networks,
        inference_passes=seen * cost.shipped_networks,
        training_flops=trained * cost.training_flops,
        inference_flops=seen * cost.inference_flops,
        corrupted=corrupted,
        kept_bytes=(
            predicted * (_FLOAT * classes * members + _ROW_BYTES)
            + files * _FILE_BYTES
            + _FLOAT * cost.shipped_parameters
            + members * steps * _STEP_BYTES
            + (_CELL_BYTES if stage == "complete" else 0)
        ),
        running_bytes=cost.parameters * _CHECKPOINT_BYTES,
    )


def _steps(recipe: Recipe, images: int) -> int:
    """Steps of one training; incomplete batches are left out, and so is what is pruned after the first choice."""
    whole = images // recipe.batch
    if not METHODS[recipe.method].prunes:
        return recipe.epochs * whole
    first = min(recipe.epochs, recipe.pruning.every)
    left = images - int(recipe.pruning.share * images)
    return first * whole + (recipe.epochs - first) * (left // recipe.batch)


def _images_of(name: str, domain: str | None) -> tuple[int, int]:
    """Training and test images of a set; of one with domains, those of the others and of the one that is left out."""
    if name not in SETS or not SETS[name].images:
        known = ", ".join(each.name for each in SETS.values() if each.images)
        raise ValueError(f"how many images {name!r} has is not known; its entry in SETS states it of {known}")
    images = SETS[name].images
    if not SETS[name].domains:
        return images["train"], images["test"]
    test = sum(images.values()) if domain is None else images[domain]
    return sum(images.values()) - (test if domain else 0), test
