"""Time lines of a model in use, each a matplotlib `Figure`."""

from collections.abc import Sequence
from datetime import UTC, datetime

from counterpoise._extras import require

require("matplotlib", extra="report", purpose="drawing time lines")

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: E402

from counterpoise.monitoring.evidence import PARTS  # noqa: E402
from counterpoise.monitoring.standing import Line, Measured, Standing  # noqa: E402
from counterpoise.monitoring.texts import TITLES  # noqa: E402
from counterpoise.report.axes import percent_ticks  # noqa: E402
from counterpoise.report.style import LIGHT, line, marker, themed  # noqa: E402

_INCHES = (4.6, 3.1)
_FILL = 0.22
_MARKED = 40
"""Up to so many windows each has a marker."""


def accuracy(standing: Standing) -> Figure:
    """Accuracy where there are labels, and as estimated without, with intervals; the reference is a dashed line."""
    with themed():
        figure, axes = _panel()
        known = [each for each in standing.lines if each.accuracy is not None]
        _band(axes, standing.lines, [each.estimated_accuracy for each in standing.lines], 1, "estimated")
        if known:
            _band(axes, known, [each.accuracy for each in known if each.accuracy is not None], 0, "with labels")
        if standing.reference.accuracy is not None:
            _level(axes, standing.reference.accuracy.value)
        axes.set_ylabel("accuracy")
        return _finished(figure, axes, percent=True)


def confidence(standing: Standing) -> Figure:
    """Mean confidence with intervals; the reference is a dashed line."""
    with themed():
        figure, axes = _panel()
        _band(axes, standing.lines, [each.mean_confidence for each in standing.lines], 0, "mean confidence")
        _level(axes, standing.reference.mean_confidence.value)
        axes.set_ylabel("mean confidence")
        return _finished(figure, axes, percent=True)


def evidence(standing: Standing) -> Figure:
    """Evidence of each part on a logarithmic scale, and the threshold of an alarm."""
    with themed():
        figure, axes = _panel()
        judged = {alarm.part for alarm in standing.alarms if alarm.samples}
        times = _times(standing.lines)
        for place, part in enumerate(part for part in PARTS if part in judged):
            values = [each.log10_evidence[part] for each in standing.lines]
            axes.plot(times, values, color=LIGHT.colour(place), linestyle=line(place), label=TITLES[part], gid=part)
            axes.plot(times[-1:], values[-1:], marker(place), color=LIGHT.colour(place), markersize=5)
        axes.axhline(standing.threshold, color=LIGHT.worse, linewidth=1.4, linestyle=":", label="alarm", gid="alarm")
        axes.set_ylabel("evidence")
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(_power))
        return _finished(figure, axes)


def volume(standing: Standing) -> Figure:
    """Predictions, and those with a label."""
    with themed():
        figure, axes = _panel()
        times = _times(standing.lines)
        for place, (name, values) in enumerate(
            (
                ("all", [each.predictions for each in standing.lines]),
                ("with a label", [each.labelled for each in standing.lines]),
            )
        ):
            style = marker(place) if len(times) <= _MARKED else ""
            axes.plot(
                times,
                values,
                marker=style,
                markersize=3.5,
                color=LIGHT.colour(1 - place),
                linestyle=line(place),
                label=name,
            )
        axes.set_ylabel("predictions")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        return _finished(figure, axes)


def _panel() -> tuple[Figure, Axes]:
    figure = Figure(figsize=_INCHES, layout="constrained")
    return figure, figure.subplots()


def _finished(figure: Figure, axes: Axes, *, percent: bool = False) -> Figure:
    if percent:
        axes.yaxis.set_major_formatter(percent_ticks())
        axes.yaxis.set_major_locator(MaxNLocator(6))
    locator = AutoDateLocator(maxticks=6, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    figure.legend(loc="outside upper left", ncols=3)
    return figure


def _band(axes: Axes, lines: Sequence[Line], values: Sequence[Measured], place: int, label: str) -> None:
    times, colour = _times(lines), LIGHT.colour(place)
    low, high = [each.low for each in values], [each.high for each in values]
    if len(times) == 1:
        axes.vlines(times, low, high, color=colour, alpha=2 * _FILL, linewidth=6)
    axes.fill_between(times, low, high, color=colour, alpha=_FILL, linewidth=0)
    style = marker(place) if len(times) <= _MARKED else ""
    axes.plot(
        times,
        [each.value for each in values],
        marker=style,
        markersize=3.5,
        color=colour,
        linestyle=line(place),
        label=label,
        gid=label,
    )


def _level(axes: Axes, value: float) -> None:
    axes.axhline(value, color=LIGHT.ink, linewidth=1, linestyle="--", label="reference", gid="reference")


def _times(lines: Sequence[Line]) -> list[float]:
    """Days since 1970, which is how matplotlib has them."""
    times = [datetime.fromisoformat(each.start) for each in lines]
    return [time.replace(tzinfo=UTC).timestamp() / 86_400 for time in times]  # starts are in UTC, said or not


def _power(value: float, _: int | None = None) -> str:
    return f"{10**value:g}" if -4 <= value <= 4 else f"1e{value:+.0f}"
