"""The manifest of a store: one line of JSON for everything that happened to a task, and what follows from them."""

import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from counterpoise._addresses import naming, regular
from counterpoise._json import parsed
from counterpoise_study.cells import Progress, Stage, is_cell_id

EventKind = Literal["started", "committed", "failed", "lost", "again"]
"""`lost`: the process ended without a word; `again`: earlier ends of the task do not count any more."""

MOST_FAILURES = 3
"""A task that has failed so often is given up."""

MOST_LOSSES = 20
"""A task whose process was lost so often without having got further is given up: it may be what ends it."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a task.

    Attributes:
        cell: id of it.
        stage: how much of the cell was wanted.
        kind: what happened.
        time: in UTC, to the second.
        worker: machine and process.
        seconds: that the attempt took.
        peak_memory: bytes of the process at its largest in the attempt; where that cannot be told, so far.
        reason: why it failed.
        measures: metrics of the validation images, by their name in manifests of every release.
        step: of the newest checkpoint.
    """

    cell: str
    stage: Stage
    kind: EventKind
    time: str = ""
    worker: str = ""
    seconds: float | None = None
    peak_memory: int | None = None
    reason: str | None = None
    measures: dict[str, float] | None = None
    step: int | None = None

    @property
    def task(self) -> tuple[str, Stage]:
        """Which task it is about."""
        return self.cell, self.stage


@dataclass
class TaskState:
    """What is known of one task."""

    committed: Event | None = None
    running: Event | None = None
    failures: list[Event] = field(default_factory=list)
    losses: int = 0
    attempts: int = 0

    @property
    def is_given_up(self) -> bool:
        """Whether it is not tried any more."""
        return self.committed is None and (len(self.failures) >= MOST_FAILURES or self.losses >= MOST_LOSSES)

    def apply(self, event: Event) -> None:
        """Take an event into account."""
        before, self.running = self.running, event if event.kind == "started" else None
        if event.kind == "started":
            self.attempts += 1
        elif event.kind == "committed":
            self.committed = event
        elif event.kind == "failed":
            self.failures.append(event)
        elif event.kind == "lost":
            got_further = before is not None and (event.step or 0) > (before.step or 0)
            self.losses = 0 if got_further else self.losses + 1
        else:
            self.committed, self.failures, self.losses = None, [], 0


class Manifest:
    """The file: read as it grows, and written one whole line at a time by whoever holds the store's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tasks: dict[tuple[str, Stage], TaskState] = {}
        self._read = self._lines = 0

    def refresh(self) -> None:
        """Read the lines that were added since; all of them where the file is shorter than it was."""
        if not self.path.exists():
            return
        if self.path.stat().st_size < self._read:  # an older copy was put in its place
            self.tasks, self._read, self._lines = {}, 0, 0
        with naming(self.path), regular(self.path).open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._lines += 1
            event = _parsed(line, where=f"{self.path}, line {self._lines}")
            self.tasks.setdefault(event.task, TaskState()).apply(event)
        self._read += len(whole)

    def append(self, event: Event) -> None:
        """Write an event that happens now, in this process; the store's lock must be held."""
        self.write(replace(event, time=datetime.now(UTC).isoformat(timespec="seconds"), worker=worker_name()))

    def write(self, event: Event) -> None:
        """Write an event as it is to the disk; the store's lock must be held.

        Half a line that a crash has left at the end is removed.
        """
        self.refresh()
        known = {name: value for name, value in asdict(event).items() if value not in (None, "")}
        with naming(self.path), self.path.open("r+b" if self.path.exists() else "x+b") as file:
            file.seek(self._read)
            file.truncate()
            file.write(json.dumps(known, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.refresh()

    def state(self, task: tuple[str, Stage]) -> TaskState:
        """What is known of a task."""
        return self.tasks.get(task, TaskState())

    def progress(self) -> Progress:
        """What the tasks that are over say about those to come."""
        return progress_of(self.tasks)


def progress_of(states: Mapping[tuple[str, Stage], TaskState]) -> Progress:
    """Metrics of what is committed, and what was given up."""
    return Progress(
        {task: state.committed.measures or {} for task, state in states.items() if state.committed},
        frozenset(task for task, state in states.items() if state.is_given_up),
    )


def worker_name() -> str:
    """This machine and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _parsed(line: bytes, *, where: str) -> Event:
    try:
        found: Any = parsed(line)
    except ValueError:
        raise ValueError(f"{where} is not JSON; restore the file, or remove that line") from None
    names = {item.name for item in fields(Event)}
    required: Iterable[str] = ("cell", "stage", "kind")
    if not isinstance(found, dict) or not names >= found.keys() or not all(name in found for name in required):
        raise ValueError(f"{where} is no event of a task; it was written by another version, or by something else")
    # Folders are named by it, and files in them are written and removed.
    if not is_cell_id(found["cell"]):
        raise ValueError(f"{where} names the cell {found['cell']!r}, which is no id; it is not of a store's making")
    if found["stage"] not in get_args(Stage) or found["kind"] not in get_args(EventKind):
        raise ValueError(f"{where} has the unknown stage or kind {found['stage']!r}, {found['kind']!r}")
    return Event(**found)
