"""Frozen dataclasses as strict JSON documents, and back, every value checked against its annotation.

A document of an earlier version reads: fields that it does not have take their defaults, and what has changed goes
through a function for each version. So a new field needs a default, and nothing else.

NaN is null where a number must be; infinities are the strings "inf" and "-inf".

A document carries the SHA-256 of its own content, which every reader verifies; one of an earlier release, which has
none, reads as it is.
"""

import hashlib
import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from counterpoise._addresses import read_text

T = TypeVar("T")

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
"""From the fields of a document of one version to those of the next."""


DIGEST = "sha256"
"""The field that holds the SHA-256 of all others."""

CHANGED = "its content is not what was written: its SHA-256 is another; restore it"


def to_document(value: Any, *, schema: str, version: int, indent: int | None = 1, sealed: bool = True) -> str:
    """JSON of a dataclass, with its schema and version in front, its digest last; on one line without an `indent`.

    A document that people edit, or that another file vouches for, is not `sealed`: it has no digest.
    """
    document = {"schema": schema, "schema_version": version} | _plain(value)
    return json.dumps(with_digest(document) if sealed else document, allow_nan=False, indent=indent)


def with_digest(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with the SHA-256 of its content."""
    return {**document, DIGEST: content_hash(document).hexdigest()}


def content_hash(content: Any) -> Any:
    """SHA-256, to be gone on with, of what JSON says, in whatever order and layout it does.

    >>> content_hash({"a": 1, "b": 2}).hexdigest() == content_hash({"b": 2, "a": 1}).hexdigest()
    True
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode())


def is_changed(document: Mapping[str, Any]) -> bool | None:
    """Whether a document is not what was written; None where it has no digest."""
    if DIGEST not in document:
        return None
    content = {name: value for name, value in document.items() if name != DIGEST}
    return bool(content_hash(content).hexdigest() != document[DIGEST])


def from_document(
    kind: type[T],
    text: str,
    *,
    schema: str,
    version: int,
    upgrades: Mapping[int, Upgrade] | None = None,
    sealed: bool = True,
) -> T:
    """The dataclass that `to_document` wrote; anything else is a `ValueError` that names the place.

    Args:
        kind: of the dataclass.
        text: the document.
        schema: that the document must state.
        version: that is written now.
        upgrades: for each earlier version that is read, what makes a document of the next one of it.
        sealed: False for documents that have no digest, and a field of that name.
    """
    title, upgrades = schema.rsplit(".", maxsplit=1)[-1], upgrades or {}
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    changed = sealed and isinstance(document, dict) and is_changed(document)
    if sealed and isinstance(document, dict):
        document.pop(DIGEST, None)
    if not isinstance(document, dict) or document.pop("schema", None) != schema:
        raise ValueError(f"not a {title} document: its 'schema' is not {schema!r}")
    found = document.pop("schema_version", None)
    if type(found) is not int or found not in (*upgrades, version):
        readable = " and ".join(map(str, sorted({*upgrades, version})))
        raise ValueError(f"{title} have schema version {found!r}, this release reads {readable}")
    for step in range(found, version):
        try:
            document = upgrades[step](document)
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"{title} of version {step} is incomplete or malformed") from None
    result: T = _typed(kind, document, title)
    # Last, because what is wrong with a field says more.
    if changed:
        raise ValueError(f"{CHANGED}, or remove its field {DIGEST!r} if the change was meant")
    return result


def read_document(kind: type[T], path: str | Path, *, schema: str, version: int) -> T:
    """The dataclass in a file of `to_document`'s; anything else is a `ValueError` that names the file and the place."""
    try:
        return from_document(kind, read_text(Path(path)), schema=schema, version=version)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON")


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _typed(kind: Any, value: Any, place: str) -> Any:
    """`value` as `kind`: a dataclass, list, dict, `tuple[X, ...]`, union, literal or plain type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return None
        inner = [argument for argument in arguments if argument is not types.NoneType]
        return _typed(next((option for option in inner if option is type(value)), inner[0]), value, place)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{place} holds {value!r}; it is one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        return tuple(_typed(list[arguments[0]], value, place))  # type: ignore[valid-type]
    if is_dataclass(kind):
        return _dataclass(kind, value, place)
    if origin is list:
        items = _instance(list, value, place)
        if arguments[0] in (int, float) and all(type(item) is arguments[0] for item in items):
            return items
        return [_typed(arguments[0], item, f"{place}[{index}]") for index, item in enumerate(items)]
    if origin is dict:
        items = _instance(dict, value, place)
        return {_typed(arguments[0], k, place): _typed(arguments[1], v, f"{place}.{k}") for k, v in items.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in list(kind):
            raise ValueError(f"{place} holds {value!r}, which is no {kind.__name__}")
        return kind(value)
    if kind is float:
        if value is None or value in ("inf", "-inf"):
            return math.nan if value is None else float(value)
        try:
            return float(_instance((int, float), value, place))
        except OverflowError:
            raise ValueError(f"{place} is a number too large for a float") from None
    return _instance(kind, value, place)


def _dataclass(kind: Any, value: Any, place: str) -> Any:
    items = _instance(dict, value, place)
    known = {field.name: field for field in fields(kind)}
    needed = {name for name, each in known.items() if each.default is MISSING and each.default_factory is MISSING}
    if wrong := sorted((needed - items.keys()) | (items.keys() - known.keys())):
        raise ValueError(f"{place} is incomplete or malformed: {', '.join(wrong)} missing or not known")
    hints = _hints(kind)
    return kind(**{name: _typed(hints[name], item, f"{place}.{name}") for name, item in items.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Annotations as types: to evaluate them takes longer than to read a small document."""
    return get_type_hints(kind)


def _instance(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{place} is incomplete or malformed: it is a {type(value).__name__}")
    return value
