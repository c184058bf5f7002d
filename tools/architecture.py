"""The drawing of the rooms and their imports, `docs/_static/architecture.svg`: `python -m tools.architecture`.

Rooms come from the layers in `pyproject.toml`, imports from the sources. An import that follows from others is left
out: a room that imports `scoring`, which imports `metrics`, may import `metrics` as well.
"""

import argparse
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import grimp
import matplotlib as mpl
from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "_static" / "architecture.svg"
LIBRARY, STUDY = "counterpoise", "counterpoise_study"
SWEEPS = 24
"""Passes down and up that put rooms beside those they import; a few settle so small a graph."""
LINE, DARK, LIGHT = "#8a94a6", "#2f4a75", "#eaf0f8"
ROOM_WIDTH, ROUTE_WIDTH = 1.3, 0.5
"""Room for a box, and for a line that passes a row."""

Imports = Mapping[str, frozenset[str]]
"""By room: the rooms that it imports."""


class Node(NamedTuple):
    """A room's box, which leads to itself, or where the line from a room to one that it imports passes a row."""

    room: str
    target: str
    row: int

    @property
    def width(self) -> float:
        return ROOM_WIDTH if self.room == self.target else ROUTE_WIDTH


def rooms() -> list[str]:
    """The rooms of the library, lowest layer first."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (each for each in document["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    return [room.strip() for layer in reversed(contract["layers"]) for room in layer.split("|")]


def imports() -> Imports:
    """What each room imports directly; last the study, which is a distribution of its own."""
    graph = grimp.build_graph(LIBRARY, STUDY)
    packages = {room: f"{LIBRARY}.{room}" for room in rooms()} | {STUDY: STUDY}
    owner = {
        module: room for room, package in packages.items() for module in (package, *graph.find_descendants(package))
    }
    found: dict[str, set[str]] = {room: set() for room in packages}
    for module, room in owner.items():
        found[room] |= {owner[other] for other in graph.find_modules_directly_imported_by(module) if other in owner}
    return {room: frozenset(others - {room}) for room, others in found.items()}


def reduced(found: Imports) -> Imports:
    """Without imports that follow from others.

    >>> reduced({"a": frozenset(), "b": frozenset("a"), "c": frozenset("ab")})["c"]
    frozenset({'b'})
    """
    reached: dict[str, frozenset[str]] = {}
    for room in found:  # in an order in which a room comes after those it imports
        reached[room] = frozenset[str]().union(*(reached[other] | {other} for other in found[room]))
    return {
        room: frozenset(other for other in others if not any(other in reached[via] for via in others))
        for room, others in found.items()
    }


def rows_of(found: Imports) -> list[list[Node]]:
    """Rooms by the longest chain of imports below them, and routes of the lines that pass a row."""
    level: dict[str, int] = {}
    for room, others in found.items():
        level[room] = max((level[other] + 1 for other in others), default=0)
    rows: list[list[Node]] = [[] for _ in range(max(level.values()) + 1)]
    for room, others in found.items():
        rows[level[room]].append(Node(room, room, level[room]))
        for other in sorted(others):
            for row in range(level[other] + 1, level[room]):
                rows[row].append(Node(room, other, row))
    return rows


def lines_of(found: Imports, rows: Sequence[Sequence[Node]]) -> list[list[Node]]:
    """Each import as the nodes that its line goes through, from the importing room to the imported one."""
    nodes = [node for row in reversed(rows) for node in row]
    return [
        [node for node in nodes if (node.room, node.target) in ((room, room), (room, other), (other, other))]
        for room, others in found.items()
        for other in sorted(others)
    ]


def places(rows: Sequence[list[Node]], lines: Sequence[Sequence[Node]]) -> dict[Node, float]:
    """How far to the right each node is: near the mean of its neighbours, in turn from both sides."""
    neighbours: dict[Node, list[Node]] = {node: [] for row in rows for node in row}
    for line in lines:
        for one, other in pairwise(line):
            neighbours[one].append(other)
            neighbours[other].append(one)
    place = {node: float(index) for row in rows for index, node in enumerate(row)}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else list(rows)[::-1]:
            wanted = {node: mean([place[other] for other in neighbours[node]] or [place[node]]) for node in row}
            place |= dict(_apart(sorted(row, key=lambda node: (wanted[node], str(node))), wanted))
    return place


def _apart(row: Sequence[Node], wanted: Mapping[Node, float]) -> Iterator[tuple[Node, float]]:
    """Nodes in this order, as near to where they want to be as their widths allow."""
    edges, edge = [], 0.0
    for node in row:
        edges.append(edge + node.width / 2)
        edge += node.width
    shifts = [wanted[node] - at for node, at in zip(row, edges, strict=True)]
    # The closest shifts that never fall from left to right: neighbours that would collide move as one.
    blocks: list[list[float]] = []
    for shift in shifts:
        blocks.append([shift])
        while len(blocks) > 1 and mean(blocks[-2]) > mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    spread = [mean(block) for block in blocks for _ in block]
    return zip(row, (at + shift for at, shift in zip(edges, spread, strict=True)), strict=True)


def draw(found: Imports) -> Figure:
    """Rooms as boxes, those that import nothing at the top; a line leads up to what a room imports."""
    shown = reduced(found)
    rows = rows_of(shown)
    lines = lines_of(shown, rows)
    right = places(rows, lines)
    figure = Figure(figsize=(8, 0.85 * len(rows)), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for line in lines:
        axes.plot([right[node] for node in line], [node.row for node in line], color=LINE, linewidth=1.1, zorder=1)
    for node in right:
        if node.room == node.target:
            ink, paper = (LIGHT, DARK) if node.room == STUDY else (DARK, LIGHT)
            box = {"boxstyle": "round,pad=0.45", "facecolor": paper, "edgecolor": DARK}
            axes.text(
                right[node], node.row, node.room, color=ink, bbox=box, ha="center", va="center", fontsize=10, zorder=2
            )
    axes.set_xlim(min(right.values()) - ROOM_WIDTH / 1.5, max(right.values()) + ROOM_WIDTH / 1.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_axis_off()
    return figure


def main() -> None:
    """Draw the picture."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with mpl.rc_context({"svg.hashsalt": LIBRARY}):
        draw(imports()).savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
