"""The `counterpoise` command: one thin module for each subcommand."""

import os
import sys
from typing import Annotated

import tyro

from counterpoise._text import printable
from counterpoise.cli.evaluate import Evaluate
from counterpoise.cli.info import Info
from counterpoise.cli.methods import Methods

EXIT_OK, EXIT_ERROR = 0, 1
"""Exit codes; 2 is a command line that cannot be parsed."""

Command = (
    Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Methods, tyro.conf.subcommand("methods")]
)


def main() -> None:
    """Parse the command line and run the subcommand; an error is one line on standard error."""
    command = tyro.cli(Command, prog="counterpoise", description="Classifiers that know what they don't know.")
    try:
        command.run()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output, such as `head`, has seen enough; what is left must not fail at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, ImportError, OSError) as error:
        print(f"counterpoise: {printable(str(error))}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    sys.exit(EXIT_OK)
