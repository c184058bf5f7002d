"""Settings of what MTE costs: as published, and with auxiliaries that leave something out."""

from collections.abc import Mapping
from dataclasses import replace

from counterpoise.models import Backbone
from counterpoise.recipes.config import DataOptions, EngineOptions, OptimizerOptions, Recipe
from counterpoise.recipes.savings import SavingOptions
from counterpoise_study.requests import Hyper, Setting

SMALL, LARGE = "small", "large"
FASTER = 0.05
"""Learning rate of auxiliaries that learn from less than the published ones."""

TRUNK = "trunk-2"
"""The shared trunk whose hyper-parameters the other shared trunks take."""

BEST = (f"{TRUNK}-every-2-rate-follows", "rate-follows")
"""The two that were best in small, of one network, which large has too."""

STAGES = {2: "layer2", 1: "layer1", 3: "layer3"}
"""Of a ResNet, by number; the one that the others take hyper-parameters from comes first."""

LARGE_METHODS = ("ce", "pskd", "dml", "mte1")


def small_recipe(optimizer: OptimizerOptions) -> Recipe:
    """CIFAR-10 at 16 px, 5,000 training images, ResNet10 of width 16, flips, 50 epochs."""
    network = Backbone("resnet10", width=16)
    return Recipe(
        primary=network,
        auxiliary=network,
        epochs=50,
        data=DataOptions(name="cifar10", limit=10_000, validation=5000, padding=0, size=16),
        optimizer=optimizer,
        engine=EngineOptions(threads=1, checkpoint_epochs=10),
    )


def large_recipe(optimizer: OptimizerOptions) -> Recipe:
    """CIFAR-10 at 32 px, 10,000 training images, ResNet18 of width 16, crops and flips, 100 epochs."""
    network = Backbone("resnet18", width=16)
    return Recipe(
        primary=network,
        auxiliary=network,
        epochs=100,
        data=DataOptions(name="cifar10", limit=15_000, validation=5000),
        optimizer=optimizer,
        engine=EngineOptions(threads=1, checkpoint_epochs=10),
    )


def savings(recipe: Recipe, *, stages: Mapping[int, str] = STAGES) -> Mapping[str, tuple[str, Recipe]]:
    """MTE-1 with each way to save, by name: what it is called in tables, and its recipe."""
    faster = replace(recipe, optimizer=replace(recipe.optimizer, auxiliary_lr=FASTER))
    following = replace(recipe, optimizer=replace(recipe.optimizer, auxiliary_factor=1.0))
    found = {
        f"trunk-{stage}": (f"shared trunk after stage {stage}", replace(faster, savings=SavingOptions(module)))
        for stage, module in stages.items()
    }
    found |= {
        f"every-{steps}": (f"learns every {name} step", replace(faster, savings=SavingOptions(every=steps)))
        for steps, name in ((2, "2nd"), (4, "4th"))
    }
    return found | {
        f"{TRUNK}-every-2": (
            "shared trunk after stage 2, every 2nd step",
            replace(faster, savings=SavingOptions(stages[2], every=2)),
        ),
        f"{TRUNK}-every-2-rate-follows": (
            "shared trunk after stage 2, every 2nd step, auxiliary lr 0.1, decays too",
            replace(following, savings=SavingOptions(stages[2], every=2)),
        ),
        "cached-4": (
            "runs every 4th step, cached between",
            replace(faster, savings=SavingOptions(every=4, cached=True)),
        ),
        "rate-0.05": (f"auxiliary lr {FASTER:g}", faster),
        "rate-follows": ("auxiliary lr 0.1, decays too", following),
        "own-view": ("a view of its own", replace(faster, savings=SavingOptions(own_view=True))),
    }


def small_settings(recipe: Recipe, title: str, *, stages: Mapping[int, str] = STAGES) -> tuple[Setting, ...]:
    """All methods, then MTE-1 with each saving; those with a shared trunk are tuned together, others as published."""
    found = savings(recipe, stages=stages).items()
    return (
        Setting(name=SMALL, title=title, recipe=recipe),
        *(
            _with(saving, f"{SMALL}-{name}", title, tuned_in="" if name == TRUNK else _tuned_in(name))
            for name, saving in found
        ),
    )


def large_settings(recipe: Recipe, title: str, *, stages: Mapping[int, str] = STAGES) -> tuple[Setting, ...]:
    """What was best in small, at the hyper-parameters that were chosen there."""
    found = savings(recipe, stages=stages)
    return (
        Setting(name=LARGE, title=title, recipe=recipe, tuned_in=SMALL, methods=LARGE_METHODS),
        *(_with(found[name], f"{LARGE}-{name}", title, tuned_in=_tuned_in(name)) for name in BEST),
    )


def _tuned_in(saving: str) -> str:
    """The setting whose hyper-parameters are taken."""
    return f"{SMALL}-{TRUNK}" if saving.startswith(TRUNK.partition("-")[0]) else SMALL


def _with(saving: tuple[str, Recipe], name: str, title: str, *, tuned_in: str) -> Setting:
    """MTE-1 alone, with one way to save."""
    variant, recipe = saving
    return Setting(name=name, title=title, recipe=recipe, tuned_in=tuned_in, variant=variant, methods=("mte1",))


def candidates() -> Mapping[str, tuple[Hyper, ...]]:
    """Three values of alpha and of PS-KD's weight; others as in the methods table."""
    alphas: tuple[Hyper, ...] = tuple({"alpha": alpha} for alpha in (0.4, 0.8, 1.2))
    weights: tuple[Hyper, ...] = tuple({"weight": weight} for weight in (0.6, 0.8, 0.9))
    return {"dml": alphas, "mte1": alphas, "mte2": alphas, "pskd": weights}
