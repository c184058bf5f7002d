"""The `counterpoise` command: one thin module for each subcommand."""

import sys
from typing import Annotated

import tyro

from counterpoise.cli.info import Info
from counterpoise.cli.methods import Methods

EXIT_OK, EXIT_ERROR = 0, 1
"""Exit codes; 2 is a command line that cannot be parsed."""

Command = Annotated[Info, tyro.conf.subcommand("info")] | Annotated[Methods, tyro.conf.subcommand("methods")]


def main() -> None:
    """Parse the command line and run the subcommand; an error is one line on standard error."""
    command = tyro.cli(Command, prog="counterpoise", description="Classifiers that know what they don't know.")
    try:
        command.run()
    except (ValueError, ImportError, OSError) as error:
        print(f"counterpoise: {error}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    sys.exit(EXIT_OK)
