"""How far a store is: done, running, failed, waiting, what each method takes, and the time that is left."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from counterpoise._text import printable
from counterpoise.recipes.methods import METHODS
from counterpoise.report.tables import as_text, table
from counterpoise.training.folder import member_folders
from counterpoise_study.cells import STAGES, Cell, Stage
from counterpoise_study.cost import REFERENCE, Work, reference_of, work_of
from counterpoise_study.manifest import TaskState
from counterpoise_study.plan import PlannedCell, planned_cells, work_left
from counterpoise_study.requests import Request
from counterpoise_study.store import Store

State = Literal["done", "running", "failed", "waiting", "undecided"]
"""`failed`: given up; `undecided`: hyper-parameters are not chosen yet."""

_MOST_SHOWN = 8


@dataclass(frozen=True)
class Counts:
    """Cells of a study, or of all."""

    title: str
    done: int = 0
    running: int = 0
    failed: int = 0
    waiting: int = 0
    undecided: int = 0

    @property
    def cells(self) -> int:
        """All of them."""
        return self.done + self.running + self.failed + self.waiting + self.undecided


@dataclass(frozen=True)
class Running:
    """A cell that a process works on: the epochs it has done, and the seconds since it began."""

    name: str
    id: str
    epoch: int
    epochs: int
    seconds: float


@dataclass(frozen=True)
class Trouble:
    """A cell that failed: how often, the last reason, and whether it was given up."""

    name: str
    failures: int
    reason: str
    is_given_up: bool


@dataclass(frozen=True)
class Finished:
    """A cell that was committed: when, the seconds it took, and the metrics of its validation images."""

    name: str
    time: str
    seconds: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Status:
    """A store as it is now.

    Attributes:
        scale: of its studies.
        studies: each as if it were alone.
        total: of all; cells that studies share count once.
        running: cells that processes work on.
        troubles: cells that failed and are not done.
        finished: cells that are done, the last one first.
        ratios: seconds of each method's cells as a multiple of cross-entropy's, by title; of uninterrupted cells.
        seconds_left: at the present number of processes; None while no cell is finished.
    """

    scale: str
    studies: tuple[Counts, ...]
    total: Counts
    running: tuple[Running, ...]
    troubles: tuple[Trouble, ...]
    finished: tuple[Finished, ...]
    ratios: dict[str, float]
    seconds_left: float | None


def status_of(store: Store, requests: Sequence[Request]) -> Status:
    """Look at the manifest and the running cells."""
    progress = store.progress()
    planned = list(planned_cells(requests, progress))
    named = [each for each in planned if not each.is_open]
    running = _running(store, named)
    held = {each.id for each in running}
    return Status(
        scale=requests[0].scale,
        studies=tuple(
            _counts(store, request.study, list(planned_cells([request], progress)), held) for request in requests
        ),
        total=_counts(store, "all", planned, held),
        running=running,
        troubles=_troubles(store, named),
        finished=_finished(store, named),
        ratios=_ratios(store, requests, named),
        seconds_left=_seconds_left(store, planned, running),
    )


def _running(store: Store, named: Sequence[PlannedCell]) -> tuple[Running, ...]:
    """Cells that were begun, and whose lock a process holds."""
    found = []
    for each in named:
        started = next((state.running for state in _states(store, each) if state.running is not None), None)
        if started is not None and store.is_held(each.id):
            seconds = (datetime.now(UTC) - datetime.fromisoformat(started.time)).total_seconds()
            found.append(Running(each.name, each.id, *_epochs(store, each.cell, each.id), seconds))
    return tuple(found)


def _epochs(store: Store, cell: Cell, key: str) -> tuple[int, int]:
    """Epochs that are done, and all; over the members of an ensemble."""
    run, recipe = store.run_folder(key), cell.recipe
    folders = member_folders(recipe, run) if recipe.method in METHODS else [run]
    return sum(_rows(folder.epochs) for folder in folders), recipe.epochs * len(folders)


def _rows(path: Path) -> int:
    """Complete lines below the head; none where the file is not there yet."""
    try:
        return max(0, path.read_bytes().count(b"\n") - 1)
    except OSError:
        return 0


def _states(store: Store, planned: PlannedCell) -> list[TaskState]:
    return [store.manifest.state((planned.id, stage)) for stage in STAGES]


def _counts(store: Store, title: str, planned: Sequence[PlannedCell], held: set[str]) -> Counts:
    found = Counter(_state(store, each, held) for each in planned if each.is_counted)
    return Counts(title, **{str(state): count for state, count in found.items()})


def _state(store: Store, planned: PlannedCell, held: set[str]) -> State:
    if planned.is_open:
        return "undecided"
    if planned.is_done:
        return "done"
    if planned.id in held:
        return "running"
    return "failed" if store.manifest.state((planned.id, planned.stage)).is_given_up else "waiting"


def _troubles(store: Store, named: Sequence[PlannedCell]) -> tuple[Trouble, ...]:
    """Those that were given up first."""
    found = []
    for each in named:
        state = store.manifest.state((each.id, each.stage))
        if not each.is_done and (state.failures or state.losses):
            lost = f"its process ended without a word, {state.losses} times"
            reason = (state.failures[-1].reason or "") if state.failures else lost
            found.append(Trouble(each.name, len(state.failures) + state.losses, reason, state.is_given_up))
    return tuple(sorted(found, key=lambda trouble: not trouble.is_given_up))


def _finished(store: Store, named: Sequence[PlannedCell]) -> tuple[Finished, ...]:
    found = [
        Finished(each.name, event.time, event.seconds or 0.0, event.measures or {})
        for each in named
        for event in (state.committed for state in _states(store, each))
        if event is not None
    ]
    return tuple(sorted(found, key=lambda finished: finished.time, reverse=True))


def _ratios(store: Store, requests: Sequence[Request], named: Sequence[PlannedCell]) -> dict[str, float]:
    """Mean over the data and networks that cells share with cross-entropy's, of mean seconds over mean seconds."""
    seconds: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in named:
        choosing, complete = _states(store, each)
        event = complete.committed
        # One attempt from the start to the end; what was trained to choose from was completed in a second one.
        if event is not None and event.seconds is not None and complete.attempts == 1 and not choosing.attempts:
            alike = replace(reference_of(each.cell.recipe), seed=0)
            seconds[alike.digest][each.cell.recipe.method].append(event.seconds)
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for methods in seconds.values():
        if REFERENCE in methods:
            for method, times in methods.items():
                ratios[method].append(statistics.fmean(times) / statistics.fmean(methods[REFERENCE]))
    titles = {line.method: line.title for request in requests for line in request.lines}
    return {title: statistics.fmean(ratios[method]) for method, title in titles.items() if method in ratios}


def _seconds_left(store: Store, planned: Sequence[PlannedCell], running: Sequence[Running]) -> float | None:
    """From the seconds of uninterrupted cells by their FLOPs, shared between the processes that work now."""
    known = [point for each in planned if not each.is_open for point in _measured(store, each)]
    if not known:
        return None
    # Scores and pages take time that no FLOP counts, so that each stage has a line of its own once it can.
    lines = {
        stage: _line([point[1:] for point in known if point[0] == stage] or [point[1:] for point in known])
        for stage in STAGES
    }
    elapsed = {each.id: each.seconds for each in running}
    left = 0.0
    for each in planned:
        if not each.is_done and not store.manifest.state((each.id, each.stage)).is_given_up:
            fixed, of_flop = lines[each.stage]
            left += max(0.0, fixed + of_flop * work_left(_costed(each)).flops - elapsed.get(each.id, 0.0))
    return left / max(1, len(running))


def _measured(store: Store, planned: PlannedCell) -> list[tuple[Stage, float, float]]:
    """FLOPs and seconds of each stage of a cell that was committed in one attempt."""
    before = Work()
    points: list[tuple[Stage, float, float]] = []
    for stage, state in zip(STAGES, _states(store, planned), strict=True):
        if state.committed is None:
            continue
        work = work_of(_costed(planned).cell.recipe, stage)
        if state.attempts == 1 and state.committed.seconds is not None:
            points.append((stage, work.minus(before).flops, state.committed.seconds))
        before = work
    return points


def _costed(planned: PlannedCell) -> PlannedCell:
    """A method that is not known here, because its file was not named, counts as one network."""
    recipe = planned.cell.recipe
    if recipe.method in METHODS:
        return planned
    return replace(planned, cell=replace(planned.cell, recipe=reference_of(recipe)))


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope of the least-squares line through points, neither below zero.

    >>> _line([(1.0, 3.0), (2.0, 5.0)]), _line([(1.0, 3.0), (2.0, 1.0)]), _line([(1.0, 1.0), (2.0, 4.0)])
    ((1.0, 2.0), (2.0, 0.0), (0.0, 1.8))
    """
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else mean_y / mean_x
    if slope < 0:
        return mean_y, 0.0
    intercept = mean_y - slope * mean_x
    if intercept < 0:
        return 0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return intercept, slope


def span(seconds: float) -> str:
    """A time in the two largest units.

    >>> span(45), span(250), span(12_000), span(200_000)
    ('45 s', '4 min', '3 h 20 min', '2 d 8 h')
    """
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if hours < 24:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def left_text(status: Status) -> str:
    """What is said of the time that is left."""
    if status.total.done + status.total.failed == status.total.cells:
        return "nothing is left to do"
    if status.seconds_left is None:
        return "time left: known once a cell is finished in one go"
    shared = f"with {len(status.running)} running" if status.running else "one cell after another"
    return f"about {span(status.seconds_left)} left {shared}"


def status_text(status: Status) -> str:
    """Tables of the studies, of what runs, of what failed, and of what methods take."""
    columns = ("study", "cells", "done", "running", "failed", "waiting", "undecided")
    shown = [*status.studies] if len(status.studies) == 1 else [*status.studies, status.total]
    rows = [(each.title, *(str(getattr(each, name)) for name in columns[1:])) for each in shown]
    parts = [as_text(table(f"Scale {status.scale}: {left_text(status)}", columns, rows))]
    if status.running:
        cells = [(each.name, f"{each.epoch}/{each.epochs}", span(each.seconds)) for each in status.running]
        parts.append(as_text(table("Running", ("cell", "epoch", "for"), cells)))
    if status.troubles:
        lines = [trouble_text(each) for each in status.troubles[:_MOST_SHOWN]]
        more = len(status.troubles) - _MOST_SHOWN
        parts.append("\n".join(["Failed", *lines, *([f"and {more} more"] if more > 0 else [])]))
    if status.ratios:
        taken = [(title, f"{ratio:.2f}") for title, ratio in status.ratios.items()]
        parts.append(as_text(table("Seconds of a cell, cross-entropy = 1", ("method", "ratio"), taken)))
    return "\n\n".join(parts)


def trouble_text(trouble: Trouble) -> str:
    """A failed cell in one line."""
    fate = "given up" if trouble.is_given_up else "to be tried again"
    return printable(f"{trouble.name}: {trouble.reason} ({trouble.failures} x; {fate})")
