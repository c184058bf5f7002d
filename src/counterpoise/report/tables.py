"""Tables of plain text cells, and their four written forms: text, Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise._text import printable, shown, width_of
from counterpoise.metrics.scores import MOST_COLUMNS

_CELL_GAP = 2
_MOST_OF_HEAD = 34
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
    """Text, and what it is: best, second best or worse among what it is compared with, a part of what is above it."""

    text: str
    best: bool = False
    part: bool = False
    second: bool = False
    worse: bool = False


@dataclass(frozen=True)
class Table:
    """A title, the heads of the columns, and rows; a row of one cell is a heading inside the table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    """A table in which nothing is best."""
    return Table(title, columns, tuple(tuple(Cell(text) for text in row) for row in rows))


def as_text(source: Table, *, width: int = MOST_COLUMNS) -> str:
    """Aligned columns, at most `width` wide: columns that do not fit follow below, with the first one repeated."""
    rows = [tuple(_text(cell, most=width // 2 - 2 * _CELL_GAP) for cell in row) for row in source.rows]
    heads = tuple(shown(head, most=_MOST_OF_HEAD) for head in source.columns)
    full = [row for row in (heads, *rows) if len(row) == len(heads)]
    widths = [max(width_of(row[index]) for row in full) for index in range(len(heads))]
    first = max(widths[0], *(width_of(row[0]) for row in rows if len(row) == 1), 0)
    blocks = []
    rest = list(range(1, len(heads)))
    while rest:
        chosen: list[int] = []
        used = first
        while rest and (not chosen or used + _CELL_GAP + widths[rest[0]] <= width):
            used += _CELL_GAP + widths[rest[0]]
            chosen.append(rest.pop(0))
        lines = []
        for row in (heads, *rows):
            others = [f"{_spaces(row[index], widths[index])}{row[index]}" for index in chosen if len(row) > 1]
            lines.append((" " * _CELL_GAP).join([f"{row[0]}{_spaces(row[0], first)}", *others]).rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(filter(None, (shown(source.title, most=width), *blocks)))


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


def _text(cell: Cell, *, most: int) -> str:
    return f"{shown(cell.text, most=most)} *" if cell.best else shown(cell.text, most=most)


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
