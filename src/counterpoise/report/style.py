"""Colours and settings of the figures, light and dark."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl

Line = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Theme:
    """Colours of a figure; `series` are told apart by people with any kind of colour vision (Okabe and Ito)."""

    ink: str
    muted: str
    grid: str
    paper: str
    fill: str
    series: tuple[str, ...]

    def colour(self, index: int) -> str:
        """Of one of several models."""
        return self.series[index % len(self.series)]


LIGHT = Theme(
    ink="#1b1f24",
    muted="#667080",
    grid="#e3e7ec",
    paper="#ffffff",
    fill="#cfe0ee",
    series=("#0072b2", "#d55e00", "#009e73", "#b0568f", "#a37500", "#3d8fc4"),
)
DARK = Theme(
    ink="#e6e9ee",
    muted="#98a2b3",
    grid="#2c333d",
    paper="#14181d",
    fill="#27415a",
    series=("#5ab4ec", "#f4935a", "#3fc9a0", "#e3a1cb", "#e9bd4b", "#9ccff2"),
)
THEMES = {"light": LIGHT, "dark": DARK}

_MARKERS = ("o", "s", "^", "D", "v", "P")
_LINES: tuple[Line, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))


def marker(index: int) -> str:
    """Of one of several models; with the colour, a model looks like another only after 36."""
    return _MARKERS[(index + index // len(_MARKERS)) % len(_MARKERS)]


def line(index: int) -> Line:
    """The same for lines."""
    return _LINES[(index + index // len(_LINES)) % len(_LINES)]


@contextmanager
def themed(theme: Theme) -> Iterator[None]:
    """Matplotlib with the settings of the theme; names are shown as they are, never read as formulas."""
    settings: Any = {  # its stub lists every key of every version
        "axes.axisbelow": True,
        "axes.edgecolor": theme.muted,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.labelcolor": theme.ink,
        "axes.labelsize": 10,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": theme.ink,
        "axes.titlesize": 11,
        "figure.facecolor": theme.paper,
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "grid.color": theme.grid,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "legend.labelcolor": theme.ink,
        "lines.linewidth": 1.8,
        "svg.fonttype": "path",
        "svg.hashsalt": "counterpoise",
        "text.color": theme.ink,
        "text.parse_math": False,
        "text.usetex": False,
        "xtick.color": theme.muted,
        "xtick.labelcolor": theme.ink,
        "ytick.color": theme.muted,
        "ytick.labelcolor": theme.ink,
    }
    with mpl.rc_context(settings):
        yield
