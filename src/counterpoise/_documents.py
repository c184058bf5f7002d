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
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from counterpoise._addresses import as_path, read_text
from counterpoise._json import parsed

T = TypeVar("T")

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
"""From the fields of a document of one version to those of the next."""

Reader = Callable[[Any], Any]
"""From a value of JSON to that of an annotation."""

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
        document = parsed(text, parse_constant=_refuse_constant)
    except ValueError as error:
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
    try:
        result: T = _reader(cast(Hashable, kind))(document)
    except _MisfitError as misfit:
        raise ValueError(f"{title}{misfit}") from None
    # Last, because what is wrong with a field says more.
    if changed:
        raise ValueError(f"{CHANGED}, or remove its field {DIGEST!r} if the change was meant")
    return result


def read_document(kind: type[T], path: str | Path, *, schema: str, version: int) -> T:
    """The dataclass in a file of `to_document`'s; anything else is a `ValueError` that names the file and the place."""
    try:
        return from_document(kind, read_text(as_path(path)), schema=schema, version=version)
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


class _MisfitError(ValueError):
    """What is wrong with a value, with its place in the document put in front on the way up."""


@cache
def _reader(kind: Any) -> Reader:
    """What reads a dataclass, list, dict, `tuple[X, ...]`, union, literal or plain type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _reader_of_union(arguments)
    if origin is Literal:
        return partial(_one_of, arguments)
    if origin in (list, tuple):
        read = partial(_items, arguments[0])
        return read if origin is list else lambda value: tuple(read(value))
    if origin is dict:
        return partial(_entries, *map(_reader, arguments))
    if is_dataclass(kind):
        return _reader_of_dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return partial(_member, kind)
    return _number if kind is float else partial(_instance, kind)


def _reader_of_union(kinds: tuple[Any, ...]) -> Reader:
    readers = {kind: _reader(kind) for kind in kinds if kind is not types.NoneType}
    first = next(iter(readers.values()))

    def read(value: Any) -> Any:
        return None if value is None and types.NoneType in kinds else readers.get(type(value), first)(value)

    return read


def _reader_of_dataclass(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    needed = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}

    def read(value: Any) -> Any:
        items = _instance(dict, value)
        if wrong := sorted((needed - items.keys()) | (items.keys() - readers.keys())):
            raise _MisfitError(f" is incomplete or malformed: {', '.join(wrong)} missing or not known")
        found, name = {}, ""
        try:
            for name, item in items.items():
                found[name] = readers[name](item)
        except _MisfitError as misfit:
            raise _MisfitError(f".{name}{misfit}") from None
        return kind(**found)

    return read


def _one_of(values: tuple[Any, ...], value: Any) -> Any:
    if value not in values:
        raise _MisfitError(f" holds {value!r}; it is one of {', '.join(map(repr, values))}")
    return value


def _items(kind: Any, value: Any) -> list[Any]:
    items = _instance(list, value)
    if kind in (int, float) and all(type(item) is kind for item in items):
        return list(items)
    read, found = _reader(kind), list[Any]()
    try:
        for item in items:
            found.append(read(item))
    except _MisfitError as misfit:
        raise _MisfitError(f"[{len(found)}]{misfit}") from None
    return found


def _entries(key: Reader, read: Reader, value: Any) -> dict[Any, Any]:
    items, found, name = _instance(dict, value), {}, ""
    try:
        for name, item in items.items():
            found[key(name)] = read(item)
    except _MisfitError as misfit:
        raise _MisfitError(f".{name}{misfit}") from None
    return found


def _member(kind: type[StrEnum], value: Any) -> StrEnum:
    if value not in list(kind):
        raise _MisfitError(f" holds {value!r}, which is no {kind.__name__}")
    return kind(value)


def _number(value: Any) -> float:
    if value is None or value in ("inf", "-inf"):
        return math.nan if value is None else float(value)
    try:
        return float(_instance((int, float), value))
    except OverflowError:
        raise _MisfitError(" is a number too large for a float") from None


def _instance(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _MisfitError(f" is incomplete or malformed: it is a {type(value).__name__}")
    return value
