"""The figures of the paper, from the records of a store, each a matplotlib `Figure`.

Artists that carry numbers have a `gid`, so that the numbers can be read back. Rows without a finished run are left out.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from counterpoise._extras import require

require("matplotlib", extra="report", purpose="drawing figures")

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from counterpoise._text import shown  # noqa: E402
from counterpoise.functional.intervals import normal_quantile  # noqa: E402
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key  # noqa: E402
from counterpoise.metrics.scores import BinTable, ClassTable, GroupScores, RankingScores, Scores, Source  # noqa: E402
from counterpoise.report import figures as of_scores  # noqa: E402
from counterpoise.report.numbers import metric_title  # noqa: E402
from counterpoise.report.style import LIGHT, line, marker, themed  # noqa: E402
from counterpoise_study.collected import Column, Group, Row, Trial, severities  # noqa: E402
from counterpoise_study.cost import relative_cost  # noqa: E402
from counterpoise_study.labels import Point, label_points  # noqa: E402
from counterpoise_study.record import CellRecord  # noqa: E402
from counterpoise_study.summary import Summary, mean, summarise  # noqa: E402
from counterpoise_study.tables import BLOCKS  # noqa: E402

_PANEL_INCHES = 3.6
_MOST_COLUMNS = 5
_SWEPT = "alpha"
_HIGHEST_LEVEL = 1 - 1e-15
"""Nearer to 1, the quantile of a level is infinite."""


def finished(group: Group) -> list[Row]:
    """The rows that can be drawn."""
    return [row for row in group.rows if row.records]


def scatter(group: Group) -> Figure:
    """Accuracy against ECE, one mark for each method, with the standard deviation over seeds; before and after scaling.

    The better, the further to the top left.
    """
    columns = {column.key: column for column in group.columns}
    rows = finished(group)
    with themed():
        figure = Figure(figsize=(2 * 5.2, 4.6), layout="constrained")
        panels = figure.subplots(1, len(BLOCKS), sharey=True)
        points: dict[Axes, list[Point]] = {axes: [] for axes in panels}
        for axes, (title, scaled) in zip(panels, BLOCKS, strict=True):
            for index, row in enumerate(rows):
                x, y = (_summary(row, columns[key], scaled=scaled) for key in (Key.ECE, Key.ACCURACY))
                colour = LIGHT.colour(index)
                _whiskers(axes, [x.mean], [y.mean], colour, across=[x.deviation], upright=[y.deviation])
                axes.plot([x.mean], [y.mean], marker(index), color=colour, markersize=7, gid=row.line.method)
                points[axes].append((x.mean, y.mean, shown(row.label), colour))
            axes.set(xlabel=metric_title(KEY_INFO[Key.ECE]), title=title)
            axes.margins(0.12)
            axes.set_xlim(left=max(0.0, axes.get_xlim()[0]))
        panels[0].set_ylim(bottom=max(0.0, panels[0].get_ylim()[0]))
        panels[0].set_ylabel(metric_title(KEY_INFO[Key.ACCURACY]))
        # Last, because limits and labels of axes decide where there is room.
        for axes, named in points.items():
            label_points(figure, axes, named, paper=LIGHT.paper)
        return figure


def trade_off(group: Group) -> Figure:
    """NLL after temperature scaling, and accuracy, against the work of a training step; bars are t intervals.

    A line joins those whose means nothing of less work reaches (the Pareto front). The better, the further to the
    bottom left, or to the top left.
    """
    columns = {column.key: column for column in group.columns}
    rows = finished(group)
    costs = [relative_cost(row.runs[0].cell.recipe) for row in rows]
    with themed():
        figure = Figure(figsize=(2 * 5.2, 5.8), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, key in zip(panels, (Key.NLL, Key.ACCURACY), strict=True):
            found = [_summary(row, columns[key], scaled=True) for row in rows]
            front = _front(costs, [each.mean for each in found], falling=key is Key.NLL)
            axes.step(
                [costs[index] for index in front], [found[index].mean for index in front], where="post",
                color=LIGHT.muted, linewidth=1, zorder=1, gid="front",
            )  # fmt: skip
            for index, (row, x, y) in enumerate(zip(rows, costs, found, strict=True)):
                colour, name = LIGHT.colour(index), row.setting.variant or shown(row.label)
                _whiskers(axes, [x], [y.mean], colour, upright=[(y.high - y.low) / 2])
                axes.plot(
                    [x], [y.mean], marker(index), color=colour, markersize=7, linestyle="none", label=name,
                    gid=row.label,
                )  # fmt: skip
            scaled = ", after temperature scaling" if key is Key.NLL else ""
            axes.set(xlabel="FLOPs of training, over cross-entropy", ylabel=metric_title(KEY_INFO[key]) + scaled)
            axes.margins(0.12)
        _legend_below(figure)
        return figure


def _front(costs: Sequence[float], values: Sequence[float], *, falling: bool) -> list[int]:
    """Places of those that are better than all that cost as much or less, in the order of cost."""
    sign = 1 if falling else -1
    front: list[int] = []
    for index in sorted(range(len(costs)), key=lambda index: (costs[index], sign * values[index])):
        if not front or sign * values[index] < sign * values[front[-1]]:
            front.append(index)
    return front


def reliability(group: Group) -> Figure:
    """Reliability diagrams of all methods side by side, of the predictions of all seeds together."""
    return of_scores.reliability([pooled(row) for row in finished(group)])


def sweep(group: Group, trials: Sequence[Trial]) -> Figure:
    """Every metric against alpha, a line for each method, with the standard deviation over seeds; a ring if chosen."""
    rows = [row for row in finished(group) if row.hyper and _SWEPT in row.hyper]
    methods = list(dict.fromkeys(row.line.method for row in rows))
    chosen_recipes = [trial.cell.recipe for trial in trials if trial.is_chosen]
    ringed = {(recipe.method, recipe.hyper[_SWEPT]) for recipe in chosen_recipes if _SWEPT in recipe.hyper}
    with themed():
        figure = Figure(figsize=(_PANEL_INCHES * len(group.columns), 3.6), layout="constrained")
        for axes, column in zip(_panels(figure, len(group.columns)), group.columns, strict=True):
            for index, method in enumerate(methods):
                own = sorted((row for row in rows if row.line.method == method), key=_alpha)
                x = [_alpha(row) for row in own]
                found = [_summary(row, column, scaled=False) for row in own]
                y = [each.mean for each in found]
                _whiskers(axes, x, y, LIGHT.colour(index), upright=[each.deviation for each in found])
                axes.plot(
                    x, y, color=LIGHT.colour(index), marker=marker(index), linestyle=line(index), markersize=5,
                    label=own[0].line.title, gid=f"{method} {column.key}",
                )  # fmt: skip
                chosen = [(a, b) for a, b in zip(x, y, strict=True) if (method, a) in ringed]
                axes.plot(
                    [a for a, _ in chosen], [b for _, b in chosen], "o", markersize=13, markerfacecolor="none",
                    markeredgecolor=LIGHT.ink, markeredgewidth=1.2, gid=f"chosen {method} {column.key}",
                )  # fmt: skip
            axes.set(xlabel=_SWEPT, title=column.title)
            axes.margins(x=0.1)
            axes.set_xticks(sorted({_alpha(row) for row in rows}))
        _legend_below(figure)
        return figure


def severity(group: Group) -> Figure:
    """ECE over the corruptions at each severity, as boxes; each point the mean over seeds of one corruption."""
    figure = of_scores.severity([averaged(row) for row in finished(group)])
    with themed():
        (axes,) = figure.axes
        # Of so many methods, a legend inside would lie on the boxes.
        if (inside := axes.get_legend()) is not None:
            inside.remove()
        _legend_below(figure)
        return figure


def bars(group: Group) -> Figure:
    """Every metric of every method as a bar, with the t interval over seeds."""
    rows = finished(group)
    places = list(range(len(rows)))
    with themed():
        figure = Figure(figsize=(_PANEL_INCHES * len(group.columns), 3.6), layout="constrained")
        for axes, column in zip(_panels(figure, len(group.columns)), group.columns, strict=True):
            found = [_summary(row, column, scaled=False) for row in rows]
            axes.bar(
                places, [each.mean for each in found], width=0.62, gid=column.key,
                color=[LIGHT.colour(index) for index in places],
            )  # fmt: skip
            low, high = [each.low for each in found], [each.high for each in found]
            axes.vlines(places, low, high, color=LIGHT.ink, linewidth=1.4, gid=f"interval {column.key}")
            axes.set_xticks(places, [shown(row.label, most=14) for row in rows], rotation=20, ha="right")
            axes.grid(visible=False, axis="x")
            axes.set(title=column.title)
            axes.set_ylim(bottom=0)
        return figure


def dots(group: Group) -> Figure:
    """Every metric of every method as a dot, with the standard deviation over seeds; before and after scaling."""
    rows = finished(group)
    with themed():
        size = (1.4 + 2.3 * len(group.columns), 1.3 + 0.3 * len(rows))
        figure = Figure(figsize=size, layout="constrained")
        panels = _panels(figure, len(group.columns), share_y=True)
        for axes, column in zip(panels, group.columns, strict=True):
            for index, (title, scaled) in enumerate(BLOCKS):
                found = [_summary(row, column, scaled=scaled) for row in rows]
                places = [place + 0.16 * (2 * index - 1) for place in range(len(rows))]
                x = [each.mean for each in found]
                _whiskers(axes, x, places, LIGHT.colour(index), across=[each.deviation for each in found])
                axes.plot(
                    x, places, marker(index), color=LIGHT.colour(index), markersize=5.5, label=title,
                    gid=f"{column.key} {'scaled' if scaled else 'plain'}",
                )  # fmt: skip
            axes.set_xlabel(_axis_title(column))
        panels[0].set_yticks(range(len(rows)), [shown(row.label, most=30) for row in rows])
        panels[0].set_ylim(len(rows) - 0.5, -0.5)
        _legend_below(figure)
        return figure


def _axis_title(column: Column) -> str:
    """With the direction that is better."""
    better = KEY_INFO[column.key].higher_is_better
    return f"{column.title} {'↑' if better else '↓'}" if better is not None else column.title


def _summary(row: Row, column: Column, *, scaled: bool) -> Summary:
    """In the unit that the metric is shown in."""
    return summarise([KEY_INFO[column.key].scale * value for value in row.values(column, scaled=scaled)])


def _whiskers(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    colour: str,
    *,
    across: Sequence[float] = (),
    upright: Sequence[float] = (),
) -> None:
    """One standard deviation to either side; of one seed there is none."""
    stroke: dict[str, Any] = {"color": colour, "linewidth": 1.3, "alpha": 0.5, "gid": "deviation"}
    if known := [(a, b, half) for a, b, half in zip(x, y, across, strict=False) if not math.isnan(half)]:
        axes.hlines([b for _, b, _ in known], *_ends((a, half) for a, _, half in known), **stroke)
    if known := [(a, b, half) for a, b, half in zip(x, y, upright, strict=False) if not math.isnan(half)]:
        axes.vlines([a for a, _, _ in known], *_ends((b, half) for _, b, half in known), **stroke)


def _ends(around: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    pairs = list(around)
    return [middle - half for middle, half in pairs], [middle + half for middle, half in pairs]


def _panels(figure: Figure, count: int, *, share_y: bool = False) -> list[Axes]:
    return list(figure.subplots(1, count, sharey=share_y, squeeze=False)[0])


def _legend_below(figure: Figure) -> None:
    """In as many columns as the figure is wide enough for."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    for columns in range(min(len(labels), _MOST_COLUMNS), 0, -1):
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _alpha(row: Row) -> float:
    return (row.hyper or {})[_SWEPT]


def pooled(row: Row) -> Scores:
    """The predictions of all seeds together, as a reliability diagram needs them.

    The seeds share their test images, and S of them are not S times as many samples. Wilson's interval depends on the
    share and on z^2 / n alone, so that z sqrt(S) gives from all predictions the interval of as many as one seed has.
    """
    tables = [record.plain.top_label for record in row.records]
    counts, hits = (_sums([getattr(table, name) for table in tables]) for name in ("count", "hits"))
    confidence, squared, products = (
        [math.fsum(column) for column in zip(*(getattr(table, name) for table in tables), strict=True)]
        for name in ("confidence", "confidence_squared", "confidence_hits")
    )
    table = BinTable(counts, hits, confidence, squared, products)
    samples, accuracy = sum(counts), sum(hits) / sum(counts)
    first = row.records[0]
    z = normal_quantile(first.level) * math.sqrt(len(tables))
    estimates: dict[str, Estimate] = {
        Key.ACCURACY: _exact(accuracy),
        Key.MEAN_GAP: _exact(math.fsum(confidence) / samples - accuracy),
    }
    return _scores(row, first, level=min(math.erf(z / math.sqrt(2)), _HIGHEST_LEVEL), estimates=estimates, table=table)


def averaged(row: Row) -> Scores:
    """ECE of each corruption at each severity, as the mean over seeds, as a box plot needs it."""
    first = row.records[0]
    found = [severities(record.plain) for record in row.records]
    groups = [
        GroupScores(
            None, name, level, first.samples, {Key.ECE: _exact(mean([each[level][name].value for each in found]))}
        )
        for level, names in found[0].items()
        for name in names
    ]
    return _scores(row, first, level=first.level, groups=groups)


def _scores(
    row: Row,
    first: CellRecord,
    *,
    level: float,
    estimates: dict[str, Estimate] | None = None,
    table: BinTable | None = None,
    groups: list[GroupScores] | None = None,
) -> Scores:
    """As much of the scores as the figures of reports look at."""
    return Scores(
        samples=first.samples,
        classes=first.classes,
        bins=len(first.plain.top_label.count),
        level=level,
        estimates=estimates or {},
        top_label=table or BinTable([], [], [], [], []),
        by_class=ClassTable([], [], [], [], [], []),
        misclassification=RankingScores("", 0, 0, {}, {}),
        groups=groups or [],
        source=Source(name=row.label),
    )


def _exact(value: float) -> Estimate:
    return Estimate(value, math.nan, math.nan)


def _sums(columns: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*columns, strict=True)]
