"""The `counterpoise` command: one thin module for each subcommand, loaded when it is asked for."""

import sys
from importlib import import_module
from typing import Any

from counterpoise import __version__
from counterpoise.cli.program import EXIT_OK, EXIT_USAGE, Runnable, run_program

COMMANDS = {
    "train": "train on your images or by a recipe, then score and draw a report",
    "resume": "continue an interrupted run",
    "tune": "search for the best hyper-parameters on validation images",
    "predict": "write what a trained model says about a data set",
    "export": "write a trained model to deploy or to share",
    "evaluate": "measure how far predictions can be trusted; compare models",
    "check": "decide whether a model meets requirements, for CI",
    "monitor": "follow a stream of predictions, and alarm when it changes",
    "verify": "say whether files are what was written, by their digests",
    "recipes": "list the recipes",
    "methods": "list the training methods and their hyper-parameters",
    "info": "print versions and devices; check that counterpoise works",
}
"""Each is the class of its name, with a capital, in the module of its name."""

FROM_RECIPE = ("train", "tune")
"""Commands whose options have the defaults of the recipe that they name."""


def main() -> None:
    """Parse the command line and run the subcommand."""
    run_program("counterpoise", __version__, parse)


def parse(arguments: list[str]) -> Runnable:
    """The command that the arguments ask for; a command that names a recipe has the recipe's defaults."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name in ("-h", "--help"):
        print(_help())
        sys.exit(EXIT_OK)
    if name == "bench":
        raise ValueError("`bench` is the command `counterpoise-study` now: `pip install counterpoise-study`")
    if name not in COMMANDS:
        print(f"counterpoise: {_not_a_command(name)}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    kind: Any = getattr(import_module(f"counterpoise.cli.{name}"), name.capitalize())
    if not rest and _needs_nothing(kind):
        return kind()  # type: ignore[no-any-return]
    import tyro

    named = None
    if name in FROM_RECIPE:
        from counterpoise.cli.recipe_arguments import started_with, with_values_apart

        named = started_with(rest, command=name)
        rest = with_values_apart(rest)
    default = {} if named is None else {"default": kind(named[0], config=named[1])}
    return tyro.cli(kind, args=rest, prog=f"counterpoise {name}", **default)  # type: ignore[no-any-return]


def _needs_nothing(kind: Any) -> bool:
    """Whether every option has a default: a command line without arguments then needs no parser."""
    from dataclasses import MISSING, fields

    return all((field.default, field.default_factory) != (MISSING, MISSING) for field in fields(kind))


def _help() -> str:
    listed = "\n".join(f"  {name:10}{summary}" for name, summary in COMMANDS.items())
    return f"""usage: counterpoise COMMAND ...

Classifiers that know what they don't know.

commands:
{listed}

`counterpoise COMMAND --help` describes a command and its options.
`counterpoise --version` prints the version."""


def _not_a_command(name: str) -> str:
    if not name:
        return f"name a command, one of {', '.join(COMMANDS)}; `counterpoise --help` describes them"
    import difflib

    what = f"there is no {'option' if name.startswith('-') else 'command'} {name!r}"
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"{what}; {f'did you mean {close[0]}? ' if close else ''}`counterpoise --help` lists the commands"
