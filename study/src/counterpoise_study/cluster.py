"""The grid on Ray: every cell in a worker process that claims, runs and commits it on the store, the only truth.

Ray finds room and starts processes. What is done, what failed and how often, is read from the store alone: a worker
that dies leaves a claim without an end there, and the next one goes on from the cell's own checkpoint.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from counterpoise._extras import require
from counterpoise.data.sources import ROOT_VARIABLE
from counterpoise.recipes.config import Allowance, Recipe
from counterpoise.training.progress import say
from counterpoise_study.cells import Cell, Stage, Task
from counterpoise_study.grid import PAUSE, Watch, remaining
from counterpoise_study.manifest import MOST_LOSSES
from counterpoise_study.requests import Request
from counterpoise_study.store import Store
from counterpoise_study.work import End, Ended, attempt, perform

_OBJECT_STORE = 100_000_000
"""Bytes for objects that workers share, where Ray takes a third of the memory by default: here there are none."""


@dataclass(frozen=True)
class Needs:
    """Cores and GPUs of a cell; of a GPU, a fraction will do."""

    cpus: float
    gpus: float

    def __post_init__(self) -> None:
        if self.cpus <= 0 or self.gpus < 0:
            raise ValueError(f"a cell needs more than 0 cores and no less than 0 GPUs; got {self}")

    def room(self, resources: Mapping[str, float]) -> int:
        """How many cells a machine can run at a time.

        >>> Needs(cpus=1, gpus=0.25).room({"CPU": 8.0, "GPU": 1.0})
        4
        >>> Needs(cpus=1, gpus=0.25).room({"CPU": 8.0})
        0
        """
        needed = {"CPU": self.cpus, "GPU": self.gpus}
        return int(min(resources.get(name, 0.0) / amount for name, amount in needed.items() if amount > 0))


def run_on_ray(
    store: Store,
    requests: Sequence[Request],
    *,
    address: str | None = None,
    root: Path | None = None,
    page: bool = True,
    watch: Watch = lambda _: None,
    cpus_per_cell: float = 1,
    gpus_per_cell: float = 0,
    own_methods: Path | None = None,
    allow: Sequence[Allowance] = (),
) -> None:
    """Work until nothing is left to do; cells that other processes have are waited for.

    Args:
        store: where all machines of the cluster see it, at the same path; as well as `root` and `own_methods`.
        requests: what is wanted.
        address: of a cluster, as `ray.init` takes it; by default a cluster of this machine's cores and GPUs is made.
            It ends with this process: after a SIGKILL its workers within seconds, Ray's own agents within a minute.
        root: folder of data sets; by default the environment variable COUNTERPOISE_DATA of this process.
        page: whether a complete cell gets a report of its own.
        watch: told how every attempt ended whose worker lived to tell.
        cpus_per_cell: cores that are kept for a cell; the threads of one whose recipe names no number.
        gpus_per_cell: GPUs that are kept for it, perhaps a fraction; with 0, Ray does not share them out.
        own_methods: Python file with methods of the user's own.
        allow: conditions that may have changed since a cell was begun.
    """
    ray = require("ray", extra="cluster", purpose="running on a cluster")
    if ray.is_initialized():
        raise ValueError("this process is connected to Ray already; call ray.shutdown() first")
    needs = Needs(cpus_per_cell, gpus_per_cell)
    folder = root or os.environ.get(ROOT_VARIABLE)
    paths = [None if path is None else str(Path(path).absolute()) for path in (store.path, folder, own_methods)]
    try:
        _connect(ray, address, needs)
        # The store counts losses; a second opinion would run cells again that it has given up.
        remote = ray.remote(max_retries=0, num_cpus=needs.cpus, num_gpus=needs.gpus)(_work)

        def submit(task: Task) -> Any:
            return remote.remote(_plain(task), *paths, page=page, allow=tuple(allow))

        _coordinate(ray, store, requests, submit=submit, needs=needs, watch=watch)
    finally:
        # Never `ray stop`, which ends every Ray process of the machine.
        ray.shutdown()


def _connect(ray: ModuleType, address: str | None, needs: Needs) -> None:
    # Ray's only switch for it that writes no file into the home directory.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(
            # Without "local" it would join any cluster that it finds on this machine.
            address=address or "local",
            object_store_memory=_OBJECT_STORE if address is None else None,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ValueError, OSError):
        raise
    except Exception as error:  # Ray has no other kind for a cluster that does not start in time
        reason = str(error).partition("\n")[0]
        raise OSError(f"Ray did not start: {reason} Give the same command again; what is committed stays") from error
    if not _room(ray, needs):
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        found = f"no machine has room for a cell: {needs}, and there are {machines}"
        if address is None:
            raise ValueError(f"{found}; ask for less")
        say(f"{found}; waiting for machines that join")


def _room(ray: ModuleType, needs: Needs) -> int:
    """How many cells the cluster can run at a time, with the machines that it has now."""
    return sum(needs.room(node["Resources"]) for node in ray.nodes() if node["Alive"])


def _coordinate(
    ray: ModuleType,
    store: Store,
    requests: Sequence[Request],
    *,
    submit: Callable[[Task], Any],
    needs: Needs,
    watch: Watch,
) -> None:
    """Keep the cluster busy, and plan anew whenever it could take more than the last plan has left."""
    died = _died(ray)
    deaths, begun = Counter[tuple[str, Stage]](), Counter[tuple[str, Stage]]()
    waiting: list[Task] = []
    flying: dict[Any, Task] = {}
    idle = False
    while True:
        # Twice as many as there is room for: none waits for this process, and an autoscaler sees that there is more.
        most = 2 * max(1, _room(ray, needs))
        if not waiting and len(flying) < most:
            if idle:
                time.sleep(PAUSE)
            busy = {task.cell.id for task in flying.values()}
            waiting = [task for task in remaining(store, requests).ready if task.cell.id not in busy]
            idle = True
            if not waiting and not flying:
                return
        while waiting and len(flying) < most:
            task = waiting.pop(0)
            begun[task.key] = store.manifest.state(task.key).attempts
            flying[submit(task)] = task
        (reference,), _ = ray.wait(list(flying), num_returns=1)
        task = flying.pop(reference)
        try:
            end, seconds, reason = ray.get(reference)
        except died as error:
            idle = False
            # A claim that a worker leaves is counted in the store. One that dies before it has claimed is not.
            store.manifest.refresh()
            claimed = store.manifest.state(task.key).attempts > begun[task.key]
            deaths[task.key] = 0 if claimed else deaths[task.key] + 1
            if deaths[task.key] > MOST_LOSSES:
                raise ValueError(f"workers die before they begin with {task.name}, again and again: {error}") from None
            continue
        idle = idle and end == "skipped"
        watch(Ended(task, end, seconds, reason))


def _died(ray: ModuleType) -> tuple[type[Exception], ...]:
    """What Ray raises where a worker or its machine is gone; errors of the code are others."""
    errors = ray.exceptions
    return (
        errors.WorkerCrashedError,
        errors.NodeDiedError,
        errors.OutOfMemoryError,
        errors.LocalRayletDiedError,
        errors.ObjectLostError,
    )


def _plain(task: Task) -> dict[str, str]:
    """A task without objects of this package: workers may have been started from another place."""
    return {
        "recipe": task.cell.recipe.to_json(),
        "source": task.cell.source,
        "stage": task.stage,
        "name": task.name,
        "group": task.group,
    }


def _work(
    sent: dict[str, str],
    store: str,
    root: str | None,
    own_methods: str | None,
    *,
    page: bool,
    allow: tuple[Allowance, ...],
) -> tuple[End, float, str]:
    """One task in a worker."""
    cell = Cell(Recipe.from_json(sent["recipe"]), sent["source"])
    task = Task(cell, cast("Stage", sent["stage"]), sent["name"], sent["group"])
    loaded = {} if own_methods is None else _load_once(own_methods)
    if cell.source and loaded.get(cell.recipe.method) != cell.source:
        raise ValueError(f"{own_methods} is not, or no longer, the file that {cell.recipe.method!r} was asked from")
    permitted = partial(perform, allow=allow)
    ended = attempt(Store(store), task, root=None if root is None else Path(root), page=page, perform=permitted)
    return ended.end, ended.seconds, ended.reason


@cache
def _load_once(path: str) -> dict[str, str]:
    from counterpoise_study.custom_methods import load_methods

    return load_methods(path)
