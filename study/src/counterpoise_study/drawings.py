"""Which figures a study has, and the numbers behind each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from counterpoise.metrics.estimates import KEY_INFO, Key, percent
from counterpoise.report.data import box_of, reliability_bins
from counterpoise.report.data import severities as severities_of
from counterpoise.report.numbers import number
from counterpoise_study import figures
from counterpoise_study.collected import Group, StudyResults, severity_title
from counterpoise_study.tables import Linked, plain_table

_DOTTED = ("metrics", "detection", "ood")
_FEW = 4
"""So many rows are read as fast as numbers."""


@dataclass(frozen=True)
class Drawing:
    """A figure that has not been drawn yet.

    Attributes:
        name: of its file.
        alt: what it shows, in words.
        draw: makes it.
        tables: its numbers, where the tables of the study do not have them.
    """

    name: str
    alt: str
    draw: Callable[[], Figure]
    tables: tuple[Linked, ...] = ()


def drawings_of(gathered: StudyResults) -> Iterator[Drawing]:
    """The figures of a study; groups without a finished run have none."""
    for index, group in enumerate(gathered.groups, start=1):
        name = gathered.request.study
        name = f"{name}-{index}" if len(gathered.groups) > 1 else name
        if figures.finished(group) and (drawing := _drawing(gathered, group, name)) is not None:
            yield drawing


def _drawing(gathered: StudyResults, group: Group, name: str) -> Drawing | None:
    layout, title = gathered.study.layout, group.title
    if layout == "scatter":
        return Drawing(name, f"Accuracy against ECE: {title}", partial(figures.scatter, group))
    if layout == "reliability":
        return Drawing(
            name,
            f"Reliability diagrams: {title}",
            partial(figures.reliability, group),
            tuple(_bins(group)),
        )
    if layout == "sweep":
        trials = [trial for choice in gathered.choices for trial in choice.trials]
        return Drawing(name, f"Metrics against alpha: {title}", partial(figures.sweep, group, trials))
    if layout == "severity":
        return Drawing(
            name,
            f"ECE over the corruptions: {title}",
            partial(figures.severity, group),
            (_boxes(group),),
        )
    if layout == "trade-off":
        return Drawing(
            name,
            f"NLL and accuracy against the work of a training step: {title}",
            partial(figures.trade_off, group),
        )
    if layout == "bars":
        return Drawing(name, f"Metrics as bars: {title}", partial(figures.bars, group))
    if layout in _DOTTED and len(group.rows) > _FEW:
        return Drawing(
            name,
            f"Means over seeds as dots, one standard deviation as lines: {title}",
            partial(figures.dots, group),
        )
    return None


def _bins(group: Group) -> Iterator[Linked]:
    """The bins of every reliability diagram."""
    for row in figures.finished(group):
        pooled = figures.pooled(row)
        rows = [
            (
                f"{found.lower:.3f} to {found.upper:.3f}",
                f"{found.count:,}",
                f"{found.share:.1%}",
                f"{found.confidence:.2%}",
                f"{found.accuracy:.2%}",
                f"{found.low:.1%} to {found.high:.1%}",
            )
            for found in reliability_bins(pooled.top_label, level=pooled.level)
        ]
        level = row.records[0].level
        heads = ("confidence", "predictions", "share", "mean confidence", "accuracy", f"{percent(level)} interval")
        yield plain_table(f"Bins of the predicted class, all seeds: {row.label}", heads, rows)


def _boxes(group: Group) -> Linked:
    """The numbers of every box."""
    found = [(row.label, severities_of(figures.averaged(row))) for row in figures.finished(group)]
    levels = sorted({level for _, by_level in found for level in by_level})
    rows = []
    for label, by_level in found:
        cells = []
        for level in levels:
            box = box_of([estimate.value for _, estimate in by_level[level]])
            low, lower, middle, upper, high = (
                number(KEY_INFO[Key.ECE], value)
                for value in (box.lowest, box.lower, box.median, box.upper, box.highest)
            )
            cells.append(f"{low} | {lower} | {middle} | {upper} | {high}")
        rows.append((label, *cells))
    heads = ("", *map(severity_title, levels))
    return plain_table("ECE, %, over the corruptions: lowest | quartile | median | quartile | highest", heads, rows)
