"""Parts of the package that need more than the core say so in one line."""

import importlib
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal

View = Literal["text", "html", "figure", "page", "table"]
"""How results show themselves."""


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a module of an extra, or say which extra to install.

    >>> require("no_such_module", extra="report", purpose="the HTML report")
    Traceback (most recent call last):
    ...
    ImportError: the HTML report needs no_such_module: pip install 'counterpoise[report]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"{purpose} needs {error.name}: pip install 'counterpoise[{extra}]'") from None


def require_installed(*modules: str, extra: str, purpose: str) -> None:
    """The same without the import, which may take seconds.

    >>> require_installed("json", "no_such_module", extra="train", purpose="training")
    Traceback (most recent call last):
    ...
    ImportError: training needs no_such_module: pip install 'counterpoise[train]'
    """
    if missing := [module for module in modules if find_spec(module) is None]:
        raise ImportError(f"{purpose} needs {', '.join(missing)}: pip install 'counterpoise[{extra}]'")


def offered(group: str, *, package: str, purpose: str) -> Any:
    """Load what another package offers as an entry point, or say which package to install.

    >>> offered("counterpoise.nothing", package="no-such-package", purpose="nothing")
    Traceback (most recent call last):
    ...
    ImportError: nothing needs no-such-package: pip install no-such-package
    """
    from importlib.metadata import entry_points  # slow to import

    for found in entry_points(group=group):
        return found.load()
    raise ImportError(f"{purpose} needs {package}: pip install {package}")


def view(name: View) -> Callable[..., Any]:
    """A function of `counterpoise.report.views`, loaded as any extra is: nothing below `report` imports it."""
    views = require("counterpoise.report.views", extra="report", purpose="showing results")
    found: Callable[..., Any] = getattr(views, name)
    return found


@cache
def installed_version(package: str) -> str | None:
    """The version of a package; None where it is not installed.

    >>> installed_version("no-such-package") is None
    True
    """
    from importlib import metadata  # slow to import

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
