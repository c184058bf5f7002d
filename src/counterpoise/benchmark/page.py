"""The page of a benchmark: one HTML file that loads nothing and runs nothing, and links to the runs beside it."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from counterpoise._extras import require

require("jinja2", extra="report", purpose="the HTML report")

from jinja2 import Environment, StrictUndefined, Template  # noqa: E402
from markupsafe import Markup  # noqa: E402

from counterpoise import __version__  # noqa: E402
from counterpoise._text import readable  # noqa: E402
from counterpoise.benchmark.drawings import Drawing  # noqa: E402
from counterpoise.benchmark.sections import Document  # noqa: E402
from counterpoise.benchmark.tables import Linked  # noqa: E402
from counterpoise.report.figures import as_svg  # noqa: E402
from counterpoise.report.style import DARK, LIGHT, Theme  # noqa: E402


@dataclass(frozen=True)
class Picture:
    """A figure in both themes as data URIs, what it shows in words, and its numbers."""

    light: str
    dark: str
    alt: str
    tables: Sequence[Linked]


def render(document: Document) -> str:
    """The page as text; the same document always gives the same text."""
    template, style = _template()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return template.render(
        document=document,
        sections=[(section, [_picture(each) for each in section.drawings]) for section in document.sections],
        style=Markup(style),  # noqa: S704 - the package's own files
        style_digest=f"sha256-{digest}",
        version=__version__,
    )


@cache
def _template() -> tuple[Template, str]:
    """The compiled template, and the style sheet: that of all reports, and what is particular to this page."""
    own = resources.files("counterpoise.benchmark")
    environment = Environment(
        autoescape=True, finalize=_readable, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    sheets = (resources.files("counterpoise.report").joinpath("page.css"), own.joinpath("bench.css"))
    style = "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    return environment.from_string(own.joinpath("bench.html.jinja").read_text(encoding="utf-8")), style


def _readable(value: object) -> object:
    return readable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _picture(drawing: Drawing) -> Picture:
    return Picture(_uri(drawing, LIGHT), _uri(drawing, DARK), drawing.alt, drawing.tables)


def _uri(drawing: Drawing, theme: Theme) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(as_svg(drawing.draw(theme)).encode()).decode()}"
