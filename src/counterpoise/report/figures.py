"""Figures from scores, each a matplotlib `Figure`.

A function takes the scores of one model or of several. Artists that carry numbers have a `gid`, so that the numbers can
be read back from the figure. A model's colour and marker follow from its `Look`, by default from its place in the list:
where only some models are drawn, pass the looks that they have elsewhere.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path

from counterpoise._extras import require

require("matplotlib", extra="report", purpose="drawing figures")

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from counterpoise._text import shown  # noqa: E402
from counterpoise.functional.detection import DEFAULT_TPR  # noqa: E402
from counterpoise.metrics.comparison import Difference, Evaluation  # noqa: E402
from counterpoise.metrics.estimates import Key  # noqa: E402
from counterpoise.metrics.scores import BinTable, RankingScores, Scores  # noqa: E402
from counterpoise.metrics.selective import DEFAULT_RISK, operating_point  # noqa: E402
from counterpoise.report.axes import (  # noqa: E402
    curve,
    from_zero,
    legend,
    legend_label,
    mark,
    percent_axes,
    percent_ticks,
    perfect,
    shown_in_notebooks,
    unit_square,
)
from counterpoise.report.data import (  # noqa: E402
    box_of,
    contrasts,
    largest_class_error,
    largest_share,
    name_of,
    reliability_bins,
    severities,
    worst_classes,
)
from counterpoise.report.guarantees import size_shares  # noqa: E402
from counterpoise.report.style import LIGHT, Look, drawing, themed  # noqa: E402

OneOrMore = Scores | Sequence[Scores]

_PANEL_INCHES = 4.4
_FOREST_INCHES = 4.7
_MOST_OF_TITLE = 32
_TICK_CHARACTERS = 24
"""Labels of an axis that are longer together are turned."""
_LINE_OF_LEGEND = 0.08
"""Of the height of a panel."""
_FILL = 0.22
_FORMATS = (".png", ".svg", ".pdf")
_STATES: dict[str, tuple[str, float]] = {"better": (">", 2.6), "worse": ("<", 2.6), "undecided": ("o", 1.4)}
"""Marker and width of the line of a difference: it points to better or to worse, or nowhere."""

FIRST = Look(0)


def reliability(
    scores: OneOrMore,
    *,
    share_limit: float | None = None,
    looks: Sequence[Look] | None = None,
) -> Figure:
    """Accuracy against confidence with the interval of each bin, above a histogram of confidences; models side by side.

    The lines through the histogram are the average confidence and the accuracy: their distance is the mean gap. All
    histograms end at `share_limit`, the largest share of samples in a bin; by default, that of these models.
    """
    models = _as_list(scores)
    limit = largest_share(models) if share_limit is None else share_limit
    with themed():
        figure = Figure(figsize=(_PANEL_INCHES * len(models), 5.5), layout="constrained")
        panels = figure.subplots(2, len(models), sharex=True, squeeze=False, height_ratios=(3, 1))
        for column, (model, look) in enumerate(_with_looks(models, looks)):
            _diagram(panels[0, column], model.top_label, level=model.level, look=look)
            _histogram(panels[1, column], model, limit=limit, look=look)
            panels[0, column].set_title(shown(name_of(model), most=_MOST_OF_TITLE))
        panels[0, 0].set_ylabel("accuracy")
        panels[1, 0].set_ylabel("samples")
        return shown_in_notebooks(figure)


def positive_class(scores: OneOrMore, *, looks: Sequence[Look] | None = None) -> Figure:
    """Of binary models, how often the answer is yes where P(y = 1) is given, with the interval of each bin."""
    models = [model for model in _as_list(scores) if model.positive is not None]
    if not models:
        raise ValueError("these scores hold no positive class: there is one where there are two classes")
    with themed():
        figure = Figure(figsize=(_PANEL_INCHES, 4.4), layout="constrained")
        axes = figure.subplots()
        perfect(axes)
        for model, look in _with_looks(models, looks):
            assert model.positive is not None  # noqa: S101
            label = legend_label(name_of(model)) if len(models) > 1 else None
            colour, symbol = look.colour, look.marker
            _accuracy_points(axes, model.positive, level=model.level, colour=colour, symbol=symbol, label=label)
        unit_square(axes)
        axes.set(xlabel="P(y = 1)", ylabel="frequency of y = 1")
        if len(models) > 1:
            axes.legend(loc="best")
        return figure


def recalibration(scores: Scores, *, look: Look = FIRST) -> Figure:
    """Reliability without and with temperature scaling, on samples that the temperature was not fitted on."""
    tried = scores.recalibration
    if tried is None:
        raise ValueError("these scores hold no recalibration: it is tried where predictions are scored from files")
    with themed():
        figure = Figure(figsize=(_PANEL_INCHES, 4.4), layout="constrained")
        axes = figure.subplots()
        perfect(axes)
        after = f"T = {tried.temperature:.2f}"
        _accuracy_points(axes, tried.bins_before, level=scores.level, colour=LIGHT.muted, symbol="x", label="as it is")
        _accuracy_points(
            axes, tried.bins_after, level=scores.level, colour=look.colour, symbol=look.marker,
            label=after,
        )  # fmt: skip
        unit_square(axes)
        axes.set(xlabel="confidence", ylabel="accuracy", title=shown(name_of(scores), most=_MOST_OF_TITLE))
        axes.legend(loc="best")
        return figure


def classwise(scores: Scores, *, error_limit: float | None = None, look: Look = FIRST) -> Figure:
    """Calibration error of the worst classes, with intervals and with the noise floor as a tick.

    The axis ends at `error_limit`, the largest error that is drawn; by default, that of this model.
    """
    rows, colour = worst_classes(scores), look.colour
    with themed():
        figure = Figure(figsize=(_PANEL_INCHES, 1.3 + 0.3 * len(rows)), layout="constrained")
        axes = figure.subplots()
        places = list(range(len(rows)))
        value, low, high = (
            [100 * part for part in column] for column in zip(*((r.ece, r.low, r.high) for r in rows), strict=True)
        )
        # A plug-in error is biased and may lie outside its interval: the bar is drawn by itself.
        axes.hlines(places, low, high, color=colour, linewidth=5, alpha=0.35, gid="interval", label="interval")
        axes.plot(value, places, look.marker, color=colour, gid="ece", label="ECE of the class")
        floor = [100 * row.floor for row in rows]
        axes.plot(
            floor, places, "|", color=LIGHT.ink, markersize=11, markeredgewidth=1.6, gid="floor", label="noise floor"
        )
        axes.set_yticks(places, [shown(row.name) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        from_zero(axes.set_xlim, 100 * (largest_class_error([scores]) if error_limit is None else error_limit))
        axes.grid(visible=False, axis="y")
        axes.set(xlabel="calibration error, %")
        # Over the figure: the names of classes may leave too little room above the axes.
        figure.suptitle(shown(name_of(scores), most=_MOST_OF_TITLE), fontsize=11)
        figure.legend(loc="outside lower center", ncols=3)
        return figure


def risk_coverage(scores: OneOrMore, *, risk: float = DEFAULT_RISK, looks: Sequence[Look] | None = None) -> Figure:
    """Error rate of what is accepted against how much is, with the point that accepts most at the chosen risk."""
    models = _as_list(scores)
    with themed():
        figure = Figure(figsize=(_PANEL_INCHES, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.axhline(risk, color=LIGHT.muted, linewidth=1, linestyle=":", gid="risk")
        for model, look in _with_looks(models, looks):
            curves = model.misclassification.curves
            curve(axes, curves["coverage"], curves["risk"], look, label=name_of(model), gid="risk_coverage")
            point = operating_point(model.misclassification, risk=risk, level=model.level)
            if point is not None:
                mark(axes, point.coverage, point.risk, look, gid="operating_point")
        axes.set(xlabel="share of samples accepted", ylabel="error rate of these", xlim=(0, 1))
        axes.set_ylim(bottom=0)
        percent_axes(axes)
        legend(axes, models)
        return figure


def detection(scores: OneOrMore, *, ood: str | None = None, looks: Sequence[Look] | None = None) -> Figure:
    """True against false positive rate of telling right from wrong, or in-distribution from OOD; FPR95 is marked."""
    models = _as_list(scores)
    with themed():
        figure = Figure(figsize=(_PANEL_INCHES, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=LIGHT.muted, linewidth=1, linestyle=":")
        axes.axhline(DEFAULT_TPR, color=LIGHT.muted, linewidth=1, linestyle=":")
        for model, look in _with_looks(models, looks):
            ranking, name = _ranking(model, ood), name_of(model)
            if math.isnan(ranking.estimates[Key.AUROC].value):
                # There are no rates of nothing, and a legend that passed over the model would seem to forget it.
                curve(axes, [], [], look, label=f"{name}: undefined", gid="undefined")
                continue
            false, true = ranking.curves["false_positive_rate"], ranking.curves["true_positive_rate"]
            curve(axes, [0.0, *false], [0.0, *true], look, label=name, gid="rates")
            mark(axes, ranking.estimates[Key.FPR_AT_TPR95].value, DEFAULT_TPR, look, gid="fpr95")
        if all(drawn.get_gid() != "rates" for drawn in axes.lines):
            axes.text(0.98, 0.05, "undefined: nothing to tell apart", ha="right", gid="undefined")
        title = "Right from wrong" if ood is None else f"In-distribution from {shown(ood, most=18)}"
        axes.set(xlabel="false positive rate", ylabel="true positive rate", title=title)
        unit_square(axes)
        legend(axes, models, location="lower right")
        return figure


def set_sizes(scores: OneOrMore, *, looks: Sequence[Look] | None = None) -> Figure:
    """How many labels prediction sets have, as shares of the samples; many labels in ranges that double."""
    models = _as_list(scores)
    with themed():
        figure = Figure(figsize=(_PANEL_INCHES, 4.0), layout="constrained")
        axes = figure.subplots()
        tried = [model.guarantees for model in models]
        longest = max((len(each.sizes) for each in tried if each is not None), default=0)
        width = 0.8 / len(models)
        for index, (model, look) in enumerate(_with_looks(models, looks)):
            if model.guarantees is None:
                raise ValueError("these scores hold no prediction sets: they are tried where files are scored")
            shares = size_shares(model.guarantees, largest=longest - 1)
            places = [place + (index - (len(models) - 1) / 2) * width for place in range(len(shares))]
            axes.bar(
                places, list(shares.values()), width=0.94 * width, color=look.colour, alpha=_FILL,
                label=legend_label(name_of(model)), gid="sizes",
            )  # fmt: skip
        crowded = sum(map(len, shares)) > _TICK_CHARACTERS
        axes.set_xticks(range(len(shares)), list(shares), rotation=30 * crowded)
        axes.yaxis.set_major_formatter(percent_ticks())
        axes.grid(visible=False, axis="x")
        axes.set(xlabel="labels in the set", ylabel="share of samples")
        if len(models) > 1:
            axes.margins(y=_LINE_OF_LEGEND * (len(models) + 1))
        legend(axes, models, location="best")
        return figure


def severity(scores: OneOrMore, *, looks: Sequence[Look] | None = None) -> Figure:
    """ECE over the corruptions at each severity, as boxes whose whiskers reach the extremes; clean samples at 0."""
    models = _as_list(scores)
    with themed():
        figure = Figure(figsize=(_PANEL_INCHES + 0.6 * len(models), 4.0), layout="constrained")
        axes = figure.subplots()
        width = 0.8 / len(models)
        for index, (model, look) in enumerate(_with_looks(models, looks)):
            colour, symbol = look.colour, look.marker
            for level, estimates in severities(model).items():
                place = level + (index - (len(models) - 1) / 2) * width
                values = [100 * estimate.value for _, estimate in estimates]
                box = box_of(values)
                statistics = {
                    "med": box.median, "q1": box.lower, "q3": box.upper, "whislo": box.lowest, "whishi": box.highest,
                }  # fmt: skip
                stroke = {"color": colour, "linewidth": 1.3}
                drawn = axes.bxp(
                    [statistics], positions=[place], widths=0.7 * width, showfliers=False, manage_ticks=False,
                    boxprops=stroke, whiskerprops=stroke, capprops=stroke,
                    medianprops={"color": colour, "linewidth": 2.5},
                )  # fmt: skip
                drawn["medians"][0].set_gid(f"median {index} {level}")
                axes.plot([place] * len(values), values, symbol, color=colour, markersize=3.5, alpha=0.6,
                          gid=f"ece {index} {level}")  # fmt: skip
            axes.plot([], [], symbol, color=colour, label=legend_label(name_of(model)))
        levels = sorted({level for model in models for level in severities(model)})
        axes.set_xticks(levels, ["clean" if level == 0 else str(level) for level in levels])
        axes.set_ylim(bottom=0)
        axes.grid(visible=False, axis="x")
        axes.set(xlabel="severity of the corruption", ylabel="ECE, %")
        legend(axes, models, location="upper left")
        return figure


def forest(evaluation: Evaluation, difference: Difference) -> Figure:
    """What differs between two models, with intervals, better to the right; each row has a scale of its own.

    Beyond chance, markers point to better or worse and have its colour; what is undecided is a grey circle. Rows have
    the same scale in the plots of all models that are compared with the same one.
    """
    rows = contrasts(evaluation, difference)
    names = (name_of(evaluation.models[index]) for index in (difference.second, difference.first))
    with themed():
        figure = Figure(figsize=(_FOREST_INCHES, 1.3 + 0.36 * max(1, len(rows))), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color=LIGHT.ink, linewidth=1)
        colours = {"better": LIGHT.better, "worse": LIGHT.worse, "undecided": LIGHT.muted}
        for place, row in enumerate(rows):
            (symbol, width), colour = _STATES[row.state], colours[row.state]
            low, value, high = (
                row.toward * part / row.limit if row.limit else 0.0
                for part in (row.estimate.low, row.estimate.value, row.estimate.high)
            )
            axes.hlines(place, low, high, color=colour, linewidth=width, gid=f"interval {row.title}")
            face = LIGHT.paper if row.state == "undecided" else colour
            axes.plot([value], [place], symbol, color=colour, markerfacecolor=face, markersize=8, gid=row.title)
            decimals = 2 if row.info.scale > 1 else 3
            text = f"{row.info.scale * row.estimate.value:+.{decimals}f} {row.info.unit}"
            beside = axes.get_yaxis_transform()
            axes.text(1.03, place, text, transform=beside, va="center", color=colour, fontsize=9, gid="difference")
        axes.set_yticks(range(len(rows)), [shown(row.title, most=26) for row in rows])
        axes.tick_params(length=0)
        axes.set(xlim=(-1.08, 1.08), ylim=(max(1, len(rows)) - 0.5, -0.5), xticks=[])
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.grid(visible=False)
        for x, side, text, colour in ((0, "left", "◀ worse", LIGHT.worse), (1, "right", "better ▶", LIGHT.better)):
            axes.text(x, 1.01, text, transform=axes.transAxes, ha=side, va="bottom", color=colour, fontsize=9)
        figure.suptitle(" minus ".join(shown(name, most=20) for name in names), fontsize=11)
        return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, SVG or PDF, told by the suffix; the same figure always gives the same bytes."""
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(f"a figure is written as {', '.join(_FORMATS)}, not {Path(path).name!r}")
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
    with drawing():
        figure.savefig(path, dpi=200, metadata=metadata)


def as_svg(figure: Figure) -> str:
    """The figure as SVG without a background."""
    target = io.StringIO()
    with drawing():
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    return target.getvalue()


def _as_list(scores: OneOrMore) -> list[Scores]:
    models = [scores] if isinstance(scores, Scores) else list(scores)
    if not models:
        raise ValueError("there are no scores to draw")
    return models


def _with_looks(models: list[Scores], looks: Sequence[Look] | None) -> list[tuple[Scores, Look]]:
    return list(zip(models, map(Look, range(len(models))) if looks is None else looks, strict=True))


def _ranking(scores: Scores, ood: str | None) -> RankingScores:
    if ood is None:
        return scores.misclassification
    if ood not in scores.ood:
        raise ValueError(f"no OOD samples {ood!r}; there are {', '.join(scores.ood) or 'none'}")
    return scores.ood[ood]


def _diagram(axes: Axes, table: BinTable, *, level: float, look: Look) -> None:
    bins = reliability_bins(table, level=level)
    axes.bar(
        [row.lower for row in bins], [row.accuracy for row in bins], width=[row.upper - row.lower for row in bins],
        align="edge", color=look.colour, alpha=_FILL, edgecolor=LIGHT.paper, linewidth=0.8, gid="bars",
    )  # fmt: skip
    perfect(axes)
    _accuracy_points(axes, table, level=level, colour=look.colour, symbol=look.marker, label=None)
    unit_square(axes)
    axes.tick_params(labelbottom=False)


def _accuracy_points(axes: Axes, table: BinTable, *, level: float, colour: str, symbol: str, label: str | None) -> None:
    bins = reliability_bins(table, level=level)
    x, y = [row.confidence for row in bins], [row.accuracy for row in bins]
    axes.vlines(x, [row.low for row in bins], [row.high for row in bins], color=colour, linewidth=1.3, gid="interval")
    axes.plot(x, y, symbol, color=colour, markersize=5, clip_on=False, gid="accuracy", label=label)


def _histogram(axes: Axes, scores: Scores, *, limit: float, look: Look) -> None:
    bins, colour = reliability_bins(scores.top_label, level=scores.level), look.colour
    axes.bar(
        [row.lower for row in bins], [row.share for row in bins], width=[row.upper - row.lower for row in bins],
        align="edge", color=colour, alpha=_FILL, edgecolor=LIGHT.paper, linewidth=0.8, gid="histogram",
    )  # fmt: skip
    accuracy = scores[Key.ACCURACY].value
    confidence = accuracy + scores[Key.MEAN_GAP].value
    axes.axvline(accuracy, color=colour, gid="accuracy", label=f"accuracy {accuracy:.1%}")
    axes.axvline(
        confidence,
        color=LIGHT.ink,
        linestyle="--",
        gid="confidence",
        label=f"average confidence {confidence:.1%}",
    )
    axes.set(xlabel="confidence", xlim=(0, 1))
    from_zero(axes.set_ylim, limit)
    percent_axes(axes)
    # Below the axis: inside, bars and lines would run through the words.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.5), ncols=2, columnspacing=1.2, handlelength=1.6)
