"""The methods that can be compared, and complete recipes: literal tables, and the types that they are made of."""

from counterpoise.recipes.catalog import RECIPES, NamedRecipe
from counterpoise.recipes.config import (
    DataOptions,
    EngineOptions,
    EvaluationOptions,
    OptimizerOptions,
    PruningOptions,
    Recipe,
)
from counterpoise.recipes.methods import METHODS, Method
from counterpoise.recipes.ranges import Range, with_values
from counterpoise.recipes.savings import SavingOptions

__all__ = [
    "METHODS",
    "RECIPES",
    "DataOptions",
    "EngineOptions",
    "EvaluationOptions",
    "Method",
    "NamedRecipe",
    "OptimizerOptions",
    "PruningOptions",
    "Range",
    "Recipe",
    "SavingOptions",
    "with_values",
]
