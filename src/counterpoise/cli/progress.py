"""Progress on standard error, for whatever takes longer than a second."""

import shutil
import sys
import time
from contextlib import suppress

from counterpoise._text import printable, shown

_PATIENCE = 1.0
_TERMINAL_PAUSE, _LOG_PAUSE = 0.2, 5.0


class ProgressLine:
    """One line that is rewritten on a terminal, and written now and then to a log."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._written = False

    def rows(self, name: str, done: int, total: int | None) -> None:
        """Rows of a file that are done, of all where that is known."""
        share = f"{done:,} rows" if total is None else f"{done:,} of {total:,} rows, {done / max(1, total):.0%}"
        self.say(f"{name}: {share}")

    def say(self, text: str, *, at_once: bool = False) -> None:
        """Show the text, unless the work is young or the last text is; `at_once` for what is known to take long."""
        now = time.monotonic()
        pause = _TERMINAL_PAUSE if self._is_terminal else _LOG_PAUSE
        if not at_once and (now - self._started < _PATIENCE or (self._written and now - self._last < pause)):
            return
        self._last, self._written = now, True
        if self._is_terminal:  # a line that wraps would leave a row behind each time
            write(f"\r\x1b[K{shown(text, most=shutil.get_terminal_size().columns - 1)}")
        else:
            write(f"{printable(text)}\n")

    def clear(self) -> None:
        """Leave no trace on a terminal."""
        if self._written and self._is_terminal:
            write("\r\x1b[K")


def write(text: str) -> None:
    """On standard error; the work goes on where nobody reads it any more."""
    with suppress(BrokenPipeError):
        sys.stderr.write(text)
        sys.stderr.flush()
