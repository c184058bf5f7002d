"""The `counterpoise` command: one thin module for each subcommand."""

from typing import Annotated

import tyro

from counterpoise import __version__
from counterpoise.cli.doctor import Doctor
from counterpoise.cli.evaluate import Evaluate
from counterpoise.cli.export import Export
from counterpoise.cli.info import Info
from counterpoise.cli.methods import Methods
from counterpoise.cli.predict import Predict
from counterpoise.cli.program import run_program
from counterpoise.cli.recipe_arguments import named_recipe, with_values_apart
from counterpoise.cli.recipes import Recipes
from counterpoise.cli.resume import Resume
from counterpoise.cli.train import Train
from counterpoise.cli.tune import Tune

FROM_RECIPE: dict[str, type[Train | Tune]] = {"train": Train, "tune": Tune}
"""Commands whose options have the defaults of the recipe that they name."""

Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Tune, tyro.conf.subcommand("tune")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Recipes, tyro.conf.subcommand("recipes")]
    | Annotated[Methods, tyro.conf.subcommand("methods")]
    | Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


def main() -> None:
    """Parse the command line and run the subcommand."""
    run_program("counterpoise", __version__, parse)


def parse(arguments: list[str]) -> Command:
    """The command that the arguments ask for; a command that names a recipe has the recipe's defaults."""
    if arguments[:1] == ["bench"]:
        raise ValueError("`bench` is the command `counterpoise-study` now: `pip install counterpoise-study`")
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
