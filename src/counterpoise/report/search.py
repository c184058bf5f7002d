"""The picture of a search: what each searched field did to the metric."""

from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise._extras import require

require("matplotlib", extra="report", purpose="drawing figures")

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter  # noqa: E402

from counterpoise._text import shown  # noqa: E402
from counterpoise.metrics.estimates import KEY_INFO, Key  # noqa: E402
from counterpoise.report.style import LIGHT, marker, themed  # noqa: E402

_PANEL_INCHES = 4.4
_MOST_COLUMNS = 3
_MOST_TICKS = 6


@dataclass(frozen=True)
class SearchedField:
    """One field, and its value in every trial.

    Attributes:
        name: of the field.
        values: one for each trial.
        log: whether it was searched on a logarithmic scale.
        integer: whether it takes whole numbers only.
    """

    name: str
    values: Sequence[float]
    log: bool = False
    integer: bool = False


def search_figure(fields: Sequence[SearchedField], measured: Sequence[float], *, key: Key) -> Figure:
    """The metric of every trial against its value of each field, the best marked.

    Args:
        fields: what was searched.
        measured: the validation metric of each trial, in its own unit.
        key: which metric.
    """
    info = KEY_INFO[key]
    scaled = [info.scale * value for value in measured]
    best = scaled.index(max(scaled) if info.higher_is_better else min(scaled))
    columns = min(len(fields), _MOST_COLUMNS)
    rows = -(-len(fields) // columns)
    with themed():
        figure = Figure(figsize=(_PANEL_INCHES * columns, 3.8 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for panel in panels.flat[len(fields) :]:
            panel.set_axis_off()
        for panel, field in zip(panels.flat, fields, strict=False):
            _trials(panel, field, scaled, best=best)
            panel.set_xlabel(shown(field.name))
            if field is fields[0]:
                panel.legend(loc="best")
        for row in panels:
            row[0].set_ylabel(f"{info.title} of validation images, {info.unit}")
        return figure


def _trials(axes: Axes, field: SearchedField, measured: Sequence[float], *, best: int) -> None:
    others = [index for index in range(len(measured)) if index != best]
    axes.plot(
        [field.values[index] for index in others], [measured[index] for index in others], marker(0),
        color=LIGHT.colour(0), markersize=6, alpha=0.75, gid="trials", label="trial",
    )  # fmt: skip
    axes.plot(
        [field.values[best]], [measured[best]], "*", color=LIGHT.colour(1), markersize=15,
        markeredgecolor=LIGHT.paper, zorder=3, gid="best", label="best",
    )  # fmt: skip
    axes.set_title(f"best at {field.values[best]:g}")
    if field.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(_MOST_TICKS, steps=[1, 2, 5, 10], integer=field.integer))
