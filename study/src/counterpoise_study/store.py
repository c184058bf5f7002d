"""A store: a folder of run folders, with a manifest of what is finished, that any number of processes work on.

    STORE/store.json          the requests: all studies that were asked for, with their settings and methods
    STORE/manifest.jsonl      a line for every start, commit, failure and loss
    STORE/manifest.lock       held for moments by the process that adds a line
    STORE/cells/ID            a run as `counterpoise train` makes it, and `cell.json`: all that tables and figures need
    STORE/cells/ID.lock       held by the process that works on the cell
    STORE/SHA256SUMS          of all of it, where it is a copy that was kept and that nobody works on

Cells are claimed as `counterpoise._locks` says: after a killed process, the next one goes on from the newest
checkpoint. A commit is a line of the manifest, written under its lock after a look that there is none yet.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from counterpoise._addresses import read_text
from counterpoise._digests import SUMS, changed_in, read_sums
from counterpoise._documents import from_document, to_document
from counterpoise._files import write_text
from counterpoise._locks import claimed, holding, lock_of
from counterpoise.training.checkpoints import read_manifest
from counterpoise.training.folder import RunFolder
from counterpoise_study.cells import STAGES, Progress, Task
from counterpoise_study.manifest import Event, Manifest
from counterpoise_study.requests import Request, merged, with_initial_weights

SCHEMA, SCHEMA_VERSION = "counterpoise.store", 4
RECORD = "cell.json"


@dataclass(frozen=True)
class Contents:
    """What `store.json` holds: one scale, and a request for each study."""

    scale: str
    requests: tuple[Request, ...]

    def to_json(self) -> str:
        """Strict JSON."""
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION)

    @classmethod
    def from_json(cls, text: str) -> "Contents":
        """Read what `to_json` wrote; anything else is a `ValueError` that names the place."""
        return from_document(cls, text, schema=SCHEMA, version=SCHEMA_VERSION)


class Store:
    """The folder, and what happened in it so far."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = Manifest(self.path / "manifest.jsonl")
        self.lock = lock_of(self.path / "manifest.lock")

    @property
    def contents(self) -> Contents:
        """What was asked for."""
        path = self._contents
        if not path.exists():
            raise ValueError(f"{self.path} is no store: it has no {path.name}; `counterpoise-study run` makes one")
        try:
            return Contents.from_json(read_text(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @property
    def _contents(self) -> Path:
        return self.path / "store.json"

    def as_begun(self, requests: Sequence[Request]) -> list[Request]:
        """The requests by the rule for initial weights of the store, which is that of the release that began it.

        So methods that are added to it are comparable with those that it has, and share their cells.
        """
        begun = self.contents.requests if self._contents.exists() else ()
        if not begun:
            return list(requests)
        rule = begun[0].settings[0].recipe.initial_weights
        return [with_initial_weights(request, rule) for request in requests]

    def add(self, requests: Sequence[Request]) -> None:
        """Ask for studies; methods and seeds of a study that was asked for before join those."""
        self.withdraw_digests()
        (self.path / "cells").mkdir(parents=True, exist_ok=True)
        scales = {request.scale for request in requests}
        with holding(self.lock):
            before = self.contents if self._contents.exists() else None
            scales |= {before.scale} if before else set()
            if len(scales) != 1:
                raise ValueError(f"{self.path} would hold the scales {', '.join(sorted(scales))}; use a store for each")
            known = {request.study: request for request in before.requests} if before else {}
            for request in requests:
                known[request.study] = merged(known.get(request.study, request), request)
            contents = Contents(scales.pop(), tuple(known.values()))
            if contents != before:
                write_text(self._contents, contents.to_json())

    def require_whole(self) -> None:
        """Refuse a store whose files are not those that its `SHA256SUMS` names; one in use has none."""
        changed = changed_in(self.path, read_sums(self.path) or {})
        if changed:
            raise ValueError(
                f"{self.path}: {', '.join(changed[:3])}{', ...' * (len(changed) > 3)} changed or went missing after "
                f"{SUMS} was written; restore {'it' if len(changed) == 1 else 'them'} from a copy"
            )

    def withdraw_digests(self) -> None:
        """Remove `SHA256SUMS` of a store that is about to be written to, if it is still true."""
        self.require_whole()
        (self.path / SUMS).unlink(missing_ok=True)

    def run_folder(self, cell: str) -> RunFolder:
        """The run of a cell."""
        return RunFolder(self.path / "cells" / cell)

    def record_file(self, cell: str) -> Path:
        """What tables and figures need of a cell."""
        return self.run_folder(cell).path / RECORD

    def progress(self) -> Progress:
        """What is finished, and what was given up, as of now."""
        self.manifest.refresh()
        return self.manifest.progress()

    @contextmanager
    def claim(self, task: Task) -> Iterator[bool]:
        """Hold a cell's lock; False where another process has it, or where there is nothing more to do."""
        claim = claimed(self.run_folder(task.cell.id).path)
        if claim is None:
            yield False
            return
        try:
            yield self._begin(task)
        finally:
            claim.release()

    def _begin(self, task: Task) -> bool:
        """Record that the task is worked on, unless it is finished; an earlier attempt that never ended was lost."""
        with holding(self.lock):
            self.manifest.refresh()
            step = newest_step(self.run_folder(task.cell.id))
            for stage in STAGES:
                if self.manifest.state((task.cell.id, stage)).running is not None:
                    self.manifest.append(Event(task.cell.id, stage, "lost", step=step))
            if self.manifest.progress().is_done(task) or self.manifest.state(task.key).is_given_up:
                return False
            self.manifest.append(Event(*task.key, "started", step=step))
            return True

    def commit(self, task: Task, *, metrics: dict[str, float], seconds: float, peak_memory: int | None) -> None:
        """Record that a task is finished, for the first and only time."""
        with holding(self.lock):
            self.manifest.refresh()
            if self.manifest.state(task.key).committed is not None:
                raise AssertionError(f"cell {task.cell.id} was committed before, by another process")
            self.manifest.append(
                Event(*task.key, "committed", measures=metrics, seconds=seconds, peak_memory=peak_memory)
            )

    def adopt(self, events: Sequence[Event]) -> None:
        """Record what was finished in another store."""
        with holding(self.lock):
            for event in events:
                self.manifest.write(event)

    def fail(self, task: Task, *, reason: str, seconds: float) -> None:
        """Record that an attempt failed."""
        with holding(self.lock):
            self.manifest.append(Event(*task.key, "failed", reason=reason, seconds=seconds))

    def forgive(self) -> None:
        """Try again what was given up, and what was finished and whose record is gone."""
        with holding(self.lock):
            self.manifest.refresh()
            lost = {
                task
                for task, state in self.manifest.tasks.items()
                if state.committed is not None and task[1] == "complete" and not self.record_file(task[0]).exists()
            }
            given_up = {task for task, state in self.manifest.tasks.items() if state.is_given_up}
            for cell, stage in sorted(given_up | lost):
                self.manifest.append(Event(cell, stage, "again"))

    def is_held(self, cell: str) -> bool:
        """Whether a process works on a cell now; of a store that cannot be written to it is believed."""
        try:
            claim = claimed(self.run_folder(cell).path)
        except OSError:
            return True
        if claim is not None:
            claim.release()
        return claim is None


def newest_step(run: RunFolder) -> int:
    """How far a run has got: steps of its newest checkpoints, over the members of an ensemble."""
    folders = [run.checkpoints, *run.path.glob("members/*/checkpoints")]
    return sum(map(_newest_step, folders))


def _newest_step(checkpoints: Path) -> int:
    """0 where they cannot be read: the attempt itself will say why."""
    try:
        entry = read_manifest(checkpoints).last
    except ValueError:
        return 0
    return 0 if entry is None else entry.step
