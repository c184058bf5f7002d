"""Small runs in a script of its own, so that launchers can start them on several processes.

`python parallel_run.py FOLDER DEVICES NAME,STRATEGY,METHOD,plain|batchnorm[,ACTION] ...`: one after another, each in a
folder of its name; actions are stop, resume, uneven, told and remote. To start two processes that import the engine
takes half a minute.
"""

import atexit
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import lightning as L  # noqa: N812
import torch
import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from counterpoise.recipes import METHODS
from counterpoise.recipes.savings import SavingOptions
from counterpoise.training import resume, train
from counterpoise.training import run as runs_of_recipes
from counterpoise.training.checkpoints import begin_manifest, newest_intact
from counterpoise.training.distributed import is_first_process
from counterpoise.training.engine import fit
from counterpoise.training.folder import RunFolder, conditions_now, start
from counterpoise.training.networks import recipe_models
from group_ends import group_threads, watch_models
from runs import Stop, Tell, small_data, small_recipe

VARIANTS = {
    "seldom": ("mte1", SavingOptions(every=2)),
    "cached": ("mte1", SavingOptions(every=2, cached=True)),
}
"""Names besides those of methods."""


def plain_networks(count: int, seed: int) -> list[nn.Module]:
    """No BatchNorm, whose statistics would be those of a rank's share."""
    torch.manual_seed(seed)
    return [
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3))
        for _ in range(count)
    ]


class KeepBuffers(L.Callback):
    """The floating-point buffers that each rank validates with, as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        buffers = {name: value.clone() for name, value in pl_module.named_buffers() if value.is_floating_point()}
        torch.save(buffers, self.folder / f"buffers-{trainer.global_step}-{trainer.global_rank}.pt")


def note_how_it_ended(folder: Path, holders: list[int]) -> None:
    """Last of all at the end of the process: has it left the group after all models, and have its threads ended?"""
    if holders == [0] and not dist.is_initialized() and not group_threads():
        (folder / f"left-{rank_zero_only.rank}").touch()


def run(folder: Path, *, devices: int, strategy: str, method: str, network: str, action: str = "train") -> None:
    """Train, or what the action says.

    `told` is a run that is told to end, and then resumed; in `remote` all processes but one train the auxiliary.
    """
    # Two ranks share 8 images of 9; of 17 in batches of 8 the first rank has a batch more than the second.
    changes: dict[str, Any] = {"data__validation": 17, "evaluation__batch": 9}
    method, savings = VARIANTS.get(method, (method, SavingOptions()))
    recipe = small_recipe(
        method,
        savings=savings,
        engine__devices=1 if action == "remote" else devices,
        engine__auxiliary_devices=devices - 1 if action == "remote" else 0,
        engine__strategy=strategy,
        # The average has BatchNorm statistics of its own, which ranks must share as well.
        engine__ema=0.8 if network == "batchnorm" and strategy == "ddp" else None,
        **(changes if action == "uneven" else {}),
    )
    named = recipe_models(recipe, classes=3, channels=3)
    models = (lambda seed: plain_networks(METHODS[method].models, seed)) if network == "plain" else named
    data = small_data(recipe, test=True)
    if action == "resume":
        resume(folder, models=models, data=data)
    elif action == "stop":
        torch.set_num_threads(1)
        if is_first_process():
            start(
                RunFolder(folder),
                recipe,
                conditions_now(recipe, device="cpu", world_size=devices),
            )
            begin_manifest(RunFolder(folder).checkpoints, recipe=recipe.digest, member=0)
        objective = recipe.objective(models(recipe.seed))
        try:
            fit(recipe, RunFolder(folder), objective, data, resume_from=None, callbacks=[Stop(7)])
        except RuntimeError as error:
            sys.stderr.write(f"{error}\n")
    elif action == "told":
        # One rank alone, and not the first.
        try:
            with calling([Tell(7)] if rank_zero_only.rank == 1 else []):
                train(recipe, folder, models=models, data=data)
        except KeyboardInterrupt:
            entry, _ = newest_intact(RunFolder(folder).checkpoints)
            (folder / f"told-{rank_zero_only.rank}").write_text(entry.file)
        resume(folder, models=models, data=data)
    else:
        with calling([KeepBuffers(folder)] if action == "uneven" else []):
            train(recipe, folder, models=models, data=data)


@contextmanager
def calling(callbacks: list[L.Callback]) -> Iterator[None]:
    """Runs in this context have further callbacks."""
    runs_of_recipes.fit = partial(fit, callbacks=callbacks)
    try:
        yield
    finally:
        runs_of_recipes.fit = fit


def main() -> None:
    folder, devices, *runs = sys.argv[1:]
    atexit.register(note_how_it_ended, Path(folder) / runs[-1].partition(",")[0], watch_models())
    for each in runs:
        name, strategy, method, network, *action = each.split(",")
        run(
            Path(folder) / name,
            devices=int(devices),
            strategy=strategy,
            method=method,
            network=network,
            action=(*action, "train")[0],
        )


if __name__ == "__main__":
    main()
