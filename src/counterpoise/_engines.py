"""Where independent calls run: in this process, in processes of this machine, or on a Ray cluster.

Calls are retried when the process that runs them dies. What they return is a state, which may stay where it is until it
is combined with others, and a small value for the caller.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from threading import Thread
from types import ModuleType
from typing import Any, Protocol

from counterpoise._extras import require

MOST_RETRIES = 10
"""Of one call whose process died. A call that raises is not retried: it would raise again."""
_FAN_IN = 8
"""States that are combined at a time."""

Handle = Any
"""Of a state: the engine that gave it knows where it is."""


class Engine(Protocol):
    """Runs calls.

    Attributes:
        width: how many calls are worth having under way.
    """

    width: int

    def start(self, function: Callable[..., tuple[Any, Any]], *arguments: Any) -> tuple[Handle, Handle]:
        """Begin a call of a function that returns a state and a value; handles of both."""

    def combine(self, function: Callable[[Iterable[Any]], Any], states: Sequence[Handle]) -> Handle:
        """The state that a function makes of several, which it takes one after the other."""

    def value(self, handle: Handle) -> Any:
        """What a handle stands for, waited for."""

    def close(self) -> None:
        """End what the engine began."""


class Here:
    """Calls run one after the other, in this process."""

    width = 1

    def start(self, function: Callable[..., tuple[Any, Any]], *arguments: Any) -> tuple[Handle, Handle]:
        return function(*arguments)

    def combine(self, function: Callable[[Iterable[Any]], Any], states: Sequence[Handle]) -> Handle:
        return function(states)

    def value(self, handle: Handle) -> Any:
        return handle

    def close(self) -> None:
        """Nothing was begun."""


@dataclass(eq=False)
class _Call:
    function: Callable[..., tuple[Any, Any]]
    arguments: tuple[Any, ...]
    future: Future[tuple[Any, Any]] | None = None
    retries: int = 0


@dataclass(frozen=True)
class _Result:
    """One of the results of a call."""

    call: _Call
    place: int


class Processes:
    """Calls run in processes of this machine, and states are combined in this one.

    Args:
        workers: how many.
    """

    def __init__(self, workers: int) -> None:
        self.width = 2 * workers
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._open: list[_Call] = []

    def start(self, function: Callable[..., tuple[Any, Any]], *arguments: Any) -> tuple[Handle, Handle]:
        call = _Call(function, arguments)
        self._open.append(call)
        self._submit(call)
        return _Result(call, 0), _Result(call, 1)

    def combine(self, function: Callable[[Iterable[Any]], Any], states: Sequence[Handle]) -> Handle:
        return function(self.value(state) for state in states)

    def value(self, handle: Handle) -> Any:
        """Wait for a call; what died meanwhile is begun again."""
        if not isinstance(handle, _Result):
            return handle  # combined here
        call = handle.call
        while True:
            try:
                assert call.future is not None  # noqa: S101
                found = call.future.result()
            except (BrokenProcessPool, CancelledError):
                self._begin_again()
            else:
                if call in self._open:
                    self._open.remove(call)
                return found[handle.place]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, call: _Call) -> None:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._workers, mp_context=get_context("spawn"), initializer=_end_with_parent
            )
        try:
            call.future = self._pool.submit(call.function, *call.arguments)
        except BrokenProcessPool:
            self._begin_again()

    def _begin_again(self) -> None:
        """One dead process takes the pool with it, and the calls of all others."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None
        for call in self._open:
            finished = call.future is not None and call.future.done() and not call.future.cancelled()
            if finished and not isinstance(call.future.exception(), BrokenProcessPool):  # type: ignore[union-attr]
                continue
            call.retries += 1
            if call.retries > MOST_RETRIES:
                raise RuntimeError(f"a worker process died {call.retries} times; is there enough memory?")
            self._submit(call)


def _end_with_parent() -> None:
    """Workers of a pool would wait for ever for the next call of a process that was killed."""
    parent = parent_process()

    def end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=end, daemon=True).start()


class Ray:
    """Calls run as tasks of a Ray cluster, and states are combined there.

    Args:
        address: of a cluster, as `ray.init` takes it: `auto` for the one that this machine belongs to, `local` for one
            of this machine's cores that ends with this process.
        cpus: cores of a task.
        gpus: GPUs of a task, perhaps a fraction.
    """

    def __init__(self, address: str, *, cpus: float = 1, gpus: float = 0) -> None:
        self._ray = connected(address)
        self._options: dict[str, Any] = {"max_retries": MOST_RETRIES, "num_cpus": cpus, "num_gpus": gpus}
        found = self._ray.cluster_resources()
        needed = {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount > 0}
        room = min(int(found.get(name, 0) / amount) for name, amount in needed.items())
        if not room:
            self.close()
            raise ValueError(f"the cluster has no room for a task of {needed}: it has {found}")
        self.width = 2 * room

    def start(self, function: Callable[..., tuple[Any, Any]], *arguments: Any) -> tuple[Handle, Handle]:
        task = self._ray.remote(function).options(num_returns=2, **self._options)
        state, value = task.remote(*arguments)
        return state, value

    def combine(self, function: Callable[[Iterable[Any]], Any], states: Sequence[Handle]) -> Handle:
        """Begin a task; the states go to it from where they are."""
        task = self._ray.remote(_combine_in_task).options(max_retries=MOST_RETRIES, num_cpus=1)
        return task.remote(function, list(states))

    def value(self, handle: Handle) -> Any:
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None

    def close(self) -> None:
        """Leave the cluster. Never `ray stop`, which ends every Ray process of the machine."""
        self._ray.shutdown()


def _combine_in_task(function: Callable[[Iterable[Any]], Any], states: Sequence[Handle]) -> Any:
    """Fetch states one by one: all at once would be several times as much as a worker needs to score."""
    import ray

    return function(ray.get(state) for state in states)


def connected(address: str) -> ModuleType:
    """Ray, connected to a cluster."""
    ray = require("ray", extra="cluster", purpose="running on a cluster")
    if ray.is_initialized():
        raise ValueError("this process is connected to Ray already; call ray.shutdown() first")
    # Ray's only switch for it that writes no file into the home directory.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except ConnectionError as error:
        # A token goes to no address that was not found on this machine unless the user says so.
        wanted = "" if "RAY_AUTH_MODE" in os.environ else "; if it asks for a token, set RAY_AUTH_MODE=token"
        raise ConnectionError(f"no Ray cluster answers at {address}: {error}{wanted}") from None
    return ray


def in_order(
    engine: Engine, function: Callable[..., tuple[Any, Any]], calls: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[Handle, Any]]:
    """The state's handle and the value of each call, in their order; as many as the engine is wide are under way."""
    waiting = deque[tuple[Handle, Handle]]()
    for arguments in calls:
        waiting.append(engine.start(function, *arguments))
        if len(waiting) > engine.width:
            state, value = waiting.popleft()
            yield state, engine.value(value)
    while waiting:
        state, value = waiting.popleft()
        yield state, engine.value(value)


class Tree:
    """Combines states as they come, in an order that depends on their number alone.

    >>> tree = Tree(Here(), lambda parts: "(" + "".join(parts) + ")")
    >>> for letter in "abcdefghij":
    ...     tree.add(letter)
    >>> tree.root()
    '((abcdefgh)(ij))'
    """

    def __init__(self, engine: Engine, function: Callable[[Iterable[Any]], Any]) -> None:
        self._engine, self._function = engine, function
        self._levels: list[list[Handle]] = []

    def add(self, state: Handle, level: int = 0) -> None:
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(state)
        if len(self._levels[level]) == _FAN_IN:
            full, self._levels[level] = self._levels[level], []
            self.add(self._engine.combine(self._function, full), level + 1)

    def root(self) -> Any:
        """The state of all, waited for; None where there was none."""
        level = 0
        while level < len(self._levels):
            rest, self._levels[level] = self._levels[level], []
            if level + 1 == len(self._levels) and len(rest) == 1:
                return self._engine.value(rest[0])
            if rest:
                self.add(rest[0] if len(rest) == 1 else self._engine.combine(self._function, rest), level + 1)
            level += 1
        return None
