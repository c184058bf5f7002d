"""The methods that can be compared, and complete recipes: literal tables, and the types that they are made of."""

from counterpoise.recipes.methods import METHODS, Method

__all__ = ["METHODS", "Method"]
