"""Commands that start from a recipe, or from images: `counterpoise COMMAND RECIPE [--any.field value]`."""

import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro

from counterpoise.recipes.catalog import RECIPES
from counterpoise.recipes.config import Recipe

StartName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE|PATH", help_behavior_hint="")]
RecipeFields = Annotated[Recipe, tyro.conf.arg(name="")]

DEFAULT_FOR_PATHS = "finetune"
_SEPARATORS = {".", "/", os.sep}


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


def started_with(arguments: Sequence[str], *, command: str = "train") -> tuple[str, Recipe] | None:
    """What a training starts with: a recipe, or images of one's own and the recipe that `--recipe` names.

    None if the arguments ask for help, or there are none.
    """
    helped = bool({"-h", "--help"} & set(arguments))
    if not arguments:
        return None
    first, chosen = arguments[0], _value_of("--recipe", arguments)
    if first.startswith("-"):
        if helped:
            return None
        # Options have the defaults of the recipe, so it must be known before them.
        raise ValueError(f"the recipe comes first: counterpoise {command} RECIPE {first} ...")
    if first == DEFAULT_FOR_PATHS and chosen is None and _value_of("--data.name", arguments) is None and not helped:
        raise ValueError(f"{first} is for images of your own: counterpoise {command} PATH")
    return first, starting_recipe(first, chosen)


def starting_recipe(start: str, chosen: str | None = None) -> Recipe:
    """The recipe called so, or for images of one's own the chosen one."""
    if chosen is None and (start in RECIPES or not is_path(start)):
        return recipe_called(start)
    recipe = recipe_called(chosen or DEFAULT_FOR_PATHS)
    # Folders are stored class by class: the first images would be of the first classes.
    return replace(recipe, data=replace(recipe.data, name=start, spread=True))


def recipe_called(name: str) -> Recipe:
    """The recipe of a name."""
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        what = f"there is no recipe {name!r}" + (", and no such file or folder" if _SEPARATORS & set(name) else "")
        raise ValueError(f"{what}; {hint}`counterpoise recipes` lists them")
    return RECIPES[name].recipe()


@contextmanager
def table_questions() -> Iterator[None]:
    """Ask with complete commands which column of a table of images is meant."""
    from counterpoise.data.tables import AmbiguousTableError

    try:
        yield
    except AmbiguousTableError as question:
        raise ValueError(question.as_commands(sys.argv[1:])) from None


def is_path(name: str) -> bool:
    """Whether there is such a file or folder, perhaps with a choice of columns behind a question mark."""
    return any(Path(each).expanduser().exists() for each in (name, name.rpartition("?")[0]) if each)


def name_of(path: str) -> str:
    """What a run on somebody's own images is called.

    >>> name_of("photos/"), name_of("tables/birds.csv?label=species")
    ('photos', 'birds')
    """
    from counterpoise.data.tables import parts_of

    place = Path(parts_of(path)[0]).expanduser().resolve()
    return place.stem if place.is_file() or place.suffix in (".csv", ".tsv", ".parquet") else place.name


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    for place, argument in enumerate(arguments):
        if argument == option and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None
