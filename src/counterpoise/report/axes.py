"""Axes and lines that figures share."""

import io
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from counterpoise._text import shown
from counterpoise.metrics.scores import Scores
from counterpoise.report.style import LIGHT, Look, drawing


def shown_in_notebooks(figure: Figure) -> Figure:
    """Give a figure what notebooks look for; pyplot, which would do so for all figures, is never imported.

    A subclass would do it too, but some trackers recognise figures by the name of their class.
    """
    figure._repr_png_ = MethodType(_png, figure)  # type: ignore[attr-defined]
    return figure


def _png(figure: Figure) -> bytes:
    target = io.BytesIO()
    with drawing():
        figure.savefig(target, format="png")
    return target.getvalue()


def perfect(axes: Axes) -> None:
    """The line of honest confidence."""
    axes.plot([0, 1], [0, 1], color=LIGHT.muted, linewidth=1, linestyle="--")


def percent_axes(axes: Axes) -> None:
    """Both axes in percent."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(percent_ticks())


def percent_ticks() -> FuncFormatter:
    """Percent with as many decimals as a tick needs: rounded to whole ones, those of a short axis would be alike."""
    return FuncFormatter(_percent_text)


def _percent_text(value: float, _: int | None = None) -> str:
    return f"{100 * value:.6g}%"


def from_zero(set_limits: Callable[[float, float], object], largest: float) -> None:
    """An axis from 0 to a little above the largest value."""
    # Where all is 0, an axis still needs a length.
    set_limits(0, 1.05 * largest or 1.0)


def unit_square(axes: Axes) -> None:
    """Both axes from 0 to 100%."""
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    percent_axes(axes)


def curve(axes: Axes, x: list[float], y: list[float], look: Look, *, label: str, gid: str) -> None:
    """A line as a model looks."""
    axes.plot(
        x, y, color=look.colour, linestyle=look.line, linewidth=1.8,
        label=legend_label(label), gid=gid,
    )  # fmt: skip


def mark(axes: Axes, x: float, y: float, look: Look, *, gid: str) -> None:
    """A point of a model's line."""
    axes.plot(
        [x], [y], look.marker, color=look.colour, markersize=8, markeredgecolor=LIGHT.paper,
        zorder=3, clip_on=False, gid=gid,
    )  # fmt: skip


def legend_label(name: str) -> str:
    """A name that a legend shows: those that begin with an underscore are left out of it."""
    label = shown(name)
    return f" {label}" if label.startswith("_") else label


def legend(
    axes: Axes, models: Sequence[Scores], *, location: Literal["upper left", "lower right", "best"] = "upper left"
) -> None:
    """A legend where there are several models."""
    if len(models) > 1:
        axes.legend(loc=location)
