"""`counterpoise recipes`: what can be trained by name."""

from dataclasses import dataclass

from counterpoise.recipes.catalog import RECIPES


@dataclass(frozen=True)
class Recipes:
    """List the recipes, one line each."""

    def run(self) -> None:
        for name, named in RECIPES.items():
            print(f"{name:24} {named.title}")
