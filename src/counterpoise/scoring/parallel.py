"""Work on several batches at a time, with results in the order of the batches."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ordered_map(function: Callable[[T], R], items: Iterable[T], *, threads: int) -> Iterator[R]:
    """`map(function, items)`, computed by some threads while the items after them are produced here.

    At most `threads + 1` items are held at a time. An exception of the function or of the items ends it.

    >>> list(ordered_map(lambda number: number**2, range(5), threads=2))
    [0, 1, 4, 9, 16]
    """
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="counterpoise") as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
