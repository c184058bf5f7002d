"""What is compared, as data: a request holds all that decides its cells, so that a store explains itself."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from counterpoise.recipes.config import InitialWeights, Recipe, ValidationMetric
from counterpoise.recipes.methods import METHODS

Hyper = dict[str, float]
"""One value of each hyper-parameter of a method."""


@dataclass(frozen=True)
class Published:
    """Where the paper's numbers of a setting are; empty where it has none.

    Attributes:
        data_set: as the paper's tables call it.
        primary: backbone, or `unstated`.
        auxiliary: backbone, where a table varies it.
    """

    data_set: str = ""
    primary: str = ""
    auxiliary: str = ""


@dataclass(frozen=True)
class Setting:
    """What stays the same while methods are compared: data, networks and schedule.

    Attributes:
        name: unique within a scale.
        title: as tables show it.
        recipe: of everything but the method, its hyper-parameters and the seed.
        near: OOD set that is like the data; empty for none.
        far: OOD sets that are not; the paper's numbers are of the first.
        published: where the paper's numbers are.
        tuned_in: the setting that hyper-parameters are chosen in; empty for this one.
        variant: what is other than in the setting that has the title alone; empty for that one.
        methods: that are run here, of those that are compared; empty for all.
    """

    name: str
    title: str
    recipe: Recipe
    near: str = ""
    far: tuple[str, ...] = ()
    published: Published = Published()
    tuned_in: str = ""
    variant: str = ""
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """One method in one setting.

    Attributes:
        setting: name of it.
        method: name of it.
        title: of the method, as tables show it.
        seeds: of its runs; hyper-parameters are chosen at the first.
        candidates: hyper-parameters to choose from; of one, there is nothing to choose.
        swept: every candidate is a result of its own, and none is chosen.
        source: SHA-256 of the file that the method comes from; empty for the methods of the package.
        tuning_seeds: that candidates are compared by the mean over; empty for the first of `seeds`.
    """

    setting: str
    method: str
    title: str
    seeds: tuple[int, ...]
    candidates: tuple[Hyper, ...]
    swept: bool = False
    source: str = ""
    tuning_seeds: tuple[int, ...] = ()

    @property
    def choosing_seeds(self) -> tuple[int, ...]:
        """Seeds of the runs that hyper-parameters are chosen by."""
        return self.tuning_seeds or self.seeds[:1]


@dataclass(frozen=True)
class Request:
    """A study at a scale, with all its settings and methods.

    Attributes:
        study: name of it.
        scale: name of it.
        rule: validation metric that chooses hyper-parameters.
        settings: that are compared in, and those that hyper-parameters are chosen in.
        lines: that are compared.
    """

    study: str
    scale: str
    rule: ValidationMetric
    settings: tuple[Setting, ...]
    lines: tuple[Line, ...]

    @cached_property
    def made(self) -> dict[Any, Any]:
        """Cells that were made of it, by what decides them."""
        return {}

    def setting(self, name: str) -> Setting:
        """The setting of that name."""
        return next(setting for setting in self.settings if setting.name == name)

    @property
    def seeds(self) -> list[int]:
        """Of all lines, in order."""
        return sorted({seed for line in self.lines for seed in line.seeds})

    @property
    def shown(self) -> list[Setting]:
        """The settings that have lines, in order."""
        names = dict.fromkeys(line.setting for line in self.lines)
        return [self.setting(name) for name in names]


def merged(before: Request, now: Request) -> Request:
    """Both requests for a study as one; titles of the later. Refused where a cell would be another than before."""
    shared = {setting.name: setting for setting in before.settings}
    if before.rule != now.rule:
        raise ValueError(
            f"{before.study} was asked for with hyper-parameters chosen by {before.rule}, and now by {now.rule}; use "
            "another store for it"
        )
    for each in now.settings:
        begun = shared.get(each.name, each)
        if (begun.recipe.digest, begun.tuned_in) != (each.recipe.digest, each.tuned_in):
            raise ValueError(
                f"{before.study}, {each.name}: the store was begun with other options of this setting, perhaps by "
                "another release; go on with that one, or use another store"
            )
    # An option that was stated then may be the default since: what was begun goes on as it is.
    later = {each.name: replace(each, recipe=shared.get(each.name, each).recipe) for each in now.settings}
    settings = tuple((shared | later).values())
    lines = {(line.setting, line.method): line for line in before.lines}
    for line in now.lines:
        known = lines.get((line.setting, line.method), line)
        lines[line.setting, line.method] = replace(line, seeds=tuple(sorted({*known.seeds, *line.seeds})))
    places = {setting.name: index for index, setting in enumerate(settings)}
    methods = list(dict.fromkeys([*METHODS, *(line.method for line in lines.values())]))
    order = sorted(lines.values(), key=lambda line: (places[line.setting], methods.index(line.method)))
    return replace(now, settings=settings, lines=tuple(order))


def with_initial_weights(request: Request, rule: InitialWeights) -> Request:
    """The same by another rule for initial weights, in all of its settings."""
    settings = [replace(each, recipe=replace(each.recipe, initial_weights=rule)) for each in request.settings]
    return replace(request, settings=tuple(settings))


def candidates_of(method: str, *, most: int | None) -> tuple[Hyper, ...]:
    """Every combination of the values of the method's grid; of each value's list, at most so many from the middle on.

    >>> candidates_of("fl", most=2)
    ({'gamma': 2.0}, {'gamma': 3.0})
    >>> candidates_of("ce", most=None)
    ({},)
    """
    grid: Mapping[str, Sequence[float]] = METHODS[method].grid
    kept = [values if most is None else _middle(values, most) for values in grid.values()]
    return tuple(dict(zip(grid, point, strict=True)) for point in itertools.product(*kept))


def _middle(values: Sequence[float], most: int) -> Sequence[float]:
    start = max(0, min(len(values) // 2, len(values) - most))
    return values[start : start + most]
