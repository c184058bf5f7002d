"""The `counterpoise` command: one thin module for each subcommand."""

import io
import os
import sys
from typing import Annotated

import torch
import tyro

from counterpoise import __version__
from counterpoise._text import printable
from counterpoise.cli.bench import Bench, BenchCommand
from counterpoise.cli.doctor import Doctor
from counterpoise.cli.evaluate import Evaluate
from counterpoise.cli.export import Export
from counterpoise.cli.info import Info
from counterpoise.cli.methods import Methods
from counterpoise.cli.predict import Predict
from counterpoise.cli.recipe_arguments import named_recipe, with_values_apart
from counterpoise.cli.recipes import Recipes
from counterpoise.cli.resume import Resume
from counterpoise.cli.train import Train
from counterpoise.cli.tune import Tune

EXIT_OK, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_UNREAD = 0, 1, 130, 141
"""Exit codes; 2 is a command line that cannot be parsed, 141 what a shell gives a program that nobody reads."""

FROM_RECIPE: dict[str, type[Train | Tune]] = {"train": Train, "tune": Tune}
"""Commands whose options have the defaults of the recipe that they name."""

Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Tune, tyro.conf.subcommand("tune")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Recipes, tyro.conf.subcommand("recipes")]
    | Annotated[Methods, tyro.conf.subcommand("methods")]
    | Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


def main() -> None:
    """Parse the command line and run the subcommand; an error is one line on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name may hold what the terminal's encoding has not, and must not cost the result.
        sys.stdout.reconfigure(errors="replace")
    if sys.argv[1:] == ["--version"]:
        print(f"counterpoise {__version__}")
        sys.exit(EXIT_OK)
    try:
        parse(sys.argv[1:]).run()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output, such as `head`, has seen enough; what is left must not fail at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_UNREAD)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except torch.OutOfMemoryError as error:
        advice = "a smaller batch (of training --batch, of predictions --evaluation.batch) needs less"
        print(f"counterpoise: {printable(str(error).splitlines()[0])}; {advice}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    except (ValueError, ArithmeticError, ImportError, OSError) as error:
        print(f"counterpoise: {printable(str(error))}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    sys.exit(EXIT_OK)


def parse(arguments: list[str]) -> "Command | BenchCommand":
    """The command that the arguments ask for; a command that names a recipe has the recipe's defaults."""
    if arguments[:1] == ["bench"]:
        return tyro.cli(BenchCommand, args=arguments[1:], prog="counterpoise bench", description=Bench.__doc__)
    kind = FROM_RECIPE.get(arguments[0]) if arguments else None
    named = named_recipe(arguments[0], arguments[1:]) if kind is not None else None
    if kind is None or named is None:
        return tyro.cli(
            Command,
            args=arguments,
            prog="counterpoise",
            description="Classifiers that know what they don't know. `--version` prints the version.",
        )
    name, recipe = named
    return tyro.cli(
        kind,
        default=kind(recipe=name, config=recipe),
        args=with_values_apart(arguments[1:]),
        prog=f"counterpoise {arguments[0]}",
    )
