"""Configuration of the documentation site."""

from typing import Any

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx

import counterpoise

project = "counterpoise"
author = "The counterpoise authors"
copyright = "The counterpoise authors"  # noqa: A001
release = counterpoise.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"counterpoise {release}"

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 130
add_module_names = False
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = True
napoleon_use_ivar = True
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"


def _math(display: str) -> Any:
    def visit(translator: Any, node: nodes.math | nodes.math_block) -> None:
        translator.body.append(latex2mathml.converter.convert(node.astext(), display=display))
        raise nodes.SkipNode

    return visit


_WRITTEN: dict[str, list[str]] = {}


def _keep(_app: Sphinx, what: str, name: str, _obj: object, _options: object, lines: list[str]) -> None:
    if what in {"attribute", "data", "property"}:
        _WRITTEN[name] = list(lines)


def _restore(_app: Sphinx, _what: str, name: str, _obj: object, _options: object, lines: list[str]) -> None:
    lines[:] = _WRITTEN.pop(name, lines)


def setup(app: Sphinx) -> None:
    """Formulas become MathML when the site is built, and docstrings of attributes stay as they were written.

    MathML, because the site loads no script from elsewhere. Napoleon takes what stands before a colon for a type.
    """
    app.add_html_math_renderer("mathml", (_math("inline"), None), (_math("block"), None))
    napoleon = 500  # the priority at which it rewrites docstrings
    app.connect("autodoc-process-docstring", _keep, priority=napoleon - 1)
    app.connect("autodoc-process-docstring", _restore, priority=napoleon + 1)
