"""Lines about a run on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

_is_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def is_quiet() -> bool:
    """Whether nothing of a run is to be shown."""
    return _is_quiet.get()


def say(text: str) -> None:
    """A line on standard error, at once; a run goes on where nobody reads it any more."""
    if not is_quiet():
        with suppress(BrokenPipeError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


@contextmanager
def quiet() -> Iterator[None]:
    """Show nothing of the runs in this block: whoever runs many has a view of all of them."""
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)
