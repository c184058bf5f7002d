"""Commands that start from a recipe: `counterpoise COMMAND RECIPE [--any.field value]`."""

import difflib
from collections.abc import Sequence
from typing import Annotated, TypeVar

import tyro

from counterpoise.recipes.config import Recipe
from counterpoise.recipes.table import RECIPES

RecipeName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE", help_behavior_hint="")]
RecipeFields = Annotated[Recipe, tyro.conf.arg(name="")]

Command = TypeVar("Command")


def named_recipe(arguments: Sequence[str]) -> tuple[str, Recipe] | None:
    """The recipe that a command line begins with; None where it asks for help or names none."""
    if not arguments or arguments[0].startswith("-"):
        return None
    name = arguments[0]
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"there is no recipe {name!r}; {hint}`counterpoise recipes` lists them")
    return name, RECIPES[name].recipe()
