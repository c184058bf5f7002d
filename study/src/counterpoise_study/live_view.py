"""What is seen of a grid while it runs: a display that is redrawn on a terminal, a line for each cell elsewhere."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from counterpoise._text import printable
from counterpoise_study.requests import Request
from counterpoise_study.status import Counts, Status, left_text, span, status_of, trouble_text
from counterpoise_study.store import Store
from counterpoise_study.work import Ended

_PAUSE = 1.0
_IDLE = 25
"""So many times as long as a look takes, none is taken."""

_WIDTH = 90
"""Most columns, so that the eye keeps to the line on a wide terminal."""

_FINISHED, _TROUBLES, _RUNNING = 3, 3, 8
"""Most lines of each."""


class LiveView:
    """Shows how far a store is while the block runs; it reads the store, and never disturbs the run.

    Args:
        store: that is worked on.
        requests: whose cells are shown.
        console: where to show them; by default standard error.
    """

    def __init__(self, store: Store, requests: Sequence[Request], *, console: Console | None = None) -> None:
        # A store of its own, because it is read in a thread of its own.
        self._store, self._requests = Store(store.path), requests
        self._console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._status: Status | None = None
        self._due = 0.0
        self._ended_since = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "LiveView":
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._thread = threading.Thread(target=self._redraw, args=(self._live,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._live is not None:
            with suppress(Exception):
                self._live.stop()

    def watch(self, ended: Ended) -> None:
        """Say how an attempt ended, where there is no display; nothing of one that another process made."""
        if self._live is not None or ended.end == "skipped":
            return
        self._ended_since += ended.end == "committed"
        if time.monotonic() >= self._due:
            with suppress(Exception), self._rarely():
                self._status, self._ended_since = status_of(self._store, self._requests), 0
        with suppress(Exception):
            self._console.print(Text(ended_text(ended, self._status, ended_since=self._ended_since)), soft_wrap=True)

    def tick(self) -> None:
        """Say how far all is, where there is no display and more was done since it was last said."""
        if self._live is not None or time.monotonic() < self._due:
            return
        before = self._status
        with suppress(Exception), self._rarely():
            self._status = status_of(self._store, self._requests)
        if self._status is not None and (before is None or self._status.total != before.total):
            counts = self._status.total
            with suppress(Exception):
                self._console.print(Text(f"[{counts.done}/{counts.cells}] {left_text(self._status)}"), soft_wrap=True)

    def _redraw(self, live: Live) -> None:
        while not self._stop.is_set():
            with suppress(Exception), self._rarely():
                live.update(render(status_of(self._store, self._requests)), refresh=True)
            self._stop.wait(max(0.0, self._due - time.monotonic()))

    @contextmanager
    def _rarely(self) -> Iterator[None]:
        """Do what the block does not again until it is but a small part of the time."""
        started = time.thread_time()
        try:
            yield
        finally:
            self._due = time.monotonic() + max(_PAUSE, _IDLE * (time.thread_time() - started))


def ended_text(ended: Ended, status: Status | None, *, ended_since: int = 0) -> str:
    """How an attempt ended, in one line; `ended_since` cells were committed after the status was taken, if it was."""
    if status is None:
        return printable(f"{ended.task.name}: {ended.end} in {ended.seconds:.1f} s {ended.reason}".rstrip())
    counts = status.total
    done = min(counts.cells, counts.done + ended_since)
    place = f"[{done}/{counts.cells}] {ended.task.name}"
    if ended.end == "failed":
        return printable(f"{place}: failed after {ended.seconds:.1f} s: {ended.reason}")
    left = f" (about {span(status.seconds_left)} left)" if status.seconds_left and done < counts.cells else ""
    return printable(f"{place}: committed in {ended.seconds:.1f} s{left}")


def render(status: Status) -> RenderableType:
    """The display: how far all is, what runs, what was finished or failed, and every study."""
    parts: list[RenderableType] = [_bar(status)]
    if status.running:
        parts += [Text(), _running(status)]
    if status.finished:
        parts += [Text(), _finished(status)]
    if status.troubles:
        parts += [Text(), Text("failed", style="bold")]
        parts += [
            Text(trouble_text(each), style="red", no_wrap=True, overflow="ellipsis")
            for each in status.troubles[:_TROUBLES]
        ]
        if len(status.troubles) > _TROUBLES:
            parts.append(Text(f"and {len(status.troubles) - _TROUBLES} more", style="red"))
    return Constrain(Group(*parts, Text(), _studies(status)), _WIDTH)


def _bar(status: Status) -> Table:
    counts = status.total
    grid = Table.grid(padding=(0, 1))
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    over = counts.done + counts.failed
    text = Text(f"{counts.done}/{counts.cells} cells, {left_text(status)}")
    grid.add_row(ProgressBar(total=max(1, counts.cells), completed=over, width=24), text)
    return grid


def _running(status: Status) -> Table:
    grid = _grid("running", "epoch", "for")
    for each in status.running[:_RUNNING]:
        stage = f"{each.epoch + 1}/{each.epochs}" if each.epoch < each.epochs else "predicts"
        grid.add_row(Text(each.name), stage, span(each.seconds))
    if len(status.running) > _RUNNING:
        grid.add_row(Text(f"and {len(status.running) - _RUNNING} more"))
    return grid


def _finished(status: Status) -> Table:
    shown = status.finished[:_FINISHED]
    metrics = list(shown[0].metrics)
    grid = _grid("finished", "took", *metrics)
    for each in shown:
        values = (f"{each.metrics[name]:.3f}" if name in each.metrics else "" for name in metrics)
        grid.add_row(Text(each.name), span(each.seconds), *values)
    return grid


def _studies(status: Status) -> Table:
    grid = _grid("study", "done", "running", "failed", "left")
    for each in status.studies:
        style = "dim" if each.done == each.cells else ""
        grid.add_row(Text(each.title), *_row(each), style=style)
    return grid


def _row(counts: Counts) -> tuple[str, ...]:
    left = counts.waiting + counts.undecided
    return f"{counts.done}/{counts.cells}", *(
        str(count) if count else "" for count in (counts.running, counts.failed, left)
    )


def _grid(first: str, *others: str) -> Table:
    """Columns without lines: the first takes what room there is."""
    grid = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    grid.add_column(first, ratio=1, no_wrap=True, overflow="ellipsis")
    for name in others:
        grid.add_column(name, justify="right", no_wrap=True)
    return grid
