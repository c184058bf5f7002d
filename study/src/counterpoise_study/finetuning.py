"""Settings of fine-tuning: a pretrained network on PACS, each domain left out in turn."""

from collections.abc import Sequence
from dataclasses import replace

from counterpoise.models import Backbone
from counterpoise.recipes.config import DataOptions, EngineOptions, OptimizerOptions, Recipe
from counterpoise_study.requests import Setting
from counterpoise_study.titles import DOMAINS, network_title

LITE0 = "weights/efficientnet_lite0.safetensors"
"""What `python -m tools.pretrained` writes, seen from the root of the repository."""

FINETUNING_RATE = 3e-3
"""The best of three in a short training by cross-entropy."""

FINETUNED = ("sketch", "art_painting", "cartoon", "photo")
"""In the order in which they are run; hyper-parameters are chosen with the first left out."""


def finetuning_recipe() -> Recipe:
    """EfficientNet-Lite0 with ImageNet weights, also for the auxiliary, on 3,000 images."""
    pretrained = Backbone("timm/tf_efficientnet_lite0", small_images=False, weights=LITE0)
    return Recipe(
        primary=pretrained,
        auxiliary=pretrained,
        epochs=4,
        batch=50,
        data=DataOptions(name="pacs_64", limit=3000, spread=True, validation=0.2, padding=8),
        optimizer=OptimizerOptions(
            name="adamw",
            lr=FINETUNING_RATE,
            auxiliary_factor=1.0,
            weight_decay=0.05,
            decay_norms=False,
            schedule="cosine",
            warmup=0.5,
        ),
        engine=EngineOptions(threads=1, checkpoint_epochs=1),
    )


def finetuned(recipe: Recipe, small: Backbone, *, domains: Sequence[str] = FINETUNED) -> tuple[Setting, ...]:
    """PACS with each domain left out, then MTE-1 there with a small random auxiliary; tuned in the first domain."""
    settings: list[Setting] = []
    for domain in domains:
        usual = Setting(
            name=f"finetune-{domain}",
            title=f"PACS, {DOMAINS[domain]} left out",
            recipe=replace(recipe, data=replace(recipe.data, domain=domain)),
            tuned_in="" if domain == domains[0] else f"finetune-{domains[0]}",
        )
        other = replace(
            usual,
            name=f"{usual.name}-small",
            recipe=replace(usual.recipe, auxiliary=small),
            tuned_in=f"{usual.tuned_in}-small" if usual.tuned_in else "",
            variant=f"auxiliary {network_title(small)}, random",
            methods=("mte1",),
        )
        settings += [usual, other]
    return tuple(settings)
