"""Parts of the package that need more than the core say so in one line."""

import importlib
from functools import cache
from importlib import metadata
from types import ModuleType


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


@cache
def installed_version(package: str) -> str | None:
    """The version of a package; None where it is not installed.

    >>> installed_version("no-such-package") is None
    True
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
