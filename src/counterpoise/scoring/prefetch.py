"""Reading ahead: the next batches are decoded while the last one is measured."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")
_DEPTH = 2


def read_ahead(items: Iterator[T], *, depth: int = _DEPTH) -> Iterator[T]:
    """The same items, at most `depth` of them produced ahead by a thread; its exception is raised here.

    >>> list(read_ahead(iter(range(5))))
    [0, 1, 2, 3, 4]
    """
    results: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not stopped.is_set():
            try:
                results.put((item, error), timeout=0.1)
            except queue.Full:
                continue
            return

    def produce() -> None:
        try:
            for item in items:
                put(item, None)
                if stopped.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=produce, name="counterpoise-reader", daemon=True)
    thread.start()
    try:
        while True:
            item, error = results.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()
