"""One task, from claim to commit."""

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from counterpoise._digests import inside
from counterpoise._files import write_text
from counterpoise.recipes.config import Allowance
from counterpoise.recipes.methods import METHODS
from counterpoise.training.checkpoints import remove_checkpoint
from counterpoise.training.data import named_data
from counterpoise.training.evaluation import validation_metrics
from counterpoise.training.folder import RunFolder
from counterpoise.training.progress import quiet
from counterpoise.training.run import resume, train
from counterpoise_study.cells import Task
from counterpoise_study.process_memory import peak_memory, reset_peak
from counterpoise_study.record import record_of
from counterpoise_study.store import Store

End = Literal["committed", "failed", "skipped"]


@dataclass(frozen=True)
class Ended:
    """How an attempt ended: `skipped` where another process has the cell, or has finished it."""

    task: Task
    end: End
    seconds: float = 0.0
    reason: str = ""


class Perform(Protocol):
    """Does the work of a task, and returns the metrics of its validation images."""

    def __call__(self, store: Store, task: Task, *, root: Path | None, page: bool) -> dict[str, float]:
        """As for `attempt`."""


def perform(
    store: Store, task: Task, *, root: Path | None, page: bool, allow: Collection[Allowance] = ()
) -> dict[str, float]:
    """Train, or train on under conditions of which `allow` may have changed, predict and score."""
    with quiet():
        run = _run(store, task, root=root, page=page, allow=allow)
    if task.stage == "validation":
        return validation_metrics(run)
    record = record_of(run, source=task.cell.source)
    write_text(store.record_file(task.cell.id), record.to_json())
    return record.validation


def attempt(
    store: Store, task: Task, *, root: Path | None = None, page: bool = True, perform: Perform = perform
) -> Ended:
    """Work on a task unless somebody else does, and record what came of it.

    Args:
        store: that the task is of.
        task: what to do.
        root: folder of data sets; by default the environment variable COUNTERPOISE_DATA.
        page: whether a complete cell gets a report of its own.
        perform: what is done; tests of the grid do less.
    """
    with store.claim(task) as mine:
        if not mine:
            return Ended(task, "skipped")
        reset_peak()
        started = time.monotonic()
        try:
            metrics = perform(store, task, root=root, page=page)
        except Exception as error:
            # Whatever it is, in anybody's method: other cells go on, and the reason is in the manifest.
            reason = f"{type(error).__name__}: {error}"
            store.fail(task, reason=reason, seconds=time.monotonic() - started)
            return Ended(task, "failed", time.monotonic() - started, reason)
        seconds = time.monotonic() - started
        store.commit(task, metrics=metrics, seconds=seconds, peak_memory=peak_memory())
        _remove_checkpoints(store.run_folder(task.cell.id))
        return Ended(task, "committed", seconds)


def remove_leftovers(store: Store) -> None:
    """Remove the checkpoints of committed cells whose process ended before it did so."""
    for cell in {cell for cell, _ in store.progress().metrics}:
        _remove_checkpoints(store.run_folder(cell))


def _run(store: Store, task: Task, *, root: Path | None, page: bool, allow: Collection[Allowance]) -> RunFolder:
    """Train, or train on, and predict: the validation images alone where no more is wanted."""
    recipe, run = task.cell.recipe, store.run_folder(task.cell.id)
    inside(store.path, run.path.relative_to(store.path).as_posix())
    if recipe.method not in METHODS:
        raise ValueError(f"there is no method {recipe.method!r}; name the file that it comes from with --methods")
    data = named_data(recipe, root=root)
    if task.stage == "validation":
        data = replace(data, test=None, ood={})
    if run.config.exists():
        resume(run.path, allow=allow, root=root, data=data, page=page)
    else:
        train(recipe, run.path, root=root, data=data, page=page)
    return run


def _remove_checkpoints(run: RunFolder) -> None:
    """A trained cell is never trained on: what ships is saved, and checkpoints are most of the disk.

    Of one whose weights are gone, which is trained anew to be completed, they stay.
    """
    for folder in (run, *map(RunFolder, run.path.glob("members/*"))):
        if folder.primary.exists():
            inside(run.path.parent, folder.checkpoints.relative_to(run.path.parent).as_posix())
            for path in folder.checkpoints.glob("*.ckpt"):
                remove_checkpoint(path)
