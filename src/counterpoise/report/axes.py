"""Axes and lines that figures share."""

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from counterpoise.report.style import Theme


def perfect(axes: Axes, theme: Theme) -> None:
    """The line of honest confidence."""
    axes.plot([0, 1], [0, 1], color=theme.muted, linewidth=1, linestyle="--")


def percent_axes(axes: Axes) -> None:
    """Both axes in percent."""
    for axis in (axes.xaxis, axes.yaxis):
        # As many decimals as a tick needs: rounded to whole percent, ticks of a short axis would share a label.
        axis.set_major_formatter(FuncFormatter(_percent_text))


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
