"""Complete recipes by name, each a function that returns its configuration; a variant derives from another."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from counterpoise.models import Backbone
from counterpoise.recipes.config import (
    DataOptions,
    EngineOptions,
    OptimizerOptions,
    Recipe,
)

RESNET18, RESNET34, RESNET50 = (Backbone(name=f"resnet{depth}") for depth in (18, 34, 50))


@dataclass(frozen=True)
class NamedRecipe:
    """A recipe that can be called by name."""

    title: str
    recipe: Callable[[], Recipe] = field(repr=False)


def paper(data: str, primary: Backbone) -> Recipe:
    """The protocol of the MTE paper: 350 epochs of SGD in batches of 100, auxiliaries ResNet18."""
    return Recipe(
        primary=primary,
        auxiliary=RESNET18,
        data=DataOptions(name=data),
    )


def cifar10_resnet34() -> Recipe:
    """CIFAR-10 with ResNet34; CIFAR-100 near, SVHN far."""
    recipe = paper("cifar10", RESNET34)
    return replace(recipe, evaluation=replace(recipe.evaluation, ood=("cifar100", "svhn")))


def cifar10_resnet50() -> Recipe:
    """CIFAR-10 with ResNet50."""
    return replace(cifar10_resnet34(), primary=RESNET50)


def cifar100_resnet34() -> Recipe:
    """CIFAR-100 with ResNet34; CIFAR-10 near, SVHN far."""
    recipe = paper("cifar100", RESNET34)
    return replace(recipe, evaluation=replace(recipe.evaluation, ood=("cifar10", "svhn")))


def cifar100_resnet50() -> Recipe:
    """CIFAR-100 with ResNet50."""
    return replace(cifar100_resnet34(), primary=RESNET50)


def tiny_imagenet_resnet34() -> Recipe:
    """Tiny-ImageNet at 64 pixels with ResNet34."""
    recipe = paper("tiny-imagenet", RESNET34)
    return replace(recipe, data=replace(recipe.data, padding=8))


def tiny_imagenet_resnet50() -> Recipe:
    """Tiny-ImageNet at 64 pixels with ResNet50."""
    return replace(tiny_imagenet_resnet34(), primary=RESNET50)


def pacs_resnet34() -> Recipe:
    """PACS at 64 pixels: trained on three domains, tested on the fourth; batches of 20.

    Epochs, optimizer and batches are the paper's. It does not state the image size, the network, the validation images
    or which domains are trained on: these are decided here.
    """
    recipe = paper("pacs", RESNET34)
    data = replace(recipe.data, domain="sketch", validation=0.1, padding=8, size=64)
    return replace(recipe, data=data, batch=20)


def cifar10_small() -> Recipe:
    """CIFAR-10 at a size for two CPU cores: ResNet18 of width 16, 15 epochs, bfloat16."""
    small = Backbone(name="resnet18", width=16)
    return Recipe(
        primary=small,
        auxiliary=small,
        epochs=15,
        data=DataOptions(name="cifar10"),
        optimizer=OptimizerOptions(schedule="cosine", warmup=0.5, nesterov=True),
        engine=EngineOptions(precision="bfloat16", checkpoint_steps=100),
    )


def digits() -> Recipe:
    """Handwritten digits of 8x8 pixels that come with scikit-learn: no download, seconds.

    Few images and many epochs, so that a plain network becomes overconfident. The auxiliary learns at half the
    primary's rate: there are too few steps for the usual tenth. One thread: a step is too small to be shared, and a
    second one would spend its time waiting.
    """
    cnn = Backbone(name="cnn", width=32)
    return Recipe(
        primary=cnn,
        auxiliary=cnn,
        epochs=100,
        batch=40,
        data=DataOptions(name="digits", limit=150, validation=30, padding=0, flip=False),
        optimizer=OptimizerOptions(auxiliary_lr=0.05, schedule="cosine", warmup=2.0, nesterov=True, weight_decay=0.0),
        engine=EngineOptions(threads=1, checkpoint_epochs=20),
    )


def finetune() -> Recipe:
    """Images of one's own: a small pretrained network, at most 20 epochs, test and validation images by class.

    Both networks start from the same weights. The auxiliary learns at half the primary's rate: there are too few steps
    for the usual tenth.
    """
    network = Backbone(name="timm/tf_efficientnet_lite0", small_images=False, weights="pretrained")
    return Recipe(
        primary=network,
        auxiliary=network,
        epochs=20,
        batch=32,
        patience=5,
        data=DataOptions(
            name="digits",
            validation=0.15,
            test=0.15,
            stratify=True,
            unreadable="skip",
            size=128,
            augment=("RandomResizedCrop", "RandomHorizontalFlip"),
        ),
        optimizer=OptimizerOptions(
            name="adamw",
            lr=1e-3,
            auxiliary_factor=0.5,
            layer_decay=0.8,
            weight_decay=0.01,
            decay_norms=False,
            schedule="cosine",
            warmup=1.0,
        ),
    )


RECIPES: dict[str, NamedRecipe] = {
    "finetune": NamedRecipe("your own images, a pretrained EfficientNet-Lite0: `counterpoise train PATH`", finetune),
    "digits": NamedRecipe("150 of scikit-learn's digits, a small CNN: no download, seconds on a CPU", digits),
    "cifar10-small": NamedRecipe("CIFAR-10, ResNet18 of width 16, 15 epochs: an hour on two CPU cores", cifar10_small),
    "cifar10-resnet34": NamedRecipe("CIFAR-10, ResNet34: the paper's protocol, 350 epochs", cifar10_resnet34),
    "cifar10-resnet50": NamedRecipe("CIFAR-10, ResNet50: the paper's protocol, 350 epochs", cifar10_resnet50),
    "cifar100-resnet34": NamedRecipe("CIFAR-100, ResNet34: the paper's protocol, 350 epochs", cifar100_resnet34),
    "cifar100-resnet50": NamedRecipe("CIFAR-100, ResNet50: the paper's protocol, 350 epochs", cifar100_resnet50),
    "tiny-imagenet-resnet34": NamedRecipe("Tiny-ImageNet, ResNet34: the paper's protocol", tiny_imagenet_resnet34),
    "tiny-imagenet-resnet50": NamedRecipe("Tiny-ImageNet, ResNet50: the paper's protocol", tiny_imagenet_resnet50),
    "pacs-resnet34": NamedRecipe("PACS, ResNet34, one domain left out; 64 px and the split are ours", pacs_resnet34),
}
