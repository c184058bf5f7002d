"""Ranks of small runs, forked from a process that has imported the engine, and started as a launcher would."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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
from runs import Stop, small_data, small_recipe


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


def recipe_for(devices: int, strategy: str, *, method: str = "mte1") -> Recipe:
    """Three epochs of four steps, whose batches two and three ranks can share."""
    return small_recipe(method, epochs=3, batch=24, engine__devices=devices, engine__strategy=strategy)


def run(recipe: Recipe, folder: Path, *, network: str = "plain", stop: int | None = None) -> None:
    """Train, or, where there is a run already, resume; `stop` ends it with an error after that step."""
    named = recipe_models(recipe, classes=3, channels=3)
    plain = partial(plain_networks, METHODS[recipe.method].models)
    given: dict[str, Any] = {"models": plain if network == "plain" else named, "data": small_data(recipe)}
    runs_of_recipes.fit = partial(fit, callbacks=[] if stop is None else [Stop(stop)])
    try:
        if (folder / "config.json").exists():
            resume(folder, allow=["config", "world-size"], **given)
        else:
            train(recipe, folder, **given)
    except RuntimeError as error:
        if str(error) != "stopped by the test":
            raise
    finally:
        runs_of_recipes.fit = fit


def resume_as(recipe: Recipe, folder: Path) -> None:
    """Go on with a run as the recipe says, whose ranks are as many as call this."""


def killed(job: Callable[[], object], *, before: str, time: int, rank: int = 0) -> None:
    """Do a job, in which a rank gets SIGKILL the n-th time that a file of that name is about to be there."""
    really, times = Path.replace, 0

    def replace(self: Path, target: Path) -> Path:
        nonlocal times
        times += Path(target).name == before
        if rank_zero_only.rank == rank and Path(target).name == before and times == time:
            os.kill(os.getpid(), signal.SIGKILL)
        return really(self, target)

    Path.replace = replace
    job()
