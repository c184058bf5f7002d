"""Tables of groups of samples: the worst ones first, and by two columns at a time."""

import math
from collections.abc import Sequence
from dataclasses import replace

from counterpoise.metrics.estimates import Estimate, Key
from counterpoise.metrics.scores import GroupScores, Scores
from counterpoise.metrics.slices import against_whole, worst_slices
from counterpoise.report.data import NOT_STATED, is_slice, slice_name
from counterpoise.report.numbers import metric_title, number, value_and_interval
from counterpoise.report.tables import Cell, Table

_KEYS = (Key.ACCURACY, Key.NLL, Key.MEAN_GAP, Key.ECE)
_CROSSED = (Key.ACCURACY, Key.ECE)
_MOST_CROSSED = 30
"""Values of a column above which a table by two of them is no longer read."""

HEAT = 4
"""Shades of the worst of a table; the best has none."""


def slices_of(scores: Scores) -> list[GroupScores]:
    """The groups that severities do not tell apart, surely worst first: by the upper limit of accuracy."""
    ordered = worst_slices(scores, most=len(scores.groups)) if _are_simultaneous(scores) else scores.groups
    return [group for group in ordered if is_slice(group)]


def slice_table(scores: Scores, *, most: int | None = None) -> Table | None:
    """Metrics of each group, surely worst first.

    Where intervals hold for all groups together, metrics that have no such interval have none, and what is better or
    worse than all samples beyond chance is marked.
    """
    groups = slices_of(scores)
    if not groups:
        return None
    infos = {key: scores.info_of(key) for key in (*_KEYS, *scores.info)}
    columns = [_shaded(scores, groups, key) for key in infos]
    rows = [
        (Cell(slice_name(group)), Cell(f"{group.samples:,}"), *cells)
        for group, *cells in zip(groups, *columns, strict=True)
    ]
    title = "Groups, by the upper limit of accuracy" if _are_simultaneous(scores) else "Groups"
    return Table(title, ("group", "samples", *map(metric_title, infos.values())), tuple(rows[:most]))


def crossed_tables(scores: Scores) -> list[Table]:
    """Accuracy and ECE by two columns, where groups are made by two: the longer one down, the shorter one across."""
    groups = slices_of(scores)
    values: dict[str, list[str]] = {}
    for group in groups:
        for name, value in group.columns.items():
            values.setdefault(name, []).append(_stated(value))
    distinct = {name: sorted(set(each)) for name, each in values.items()}
    crossed = len(distinct) == 2 and all(set(group.columns) == set(distinct) for group in groups)
    # Where groups differ in more than these, a place would have several.
    crossed &= not any(group.domain or group.corruption or group.severity for group in groups)
    if not crossed or not all(2 <= len(each) <= _MOST_CROSSED for each in distinct.values()):
        return []
    down, across = sorted(distinct, key=lambda name: -len(distinct[name]))
    found = []
    for key in _CROSSED:
        shaded = _shaded(scores, groups, key, intervals=False)
        places = [(_stated(group.columns[down]), _stated(group.columns[across])) for group in groups]
        cells = dict(zip(places, shaded, strict=True))
        rows = tuple(
            (Cell(first), *(cells.get((first, second), Cell("")) for second in distinct[across]))
            for first in distinct[down]
        )
        title = f"{metric_title(scores.info_of(key))}, by {down} and {across}"
        found.append(Table(title, (down, *(f"{across} {second}" for second in distinct[across])), rows))
    return found


def _stated(value: str | None) -> str:
    return NOT_STATED if value is None else value


def slice_sentence(scores: Scores) -> str:
    """Which intervals these are, and how many groups are worse beyond chance."""
    groups = slices_of(scores)
    if not groups or not _are_simultaneous(scores):
        return ""
    worse = sum(against_whole(scores, group, Key.ACCURACY) < 0 for group in groups)
    found = "None is" if worse == 0 else "1 is" if worse == 1 else f"{worse:,} are"
    return (
        f"Intervals hold for all {len(scores.groups):,} groups together, so that the worst of them can be believed. "
        f"{found} less accurate than all samples beyond chance."
    )


def _are_simultaneous(scores: Scores) -> bool:
    return all(group.simultaneous for group in scores.groups)


def _shaded(scores: Scores, groups: Sequence[GroupScores], key: str, *, intervals: bool = True) -> list[Cell]:
    """One cell for each group, shaded by where its value lies between the best and the worst."""
    info = scores.info_of(key)
    estimates = [_estimate(group, key) for group in groups]
    badness = [math.nan if each is None else _badness(each.value, info.higher_is_better) for each in estimates]
    known = [each for each in badness if math.isfinite(each)]
    low, span = (min(known), max(known) - min(known)) if known else (0.0, 0.0)
    cells = []
    for group, estimate, bad in zip(groups, estimates, badness, strict=True):
        text = value_and_interval(info, estimate) if intervals or estimate is None else number(info, estimate.value)
        heat = round(HEAT * (bad - low) / span) if span > 0 and math.isfinite(bad) else 0
        sign = against_whole(scores, group, key)
        cells.append(Cell(text, best=sign > 0, worse=sign < 0, heat=heat))
    return cells


def _estimate(group: GroupScores, key: str) -> Estimate | None:
    found = group.estimates.get(key)
    if not group.simultaneous or found is None:
        return found
    return group.simultaneous.get(key, replace(found, low=math.nan, high=math.nan))


def _badness(value: float, higher_is_better: bool | None) -> float:  # noqa: FBT001
    return abs(value) if higher_is_better is None else -value if higher_is_better else value
