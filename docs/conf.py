"""Configuration of the documentation site."""

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
nitpicky = False
