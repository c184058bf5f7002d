"""Names beside the points of a figure, placed so that they do not lie on each other."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox, BboxBase

Point = tuple[float, float, str, str]
"""Place in the units of the axes, name, colour."""
Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in pixels."""

_NEAR = 7
_DISTANCES = (_NEAR, 14, 24, 36, 50, 66, 84, 104)
_DIRECTIONS = 16
_POINTS_PER_INCH = 72
_MARK = 5
"""Half the width of a mark, in points; with some room."""
_LINE = 2.5
"""Width of a line, in points; the same."""
_HIDES = 10.0
"""How much worse it is to cover a square point of a mark or a name than one of a line."""
_AWAY = 3.0
"""How many square points of a line may be covered to be a point nearer."""


def label_points(figure: Figure, axes: Axes, points: Sequence[Point], *, paper: str) -> None:
    """Write the name of each point at the best place near it, with a thin line to it where that is not right beside it.

    The axes must have their limits, and the lines that names should leave free (`hlines` and `vlines`). No mark and no
    other name is covered where there is any place for that; lines are, if the next free place is far. Letters have an
    edge in the colour of the paper, because lines may run through them.
    """
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    scale = figure.dpi / _POINTS_PER_INCH
    centres = [axes.transData.transform((x, y)).tolist() for x, y, _, _ in points]
    taken = [_box(x, y, 2 * _MARK * scale, 2 * _MARK * scale) for x, y in centres]
    lines = [
        _edges(Bbox(axes.transData.transform(segment)).padded(_LINE * scale / 2))
        for collection in axes.collections
        if isinstance(collection, LineCollection)
        for segment in collection.get_segments()
    ]
    around = _edges(axes.bbox)
    for (x, y, name, colour), centre in zip(points, centres, strict=True):
        text = axes.annotate(
            name, (x, y), textcoords="offset points", xytext=(0, 0), fontsize=8.5, color=colour, ha="center",
            va="center", gid=f"label {name}", arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6},
            path_effects=[withStroke(linewidth=2.5, foreground=paper)],
        )  # fmt: skip
        text.set_in_layout(False)
        size = Text.get_window_extent(text)  # an annotation's own would hold its line as well
        places = _places(centre, size.width, size.height, scale=scale)
        costs = [_cost(*each, taken=taken, lines=lines, around=around, scale=scale) for each in places]
        place, distance = places[costs.index(min(costs))]
        taken.append(place)
        left, bottom, right, top = place
        text.xyann = ((left + right) / 2 - centre[0]) / scale, ((bottom + top) / 2 - centre[1]) / scale
        if distance == _NEAR and text.arrow_patch is not None:
            text.arrow_patch.set_visible(False)


def _places(centre: Sequence[float], width: float, height: float, *, scale: float) -> list[tuple[Box, int]]:
    """Boxes around a point, each with the distance of its nearest edge in points."""
    return [
        (
            _box(
                centre[0] + math.cos(angle) * (distance * scale + width / 2),
                centre[1] + math.sin(angle) * (distance * scale + height / 2),
                width,
                height,
            ),
            distance,
        )
        for distance in _DISTANCES
        for angle in (2 * math.pi * step / _DIRECTIONS for step in range(_DIRECTIONS))
    ]


def _cost(place: Box, distance: int, *, taken: Sequence[Box], lines: Sequence[Box], around: Box, scale: float) -> float:
    """What a place covers, in square points, and how far it is."""
    hidden = sum(_overlap(place, other) for other in taken) + _overlap(place, place) - _overlap(place, around)
    crossed = sum(_overlap(place, line) for line in lines)
    return (_HIDES * hidden + crossed) / scale**2 + _AWAY * distance


def _box(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _edges(box: BboxBase) -> Box:
    return box.x0, box.y0, box.x1, box.y1


def _overlap(first: Box, second: Box) -> float:
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(0.0, width) * max(0.0, height)
