"""Real predictions to try everything on: `python -m tools.demonstration --out FOLDER [--epochs 12]`.

Trains two ResNet18 of width 16 on CIFAR-10 by the recipe `cifar10-small`, one with cross-entropy and one with mutual
transport, into the runs `FOLDER/ce` and `FOLDER/mte1`, whose predictions of OOD images are used as they are, and
writes what the two say about the whole test set and about 2,000 of its images under five corruptions at five severities
(`FOLDER/ce.parquet`, `FOLDER/mte1.parquet`). What is there already is not made again. The data are found by the
environment variable COUNTERPOISE_DATA.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.reporting import progress
from counterpoise.data import load_images
from counterpoise.recipes.catalog import cifar10_small
from counterpoise.recipes.config import Recipe
from counterpoise.training import load_run, predict, resume, train

METHODS = ("ce", "mte1")
OOD_SETS = ("svhn_partial", "dtd_32")
CORRUPTIONS = ("gaussian_noise", "motion_blur", "fog", "contrast", "pixelate")
CORRUPTED_IMAGES = 2000


def main() -> None:
    """Train what is not there yet, then predict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and predictions")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    for method in METHODS:
        demonstrate(replace(demonstration_recipe(), method=method, epochs=options.epochs), options.out)


def demonstration_recipe() -> Recipe:
    """CIFAR-10 at a small size, and OOD images."""
    recipe = cifar10_small()
    return replace(recipe, evaluation=replace(recipe.evaluation, ood=OOD_SETS))


def demonstrate(recipe: Recipe, folder: Path, *, images: int | None = None) -> None:
    """One run and its predictions, of all test images or of so many."""
    run = folder / recipe.method
    if not (run / "config.json").exists():
        train(recipe, run)
    elif not (run / "report.html").exists():
        resume(run)
    target = folder / f"{recipe.method}.parquet"
    if not target.exists():
        trained = load_run(run)
        evaluation = replace(recipe.evaluation, corrupted_images=CORRUPTED_IMAGES)
        limited = replace(trained, recipe=replace(trained.recipe, evaluation=evaluation))
        predicted = load_images(recipe.data.name, "test", limit=images)
        predict(limited, predicted, target, split="test", corruptions=CORRUPTIONS, say=progress)


if __name__ == "__main__":
    main()
