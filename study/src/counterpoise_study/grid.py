"""The grid without an engine: one task after another, resumable, safe beside others on the same store."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoise_study.cells import Task, groups, tasks, undecided
from counterpoise_study.requests import Request
from counterpoise_study.store import Store
from counterpoise_study.work import Ended, Perform, attempt, perform

PAUSE = 1.0
"""Seconds between two looks at cells that other processes have."""

Watch = Callable[[Ended], None]
"""Is told how every attempt ended."""


@dataclass(frozen=True)
class Shard:
    """One share of the groups of tasks.

    >>> Shard.parse("0/4")
    Shard(index=0, count=4)
    """

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """From `i/n`, with i counted from 0."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise ValueError(f"{text!r} is no shard; write i/n with i from 0 to n - 1, such as 0/4")
        return cls(int(index), int(count))


@dataclass(frozen=True)
class Remaining:
    """What is to be done: tasks that can begin, and cells that wait for a choice of hyper-parameters."""

    ready: list[Task]
    undecided: int

    @property
    def is_empty(self) -> bool:
        """Whether the grid is finished."""
        return not self.ready and not self.undecided


def remaining(store: Store, requests: Sequence[Request], *, shard: Shard | None = None) -> Remaining:
    """What is neither committed nor given up."""
    shard = shard or Shard()
    progress, mine = store.progress(), set(groups(requests)[shard.index :: shard.count])
    ready = [
        task
        for task in tasks(requests, progress)
        if task.group in mine and not progress.is_done(task) and task.key not in progress.given_up
    ]
    return Remaining(ready, undecided(requests, progress))


def run_sequentially(
    store: Store,
    requests: Sequence[Request],
    *,
    root: Path | None = None,
    shard: Shard | None = None,
    page: bool = True,
    watch: Watch = lambda _: None,
    perform: Perform = perform,
) -> None:
    """Work until nothing is left to do in the shard; cells that other processes have are waited for."""
    while (left := remaining(store, requests, shard=shard)).ready:
        idle = True
        for task in left.ready:
            ended = attempt(store, task, root=root, page=page, perform=perform)
            watch(ended)
            idle = idle and ended.end == "skipped"
            if task.stage == "validation" and ended.end == "committed":
                break  # what it chooses may come before the others
        if idle:
            time.sleep(PAUSE)
