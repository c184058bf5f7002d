"""What a command-line program of ours does around its commands: output, errors, exit codes."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol

from counterpoise._text import printable

EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_UNREAD = 0, 1, 2, 130, 141
"""Exit codes; 2 is a mistake that the command line alone tells, 141 what a shell gives a program that nobody reads."""


class UsageError(ValueError):
    """No file and no machine would make this command line right."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Where a command looks at its arguments alone: what it refuses there is a `UsageError`."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


class Runnable(Protocol):
    """A parsed command."""

    def run(self) -> None:
        """Do it."""


def run_program(name: str, version: str, parse: Callable[[list[str]], Runnable]) -> NoReturn:
    """Parse the command line, run the command and exit; an error is one line on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name may hold what the terminal's encoding has not, and must not cost the result.
        sys.stdout.reconfigure(errors="replace")
    if sys.argv[1:] == ["--version"]:
        print(f"{name} {version}")
        sys.exit(EXIT_OK)
    try:
        with usage_errors():
            command = parse(sys.argv[1:])
        command.run()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output, such as `head`, has seen enough; what is left must not fail at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_UNREAD)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except RuntimeError as error:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(error, torch.OutOfMemoryError):
            raise
        advice = "a smaller batch (of training --batch, of predictions --evaluation.batch) needs less"
        _say(name, f"{str(error).splitlines()[0]}; {advice}")
        sys.exit(EXIT_ERROR)
    except UsageError as error:
        _say(name, str(error))
        sys.exit(EXIT_USAGE)
    except (ValueError, ArithmeticError, ImportError, OSError) as error:
        _say(name, str(error))
        sys.exit(EXIT_ERROR)
    sys.exit(EXIT_OK)


def _say(name: str, message: str) -> None:
    print(f"{name}: " + "\n".join(map(printable, message.split("\n"))), file=sys.stderr)
