"""Which experiment a configuration is: a digest of the fields that can change a result.

A field that has the value it was introduced with is left out, so that a new field, with its default, changes no digest
of what was run before it. Hence a default may change only together with `first_value`, which keeps the old one in the
field's metadata; `tests/golden/recipe-first-values.json` holds them all.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

CHANGES_NO_RESULT: Mapping[str, Any] = {"changes_result": False}
"""Metadata of a field that decides what is written, shown or saved on the way, and no result."""


def first_value(value: Any) -> Mapping[str, Any]:
    """Metadata of a field whose default is another than the one that it was introduced with."""
    return {"first_value": value}


def first_name(name: str) -> Mapping[str, Any]:
    """Metadata of a field that was introduced under another name, which digests go on with."""
    return {"first_name": name}


def identity(config: Any) -> dict[str, Any]:
    """The fields of a dataclass, and of those in it, that make it another experiment than its first defaults.

    >>> from counterpoise.recipes.config import EngineOptions
    >>> identity(EngineOptions(precision="bfloat16", checkpoint_epochs=7, loggers=("wandb",)))
    {'precision': 'bfloat16'}
    """
    found: dict[str, Any] = {}
    for each in fields(config):
        if not each.metadata.get("changes_result", True):
            continue
        value = getattr(config, each.name)
        if is_dataclass(value):
            value, first = identity(value), {}
        else:
            first = _first(each)
        if value != first:
            found[_first_name(each)] = value
    return found


def config_digest(config: Any) -> str:
    """SHA-256 of the identity.

    >>> from counterpoise.recipes.config import Recipe
    >>> config_digest(Recipe(seed=1)) == config_digest(Recipe(seed=1)) != config_digest(Recipe())
    True
    """
    return hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()


def _first(each: "Field[Any]") -> Any:
    if "first_value" in each.metadata:
        return each.metadata["first_value"]
    return each.default if each.default_factory is MISSING else each.default_factory()


def _first_name(each: "Field[Any]") -> str:
    return str(each.metadata.get("first_name", each.name))
