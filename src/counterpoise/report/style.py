"""Colours and settings of figures and pages, light and dark."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

Line = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Theme:
    """Colours of figures and pages.

    Those of `series` can be told apart with any kind of colour vision, and so can better, worse and `muted`, which is
    neither: a test simulates it.
    """

    ink: str
    muted: str
    grid: str
    paper: str
    card: str
    accent: str
    warn: str
    better: str
    worse: str
    series: tuple[str, ...]

    def colour(self, index: int) -> str:
        return self.series[index % len(self.series)]

    @property
    def colours(self) -> dict[str, str]:
        single = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "series"}
        return single | {f"s{index}": colour for index, colour in enumerate(self.series)}

    def variables(self) -> str:
        """The colours as custom properties of a style sheet."""
        return " ".join(f"--{name}: {colour};" for name, colour in self.colours.items())


LIGHT = Theme(
    ink="#1b1f24",
    muted="#5b6472",
    grid="#dfe4ea",
    paper="#ffffff",
    card="#f5f7f9",
    accent="#0072b2",
    warn="#a34700",
    better="#0072b2",
    worse="#c1121f",
    series=("#0072b2", "#d55e00", "#00543f", "#a97282", "#3b2a8c", "#38a660"),
)
DARK = Theme(
    ink="#e6e9ee",
    muted="#a3adbb",
    grid="#333b46",
    paper="#14181d",
    card="#1c2229",
    accent="#5ab4ec",
    warn="#f4935a",
    better="#5ab4ec",
    worse="#ff6b5e",
    series=("#5ab4ec", "#f4935a", "#188c76", "#f6bad3", "#8c6de2", "#f2ec71"),
)
_DARK_OF = dict(zip(LIGHT.colours.values(), DARK.colours.values(), strict=True))

_MARKERS = ("o", "s", "^", "D", "v", "P")
_GLYPHS = dict(zip(_MARKERS, "●■▲◆▼✚", strict=True))
_LINES: tuple[Line, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))


@dataclass(frozen=True)
class Look:
    """How a model looks in every figure, by its place among all models."""

    place: int

    @property
    def colour(self) -> str:
        return LIGHT.colour(self.place)

    @property
    def marker(self) -> str:
        return marker(self.place)

    @property
    def line(self) -> Line:
        return line(self.place)

    @property
    def glyph(self) -> str:
        return _GLYPHS[self.marker]


def marker(index: int) -> str:
    """Of one of several models; with the colour, a model looks like another only after 36."""
    return _MARKERS[(index + index // len(_MARKERS)) % len(_MARKERS)]


def line(index: int) -> Line:
    """The same for lines."""
    return _LINES[(index + index // len(_LINES)) % len(_LINES)]


def in_dark(drawing: str) -> str:
    """An SVG file that has the colours of `LIGHT`, with those of `DARK`. Drawing it again takes much longer.

    >>> in_dark('<path style="fill: #1b1f24; stroke: #123456"/>')
    '<path style="fill: #e6e9ee; stroke: #123456"/>'
    """
    return re.sub("#[0-9a-f]{6}", lambda found: _DARK_OF.get(found[0], found[0]), drawing)


@contextmanager
def themed() -> Iterator[None]:
    """Matplotlib with the settings of all figures; names are shown as they are, never read as formulas."""
    settings: Any = {  # its stub lists every key of every version
        "axes.axisbelow": True,
        "axes.edgecolor": LIGHT.muted,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.labelcolor": LIGHT.ink,
        "axes.labelsize": 10,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": LIGHT.ink,
        "axes.titlesize": 11,
        "figure.facecolor": LIGHT.paper,
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "grid.color": LIGHT.grid,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "legend.labelcolor": LIGHT.ink,
        "lines.linewidth": 1.8,
        "svg.fonttype": "path",
        "svg.hashsalt": "counterpoise",
        "text.color": LIGHT.ink,
        "text.parse_math": False,
        "text.usetex": False,
        "xtick.color": LIGHT.muted,
        "xtick.labelcolor": LIGHT.ink,
        "ytick.color": LIGHT.muted,
        "ytick.labelcolor": LIGHT.ink,
    }
    import matplotlib as mpl  # colours and names are asked for without it

    with mpl.rc_context(settings):
        yield


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib while a figure is written."""
    with themed(), warnings.catch_warnings():
        # A name may hold characters that the font has not, or a script that it cannot set; they are shown as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support .* natively")
        yield
