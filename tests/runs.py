"""Small runs for tests: tiny networks on a few images that have something to learn."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch

from counterpoise.data import Images
from counterpoise.models import Backbone
from counterpoise.recipes.config import DataOptions, EngineOptions, OptimizerOptions, Recipe
from counterpoise.training import RunData, from_images
from counterpoise.training.checkpoints import newest_intact, state_digest
from counterpoise.training.folder import EPOCH_COLUMNS, STEP_COLUMNS, RowLog, RunFolder

CLASSES = ("low", "middle", "high")


def striped_images(rows: int = 120, *, seed: int = 0, channels: int = 3, size: int = 8) -> Images:
    """Noise with a bright stripe whose height is the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (rows,), generator=generator)
    pixels = torch.randint(0, 120, (rows, channels, size, size), generator=generator)
    for row, label in enumerate(labels.tolist()):
        pixels[row, :, 1 + 2 * label] += 100
    return Images.of(
        pixels.to(torch.uint8), labels, classes=CLASSES, name="stripes", mean=(0.3,) * channels, std=(0.2,) * channels
    )


def small_recipe(method: str = "mte1", **changes: Any) -> Recipe:
    """Two epochs of five steps, with a checkpoint every two steps."""
    network = Backbone(name="cnn", width=4)
    recipe = Recipe(
        method=method,
        primary=network,
        auxiliary=network,
        epochs=2,
        batch=20,
        data=DataOptions(validation=20, padding=1),
        optimizer=OptimizerOptions(lr=0.05, milestones=(1,)),
        engine=EngineOptions(accelerator="cpu", threads=1, checkpoint_steps=2),
    )
    for path, value in changes.items():
        group, _, name = path.partition("__")
        recipe = replace(recipe, **{group: replace(getattr(recipe, group), **{name: value}) if name else value})
    return recipe


def small_data(recipe: Recipe, *, test: bool = False) -> RunData:
    return from_images(
        recipe,
        striped_images(),
        test=(lambda: striped_images(60, seed=1)) if test else None,
        ood={"noise": lambda: striped_images(40, seed=2)} if test else None,
    )


class Stop(L.Callback):
    """Ends a run from inside, as an error in somebody's code would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == self.after:
            raise RuntimeError("stopped by the test")


class Tell(L.Callback):
    """Sends a signal to this process, in a step or in the validation after it."""

    def __init__(self, step: int, *, validating: bool = False, signalled: int = signal.SIGTERM) -> None:
        self.step, self.validating, self.signalled = step, validating, signalled
        self.left: Any = None

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._tell(trainer, now=not self.validating)

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._tell(trainer, now=self.validating)

    def _tell(self, trainer: L.Trainer, *, now: bool) -> None:
        if now and trainer.global_step == self.step:
            os.kill(os.getpid(), self.signalled)
            self.left = signal.getsignal(self.signalled)


def edit_environment(run, old, new):
    """As somebody does who means it: without the digest."""
    document = json.loads(run.environment.read_text().replace(old, new))
    run.environment.write_text(json.dumps({name: value for name, value in document.items() if name != "sha256"}))


def ending(folder: Path) -> tuple[str, list[str], list[str]]:
    """Digest of the last state, losses by step, and the steps that the log of epochs has."""
    run = RunFolder(folder)
    entry, faults = newest_intact(run.checkpoints)
    assert entry is not None
    assert faults == []
    steps = RowLog(run.steps, STEP_COLUMNS).rows()
    assert [int(row["step"]) for row in steps] == list(range(1, len(steps) + 1))
    epochs = RowLog(run.epochs, EPOCH_COLUMNS).rows()
    return (
        state_digest(run.checkpoints / entry.file),
        [row["loss_hex"] for row in steps],
        [row["step"] for row in epochs],
    )
