"""What is wrong with a run as far as its recipe, its paths and what is installed tell, before torch is imported."""

import os
from importlib.util import find_spec
from pathlib import Path

from counterpoise.data.sources import resolve
from counterpoise.recipes.config import EngineOptions, Recipe
from counterpoise.recipes.methods import method_named


def require_possible(recipe: Recipe, *, root: Path | None, named: bool = True) -> None:
    """Refuse a recipe whose method, loggers, processes or, where data are `named`, data sets are not there."""
    method_named(recipe.method)
    require_processes(recipe.engine)
    require_loggers(recipe)
    for name in (recipe.data.name, *recipe.evaluation.ood) if named else ():
        resolve(name, root=root)


def passed_over(recipe: Recipe) -> str | None:
    """What a recipe says to no effect: one of two rates may be of the recipe that another was begun with."""
    options = recipe.optimizer
    if options.auxiliary_factor is None or options.auxiliary_lr is None:
        return None
    return (
        f"note: optimizer.auxiliary_lr, {options.auxiliary_lr:g}, has no effect beside optimizer.auxiliary_factor, "
        f"{options.auxiliary_factor:g}; if it should have, --optimizer.auxiliary-factor None"
    )


def require_no_conflict(recipe: Recipe) -> None:
    """Refuse a metric by which no epoch is chosen."""
    if recipe.patience is not None and recipe.engine.monitor != "nll":
        raise ValueError(
            f"engine.monitor has no effect where the epoch of the lowest validation NLL ships: leave out "
            f"--engine.monitor {recipe.engine.monitor}, or take --patience None"
        )


def require_processes(engine: EngineOptions) -> None:
    """Refuse a launcher that started more or fewer processes than the recipe shares the work between."""
    started = os.environ.get("WORLD_SIZE") if "TORCHELASTIC_RUN_ID" in os.environ else None
    wanted = engine.processes
    if started is not None and int(started) != wanted:
        raise ValueError(
            f"torchrun started {started} processes, the recipe is for {wanted}; set engine.devices (and "
            "engine.auxiliary_devices) to the processes on each machine, and engine.nodes to the machines"
        )


def require_loggers(recipe: Recipe) -> None:
    """Refuse loggers that are not installed."""
    if missing := [name for name in recipe.engine.loggers if find_spec(name) is None]:
        raise ImportError(f"engine.loggers needs {', '.join(missing)}: pip install {' '.join(missing)}")
