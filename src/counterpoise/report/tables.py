"""Tables of plain text cells, and their four written forms: text, Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise._text import printable, shown, width_of, wrapped

MOST_COLUMNS = 100
"""Where nobody says how wide a screen is, and of prose on any screen."""

BETTER, WORSE = "*", "!"
"""Marks of cells in text."""

_CELL_GAP = 2
_MOST_OF_HEAD, _LEAST_OF_NAME = 34, 16
_BOLD, _GREEN, _RED = "1", "1;32", "1;31"
# What begins a formula, at the start or after what some spreadsheets take for the end of a cell; full width as well.
_FORMULA = re.compile(r"(^|[;|])(\W*?)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    # After the end of a row, these would be read as its options.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}


@dataclass(frozen=True)
class Cell:
    """Text, and what it is: best, second best or worse among what it is compared with, a part of what is above it.

    On a page, `heat` is the shade behind it: 0 is none.
    """

    text: str
    best: bool = False
    part: bool = False
    second: bool = False
    worse: bool = False
    heat: int = 0


@dataclass(frozen=True)
class Table:
    """A title, the heads of the columns, and rows; a row of one cell is a heading inside the table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    """A table in which nothing is best."""
    return Table(title, columns, tuple(tuple(Cell(text) for text in row) for row in rows))


def as_text(source: Table, *, width: int = MOST_COLUMNS, colour: bool = False) -> str:
    """Aligned columns, at most `width` wide: columns that do not fit follow below, with the first one repeated.

    Numbers are never cut, but names are. Better and worse are marked, and with `colour` green and red as well.
    """
    full = [row for row in source.rows if len(row) == len(source.columns)]
    names = [printable(source.columns[0]), *(printable(row[0].text) for row in full)]
    longest = max(map(width_of, names))
    most_of_head = max(_LEAST_OF_NAME, min(_MOST_OF_HEAD, width - 2 * _CELL_GAP - longest))
    most = width - _LEAST_OF_NAME - 2 * _CELL_GAP
    columns = [
        _Column.of(head, [row[place] for row in full], most=most, most_of_head=most_of_head)
        for place, head in enumerate(source.columns)
    ][1:]
    first = min(longest, width - _CELL_GAP - max((column.width for column in columns), default=0))
    blocks = []
    while columns:
        taken, used = 1, first + _CELL_GAP + columns[0].width
        while taken < len(columns) and used + _CELL_GAP + columns[taken].width <= width:
            used += _CELL_GAP + columns[taken].width
            taken += 1
        chosen, place = columns[:taken], len(source.columns) - len(columns)
        columns = columns[taken:]
        head = shown(source.columns[0], most=first)
        lines = [(" " * _CELL_GAP).join([head + _spaces(head, first), *(column.head for column in chosen)])]
        for row in source.rows:
            if len(row) == 1:
                lines.append(_painted(shown(row[0].text, most=width), _BOLD, colour))
                continue
            cells = row[place : place + taken]
            name = shown(row[0].text, most=first)
            parts = [column.text(cell, colour=colour) for column, cell in zip(chosen, cells, strict=True)]
            lines.append((" " * _CELL_GAP).join([name + _spaces(name, first), *parts]))
        blocks.append("\n".join(line.rstrip() for line in lines))
    title = _painted(wrapped(source.title, width), _BOLD, colour) if source.title else ""
    return "\n\n".join(filter(None, (title, *blocks)))


@dataclass(frozen=True)
class _Column:
    """How a column is written: its head, its width, and whether it has room for marks."""

    head: str
    width: int
    marked: bool

    @classmethod
    def of(cls, head: str, cells: Sequence[Cell], *, most: int, most_of_head: int) -> "_Column":
        marked = any(cell.best or cell.worse for cell in cells)
        wide = min(most, max((width_of(printable(cell.text)) for cell in cells), default=0))
        name = shown(head, most=max(wide, min(most, most_of_head)))
        wide = max(wide, width_of(name))
        return cls(_spaces(name, wide) + name + "  " * marked, wide + 2 * marked, marked)

    def text(self, cell: Cell, *, colour: bool) -> str:
        most = self.width - 2 * self.marked
        text = shown(cell.text, most=most)
        mark = BETTER if cell.best else WORSE if cell.worse else " "
        style = _GREEN if cell.best else _RED if cell.worse else ""
        return _spaces(text, most) + _painted(f"{text} {mark}" if self.marked else text, style, colour)


def _painted(text: str, style: str, colour: bool) -> str:  # noqa: FBT001
    return f"\x1b[{style}m{text}\x1b[0m" if colour and style else text


def as_markdown(source: Table) -> str:
    """A pipe table; marks in the texts are escaped, the best is bold and the second best in italics."""
    lines = [f"**{_markdown(source.title)}**", ""] if source.title else []
    lines += [
        _pipes([_markdown(head) for head in source.columns]),
        _pipes(["---", *["---:"] * (len(source.columns) - 1)]),
    ]
    for row in source.rows:
        cells = [_markdown_cell(cell, heading=len(row) == 1) for cell in row]
        lines.append(_pipes(cells + [""] * (len(source.columns) - len(cells))))
    return "\n".join(lines)


def as_latex(source: Table) -> str:
    """A `tabular` for the booktabs package; the best is bold and the second best underlined."""
    columns = len(source.columns)
    lines = [f"% {_latex(source.title)}"] if source.title else []
    lines += [rf"\begin{{tabular}}{{l{'r' * (columns - 1)}}}", r"\toprule"]
    lines.append(" & ".join(_latex(head) for head in source.columns) + r" \\")
    lines.append(r"\midrule")
    for row in source.rows:
        if len(row) == 1:
            lines.append(rf"\multicolumn{{{columns}}}{{l}}{{\textit{{{_latex(row[0].text)}}}}} \\")
        else:
            lines.append(" & ".join(map(_latex_cell, row)) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def as_csv(columns: tuple[str, ...], rows: list[tuple[str | float | None, ...]]) -> str:
    """Comma-separated values.

    Numbers are in full: `float(cell)` gives them back, `nan` where a metric is undefined and `inf` where it is
    infinite; None is an empty cell. Text is one line, with a quote in front of what a spreadsheet would take for a
    formula.
    """
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([_harmless(column) for column in columns])
    for row in rows:
        writer.writerow(
            [_harmless(cell) if isinstance(cell, str) else "" if cell is None else repr(float(cell)) for cell in row]
        )
    return target.getvalue()


def _harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula.

    >>> _harmless("=1+1"), _harmless("cat")
    ("'=1+1", 'cat')
    """
    return _FORMULA.sub(r"\1'\2", printable(text))


def _spaces(text: str, width: int) -> str:
    return " " * (width - width_of(text))


def _pipes(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Cell, *, heading: bool) -> str:
    mark = "**" if cell.best or heading else "*" if cell.second else ""
    return f"{mark}{_markdown(cell.text)}{mark}"


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.best else rf"\underline{{{text}}}" if cell.second else text


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~!&$:{}])", r"\\\1", " ".join(printable(text).split()))


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(printable(text).split()))
