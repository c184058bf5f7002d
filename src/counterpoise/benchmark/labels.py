"""Names beside the points of a figure, placed so that they do not lie on each other."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox

Point = tuple[float, float, str, str]
"""Place in the units of the axes, name, colour."""

_NEAR = 7
_DISTANCES = (_NEAR, 14, 24, 36, 50, 66, 84, 104)
_DIRECTIONS = 16
_POINTS_PER_INCH = 72
_MARK = 5
"""Half the width of a mark, in points; with some room."""


def label_points(figure: Figure, axes: Axes, points: Sequence[Point], *, paper: str) -> None:
    """Write the name of each point at the nearest place that is free, with a thin line to it where that is far.

    The axes must have their limits. Where no place is free, the one that covers least is taken. Letters have an edge in
    the colour of the paper, because lines of other points may run through them.
    """
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    scale = figure.dpi / _POINTS_PER_INCH
    centres = [axes.transData.transform((x, y)).tolist() for x, y, _, _ in points]
    taken = [_box(x, y, 2 * _MARK * scale, 2 * _MARK * scale) for x, y in centres]
    for (x, y, name, colour), centre in zip(points, centres, strict=True):
        text = axes.annotate(
            name, (x, y), textcoords="offset points", xytext=(0, 0), fontsize=8.5, color=colour, ha="center",
            va="center", gid=f"label {name}", arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6},
            path_effects=[withStroke(linewidth=2.5, foreground=paper)],
        )  # fmt: skip
        text.set_in_layout(False)
        size = Text.get_window_extent(text)  # an annotation's own would hold its line as well
        place, is_near = _free_place(centre, size.width, size.height, taken, axes.bbox, scale=scale)
        taken.append(place)
        text.xyann = ((place.x0 + place.x1) / 2 - centre[0]) / scale, ((place.y0 + place.y1) / 2 - centre[1]) / scale
        if is_near and text.arrow_patch is not None:
            text.arrow_patch.set_visible(False)


def _free_place(
    centre: Sequence[float], width: float, height: float, taken: Sequence[Bbox], around: Bbox, *, scale: float
) -> tuple[Bbox, bool]:
    """The nearest box that covers nothing, else the one that covers least; and whether it is right beside the point."""
    least, best = math.inf, (Bbox.null(), False)
    for distance in _DISTANCES:
        for step in range(_DIRECTIONS):
            angle = 2 * math.pi * step / _DIRECTIONS
            # The nearest edge of the text, and not its middle, is at that distance.
            place = _box(
                centre[0] + math.cos(angle) * (distance * scale + width / 2),
                centre[1] + math.sin(angle) * (distance * scale + height / 2),
                width,
                height,
            )
            covered = sum(_overlap(place, other) for other in taken) + width * height - _overlap(place, around)
            if covered < least:
                least, best = covered, (place, distance == _NEAR)
        if least < 1:
            break
    return best


def _box(x: float, y: float, width: float, height: float) -> Bbox:
    return Bbox.from_bounds(x - width / 2, y - height / 2, width, height)


def _overlap(first: Bbox, second: Bbox) -> float:
    shared = Bbox.intersection(first, second)
    return 0.0 if shared is None else shared.width * shared.height
