"""Commands that start from a recipe: `counterpoise COMMAND RECIPE [--any.field value]`."""

import difflib
from collections.abc import Sequence
from typing import Annotated

import tyro

from counterpoise.recipes.catalog import RECIPES
from counterpoise.recipes.config import Recipe

RecipeName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE", help_behavior_hint="")]
RecipeFields = Annotated[Recipe, tyro.conf.arg(name="")]


def with_values_apart(arguments: Sequence[str]) -> list[str]:
    """Hyper-parameters as the parser takes them, `--hyper NAME VALUE ...`, from `--hyper NAME=VALUE ...` too.

    >>> with_values_apart(["digits", "--hyper", "alpha=0.6", "alpha_warmup", "0.3", "--out", "a=b"])
    ['digits', '--hyper', 'alpha', '0.6', 'alpha_warmup', '0.3', '--out', 'a=b']
    """
    found, option = list[str](), ""
    for argument in arguments:
        option = argument if argument.startswith("--") else option
        found += argument.split("=", 1) if option == "--hyper" and argument != option else [argument]
    return found


def named_recipe(command: str, arguments: Sequence[str]) -> tuple[str, Recipe] | None:
    """The recipe that the arguments of a command begin with; None where they ask for help, or there are none."""
    if not arguments:
        return None
    if arguments[0].startswith("-"):
        if {"-h", "--help"} & set(arguments):
            return None
        # Options have the defaults of the recipe, so it must be known before them.
        raise ValueError(f"the recipe comes first: counterpoise {command} RECIPE {arguments[0]} ...")
    name = arguments[0]
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"there is no recipe {name!r}; {hint}`counterpoise recipes` lists them")
    return name, RECIPES[name].recipe()
