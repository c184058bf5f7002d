"""What all pages share: templates that escape whatever they show, one style sheet by its digest, figures as data."""

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

from counterpoise._extras import require

require("jinja2", extra="report", purpose="the HTML report")

from jinja2 import Environment, StrictUndefined, Template  # noqa: E402
from markupsafe import Markup  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from counterpoise._text import readable  # noqa: E402
from counterpoise.report.figures import as_svg  # noqa: E402
from counterpoise.report.style import DARK, LIGHT, in_dark  # noqa: E402


@dataclass(frozen=True)
class Layout:
    """A compiled template, its style sheet, and the digest by which the page's policy allows that sheet alone."""

    template: Template
    style: Markup
    style_digest: str


@cache
def layout(package: str, *, template: str, sheets: tuple[tuple[str, str], ...]) -> Layout:
    """Read a template of a package, and style sheets, each given by package and name."""
    environment = Environment(
        autoescape=True, finalize=_readable, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    # The same colours as in the figures.
    style = f":root {{ {LIGHT.variables()} }}\n"
    style += f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {DARK.variables()} }} }}\n"
    style += "".join(_text(*sheet) for sheet in sheets)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return Layout(
        template=environment.from_string(_text(package, template)),
        style=Markup(style),  # noqa: S704 - the package's own files
        style_digest=f"sha256-{digest}",
    )


class Themed(NamedTuple):
    """A figure as SVG inside the page, in both themes."""

    light: str
    dark: str


def inside(figure: Figure) -> Themed:
    """What a page shows of a figure."""
    light = as_svg(figure)
    return Themed(_data_uri(light), _data_uri(in_dark(light)))


def _data_uri(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _text(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _readable(value: object) -> object:
    return readable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
