"""Parts of the package that need more than the core say so in one line."""

import importlib
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
