"""What a search varies: fields of a recipe by their dotted path, each between two values."""

import difflib
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

from counterpoise.recipes.config import Recipe
from counterpoise.recipes.methods import method_named

FORM = "FIELD=LOW:HIGH or FIELD=LOW:HIGH:log, such as hyper.alpha=0.4:1.2 or optimizer.lr=0.01:0.3:log"

LOG_RATIO = 10
"""Where the ends of a method's grid are so far apart, its range is searched on a logarithmic scale."""

_SIGNIFICANT = 4
_OTHER_IMAGES = "decides which images are held out, so that trials could not be compared"
_ONE_DEVICE = "stays 1: a trial runs on one device, and several processes share a search"
NOT_SEARCHED = {
    "seed": _OTHER_IMAGES,
    "data.validation": _OTHER_IMAGES,
    "data.test": _OTHER_IMAGES,
    "data.limit": _OTHER_IMAGES,
    "engine.devices": _ONE_DEVICE,
    "engine.auxiliary_devices": "stays 0: a trial runs on one device, and several processes share a search",
    "engine.nodes": _ONE_DEVICE,
}


@dataclass(frozen=True)
class Range:
    """The values of one field that a search may try.

    Attributes:
        path: of the field, such as `optimizer.lr`; `hyper.NAME` for a hyper-parameter.
        low: smallest value.
        high: largest value.
        log: whether ratios count rather than differences.
        integer: whether only whole numbers are tried.
    """

    path: str
    low: int | float
    high: int | float
    log: bool = False
    integer: bool = False

    def at(self, share: float) -> int | float:
        """The value at a share of the way from low to high.

        >>> Range("optimizer.lr", 0.01, 1.0, log=True).at(0.5)
        0.1
        """
        if self.log:
            return self.fitted(self.low * (self.high / self.low) ** share)
        return self.fitted(self.low + (self.high - self.low) * share)

    def fitted(self, value: float) -> int | float:
        """A value as a trial uses it: whole, or of four significant digits, so that it can be typed.

        >>> Range("hyper.alpha", 0.4, 1.2).fitted(0.837261)
        0.8373
        """
        if self.integer:
            return round(value)
        return min(max(float(f"{value:.{_SIGNIFICANT}g}"), self.low), self.high)


def parse_range(text: str, recipe: Recipe) -> Range:
    """A range as it is typed: `FIELD=LOW:HIGH` or `FIELD=LOW:HIGH:log`.

    >>> parse_range("hyper.alpha=0.4:1.2", Recipe())
    Range(path='hyper.alpha', low=0.4, high=1.2, log=False, integer=False)
    >>> parse_range("epochs=5:20:log", Recipe())
    Range(path='epochs', low=5, high=20, log=True, integer=True)
    >>> parse_range("alpha=0.4:1.2", Recipe())
    Traceback (most recent call last):
    ...
    ValueError: the recipe has no field 'alpha' to search; did you mean hyper.alpha?
    """
    path, _, limits = text.partition("=")
    ends, scale = limits.split(":")[:2], limits.split(":")[2:]
    if len(ends) != 2 or scale not in ([], ["log"]):
        raise ValueError(f"{text!r} is no range; write {FORM}")
    integer = _is_integer(recipe, path)
    low, high = (_number(end, integer=integer, where=text) for end in ends)
    found = Range(path, low, high, log=bool(scale), integer=integer)
    require_searchable(recipe, [found])
    return found


def default_ranges(recipe: Recipe) -> tuple[Range, ...]:
    """From the smallest to the largest value of the grid of each hyper-parameter that the recipe leaves open.

    A hyper-parameter whose grid has but one value stays as it is.

    >>> [(r.path, r.low, r.high, r.log) for r in default_ranges(Recipe(method="mte1"))]
    [('hyper.alpha', 0.4, 1.2, False)]
    >>> [(r.path, r.low, r.high, r.log) for r in default_ranges(Recipe(method="dca"))]
    [('hyper.beta', 0.5, 10.0, True)]
    """
    method = method_named(recipe.method)
    ranges = tuple(
        Range(f"hyper.{name}", min(grid), max(grid), log=0 < LOG_RATIO * min(grid) <= max(grid))
        for name, grid in method.grid.items()
        if len(grid) > 1 and name not in recipe.hyper
    )
    if not ranges:
        raise ValueError(f"{method.title} has no hyper-parameter left to search; name a field with --search {FORM}")
    return ranges


def require_searchable(recipe: Recipe, ranges: Sequence[Range]) -> None:
    """Refuse ranges that are none, that name what cannot be searched, or that reach what cannot be trained."""
    paths = [searched.path for searched in ranges]
    if len(set(paths)) < len(paths) or not paths:
        raise ValueError(f"a search needs ranges, one for each field; got {', '.join(paths) or 'none'}")
    for searched in ranges:
        low, high, path = searched.low, searched.high, searched.path
        if searched.integer != _is_integer(recipe, path):
            raise ValueError(f"{path} takes {'any' if searched.integer else 'whole'} numbers; the range says otherwise")
        if path == "optimizer.auxiliary_lr" and recipe.optimizer.auxiliary_factor is not None:
            raise ValueError(f"{path} has no effect beside optimizer.auxiliary_factor; search that, or set it to None")
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"the range of {path} must be finite, got {low} to {high}")
        if low >= high:
            raise ValueError(f"the range of {path} is empty: its low end {low} is not below its high end {high}")
        if searched.log and low <= 0:
            raise ValueError(f"the range of {path} starts at {low}; a logarithmic one starts above 0")
    method_named(recipe.method)
    for share in (0.0, 1.0):
        with_values(recipe, {searched.path: searched.at(share) for searched in ranges})


def with_values(recipe: Recipe, values: Mapping[str, int | float]) -> Recipe:
    """The recipe with other values of fields, given by their paths.

    >>> with_values(Recipe(), {"hyper.alpha": 0.8, "optimizer.lr": 0.2}).hyper
    {'alpha': 0.8}
    """
    changed: Recipe = _with_values(recipe, {tuple(path.split(".")): value for path, value in values.items()})
    return changed


def changed_fields(before: Recipe, after: Recipe) -> dict[str, Any]:
    """Values of `after` where it is not `before`, by path; all hyper-parameters together as `hyper`.

    >>> changed_fields(Recipe(), with_values(Recipe(), {"hyper.alpha": 0.8, "optimizer.lr": 0.2}))
    {'hyper': {'alpha': 0.8}, 'optimizer.lr': 0.2}
    """
    old, new = (_values(recipe) for recipe in (before, after))
    return {path: value for path, value in new.items() if value != old[path]}


def _values(recipe: Recipe) -> dict[str, Any]:
    return {path: _value(recipe, path.split(".")) for path, _ in _fields(Recipe)}


def _value(node: Any, names: Sequence[str]) -> Any:
    return _value(getattr(node, names[0]), names[1:]) if names else node


def _with_values(node: Any, values: Mapping[tuple[str, ...], int | float]) -> Any:
    """All of them at once: what is allowed together may not be allowed one after the other."""
    if () in values:
        return values[()]
    below: dict[str, dict[tuple[str, ...], int | float]] = {}
    for (name, *rest), value in values.items():
        below.setdefault(name, {})[tuple(rest)] = value
    if isinstance(node, dict):
        return node | {name: _with_values(node.get(name), inner) for name, inner in below.items()}
    return replace(node, **{name: _with_values(getattr(node, name), inner) for name, inner in below.items()})


def _fields(kind: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Paths and types of all fields that are not groups of fields."""
    for name, hint in get_type_hints(kind).items():
        if is_dataclass(hint):
            yield from _fields(hint, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", hint


def _numbers(recipe: Recipe) -> dict[str, bool]:
    """The fields that may be searched, and whether they take whole numbers only."""
    found = {f"hyper.{name}": False for name in method_named(recipe.method).choice({})}
    for path, hint in _fields(Recipe):
        several = get_origin(hint) in (Union, types.UnionType)
        kinds = set(get_args(hint)) - {types.NoneType} if several else {hint}
        if kinds <= {int, float} and path not in NOT_SEARCHED:
            found[path] = kinds == {int}
    return found


def _is_integer(recipe: Recipe, path: str) -> bool:
    """Whether a field takes whole numbers only; refuses what cannot be searched."""
    numbers = _numbers(recipe)
    if path in numbers:
        return numbers[path]
    if path in NOT_SEARCHED:
        raise ValueError(f"{path} {NOT_SEARCHED[path]}; search another field")
    if path in dict(_fields(Recipe)):
        takes = f"name one of {', '.join(p for p in numbers if p.startswith('hyper.')) or 'another field'}"
        raise ValueError(f"{path} is not a number, and cannot be searched; {takes}")
    last = path.rsplit(".", maxsplit=1)[-1]
    close = [name for name in numbers if name.rsplit(".", maxsplit=1)[-1] == last]
    close = close or difflib.get_close_matches(path, numbers, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(numbers)}"
    raise ValueError(f"the recipe has no field {path!r} to search; {hint}")


def _number(text: str, *, integer: bool, where: str) -> int | float:
    try:
        return int(text) if integer else float(text)
    except ValueError:
        kind = "a whole number" if integer else "a number"
        raise ValueError(f"{where!r}: {text!r} is not {kind}; write {FORM}") from None
