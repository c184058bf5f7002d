"""The page of a benchmark: one HTML file that loads nothing and runs nothing, and links to the runs beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise import __version__
from counterpoise.report.html import inside, layout
from counterpoise.report.page import STYLE_SHEET
from counterpoise_study.drawings import Drawing
from counterpoise_study.sections import Document
from counterpoise_study.tables import Linked

_ROOM = "counterpoise_study"


@dataclass(frozen=True)
class Picture:
    """A figure in both themes as data URIs, what it shows in words, and its numbers."""

    light: str
    dark: str
    alt: str
    tables: Sequence[Linked]


def render(document: Document) -> str:
    """The page as text; the same document always gives the same text."""
    page = layout(_ROOM, template="page.html.jinja", sheets=(STYLE_SHEET, (_ROOM, "page.css")))
    return page.template.render(
        document=document,
        sections=[(section, [_picture(each) for each in section.drawings]) for section in document.sections],
        style=page.style,
        style_digest=page.style_digest,
        version=__version__,
    )


def _picture(drawing: Drawing) -> Picture:
    return Picture(*inside(drawing.draw()), drawing.alt, drawing.tables)
