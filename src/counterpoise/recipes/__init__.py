"""The methods that can be compared: a literal table."""

from counterpoise.recipes.methods import METHODS, Method

__all__ = ["METHODS", "Method"]
