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
myst_heading_anchors = 2
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"counterpoise {release}"

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": False}
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


def setup(app: Sphinx) -> None:
    """Formulas become MathML when the site is built: it loads no script from elsewhere."""
    app.add_html_math_renderer("mathml", (_math("inline"), None), (_math("block"), None))
