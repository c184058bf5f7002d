"""Ranks of small runs, forked from a process that has imported the engine, and started as a launcher would."""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
import torch.multiprocessing as mp
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch.utilities import rank_zero_only

from counterpoise.recipes import METHODS
from counterpoise.recipes.config import Recipe
from counterpoise.training import resume, train
from counterpoise.training import run as runs_of_recipes
from counterpoise.training.engine import fit
from counterpoise.training.networks import recipe_models
from parallel_run import plain_networks
from runs import small_data, small_recipe


def start_ranks(count: int, *jobs: Callable[[], object]) -> None:
    """Do the jobs, one after another, on so many ranks; what is wrong with one of them is raised."""
    mp.start_processes(_rank, (find_free_network_port(), jobs), nprocs=count, start_method="forkserver")


def _rank(rank: int, port: int, jobs: tuple[Callable[[], object], ...]) -> None:
    os.environ |= {"LOCAL_RANK": str(rank), "MASTER_PORT": str(port), "MASTER_ADDR": "127.0.0.1"}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rank_zero_only.rank = rank
    torch.set_num_threads(1)
    for job in jobs:
        job()


def recipe_for(devices: int, strategy: str, **changes: Any) -> Recipe:
    """Three epochs of four steps, whose batches two and three ranks can share."""
    return small_recipe(epochs=3, batch=24, engine__devices=devices, engine__strategy=strategy, **changes)


def run(recipe: Recipe, folder: Path, *, network: str = "plain", callback: L.Callback | None = None) -> None:
    """Train, or, where there is a run already, resume; a callback may end it."""
    plain = partial(plain_networks, METHODS[recipe.method].models)
    models = plain if network == "plain" else recipe_models(recipe, classes=3, channels=3)
    runs_of_recipes.fit = partial(fit, callbacks=[] if callback is None else [callback])
    try:
        if (folder / "config.json").exists():
            resume(folder, allow=["config", "world-size"], models=models, data=small_data(recipe))
        else:
            train(recipe, folder, models=models, data=small_data(recipe))
    except (RuntimeError, KeyboardInterrupt) as error:
        if callback is None:
            raise
        sys.stderr.write(f"{error}\n")
    finally:
        runs_of_recipes.fit = fit


def killed(job: Callable[[], object], *, rank: int, before: str, times: int) -> None:
    """Do a job in which a rank gets SIGKILL when a file is about to get that name for the n-th time."""
    really, names = Path.replace, []

    def replace(path: Path, target: Path) -> Path:
        names.append(Path(target).name)
        if rank_zero_only.rank == rank and names[-1] == before and names.count(before) == times:
            os.kill(os.getpid(), signal.SIGKILL)
        return really(path, target)

    Path.replace = replace
    job()
