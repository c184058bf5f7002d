"""The report of a store as files: a page, Markdown with figures beside it, and tables for LaTeX."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from counterpoise._files import write_text
from counterpoise.report.figures import save_figure
from counterpoise.report.tables import as_latex, as_markdown
from counterpoise_study.cells import Cell
from counterpoise_study.collected import page_of
from counterpoise_study.html_page import render
from counterpoise_study.sections import Document, Section, document_of
from counterpoise_study.store import Store
from counterpoise_study.tables import Linked

FIGURES = "figures"
FORMATS = ("png", "svg")


def write_report(
    store: Store,
    *,
    studies: Sequence[str] = (),
    out: Path | None = None,
    html: bool = True,
    markdown: bool = False,
    latex: bool = False,
) -> list[Path]:
    """Write what a store holds, as far as it is finished; the same contents always give the same bytes.

    Args:
        store: of the runs.
        studies: that are shown; by default all that were asked for.
        out: folder to write to; by default the store's own.
        html: write `report.html`.
        markdown: write `report.md`, and the figures as PNG and SVG into `figures`.
        latex: write `report.tex`, the tables alone.

    Returns:
        The files.
    """
    folder = store.path if out is None else out
    document = document_of(store, studies=studies, address=lambda cell: _address(store, cell, folder))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if html:
        written.append(_write(folder / "report.html", render(document)))
    if markdown:
        written += _write_figures(folder / FIGURES, document)
        written.append(_write(folder / "report.md", as_markdown_text(document)))
    if latex:
        written.append(_write(folder / "report.tex", as_latex_text(document)))
    return written


def as_markdown_text(document: Document) -> str:
    """Everything but the runs one by one; figures are linked."""
    lines = [f"# {document.title}", document.lead, f"**Scale {document.scale}.**", *document.text]
    for section in document.sections:
        lines += [f"## {section.title}", f"{section.progress}.", section.text, section.caption]
        lines += [f"![{drawing.alt}]({FIGURES}/{drawing.name}.svg)" for drawing in section.drawings]
        for table in _tables(section):
            lines += [as_markdown(table.table), table.note]
    lines += ["## Where the numbers come from", as_markdown(document.provenance.table)]
    return "\n\n".join(filter(None, lines)) + "\n"


def as_latex_text(document: Document) -> str:
    """The tables, for the booktabs package; what is to be known of each stands in comments above it."""
    needs = r"booktabs; the widest tables need \scriptsize on a landscape page"
    lines = [f"% {document.title}. Scale {document.scale}.", f"% Needs the package {needs}."]
    for section in document.sections:
        lines += ["", f"% {section.title}: {section.progress}. {section.caption}"]
        for table in _tables(section):
            lines += ["", f"% {table.note}"] if table.note else [""]
            lines.append(as_latex(table.table))
    return "\n".join(lines) + "\n"


def _tables(section: Section) -> Iterator[Linked]:
    yield from section.notices
    yield from section.tables


def _write_figures(folder: Path, document: Document) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for section in document.sections:
        _remove_others(folder, section)
        for drawing in section.drawings:
            figure = drawing.draw()
            for suffix in FORMATS:
                target = folder / f"{drawing.name}.{suffix}"
                save_figure(figure, target)
                yield target


def _remove_others(folder: Path, section: Section) -> None:
    """Remove the figures of a study that it does not have any more: with more settings they have other names."""
    names = {drawing.name for drawing in section.drawings}
    own = re.compile(rf"{re.escape(section.name)}(-\d+)?\.({'|'.join(FORMATS)})")
    for path in folder.iterdir():
        if own.fullmatch(path.name) and path.stem not in names:
            path.unlink()


def _write(path: Path, text: str) -> Path:
    write_text(path, text)
    return path


def _address(store: Store, cell: Cell, folder: Path) -> str | None:
    """The file of a cell, seen from the page."""
    found = page_of(store, cell)
    return None if found is None else quote(Path(os.path.relpath(found, folder)).as_posix())
