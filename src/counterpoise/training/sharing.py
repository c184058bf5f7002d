"""What a run says about its model to those it is shared with."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from counterpoise.export.card import Card
from counterpoise.export.config import ModelConfig
from counterpoise.scoring import score_files
from counterpoise.training.folder import RunFolder
from counterpoise.training.networks import Trained
from counterpoise.training.predict import foreign_files, prediction_file


def config_of(trained: Trained, *, temperature: float) -> ModelConfig:
    """What somebody must know to use the weights of a run."""
    return ModelConfig(
        class_names=trained.classes,
        shape=trained.shape,
        mean=trained.mean,
        std=trained.std,
        temperature=temperature,
        backbone=trained.recipe.primary,
    )


def measured_card(
    folder: str | Path,
    *,
    name: str,
    license: str | None,  # noqa: A002
    temperature: float,
    notes: Sequence[str],
) -> Card:
    """The card of a run, with the scores of its test predictions, where it has them, without and at a temperature."""
    run = RunFolder(Path(folder))
    recipe, test, foreign = run.recipe(), prediction_file(run, "test"), foreign_files(run)
    before = after = None
    if test.exists():
        (before,) = score_files([test], ood=foreign).models
        if temperature != 1:
            (after,) = score_files([test], ood=foreign, temperature=temperature).models
    return Card(
        name=name,
        license=license,
        before=before,
        after=after,
        recipe=asdict(recipe) | {"hyper": recipe.choice},
        notes=tuple(notes),
    )
