"""Documents of earlier versions, as the newest has them."""

from typing import Any


def to_version_2(document: dict[str, Any]) -> dict[str, Any]:
    """The fields of a recipe of version 1 as version 2 has them, with the rules of that time.

    They are those of initial weights, and of the validation rows of a stream.
    """
    names = {"held_out": "validation"}
    data = {names.get(name, name): value for name, value in document.get("data", {}).items()}
    if data.get("pipeline") == "stream":
        data["validation_rows"] = "shuffled"
    return document | {"initial_weights": "by-count", "data": data}


def recipe_to_version_2(document: dict[str, Any]) -> dict[str, Any]:
    """A document with a field `recipe` of version 1, with one of version 2."""
    return document | {"recipe": to_version_2(document["recipe"])}
