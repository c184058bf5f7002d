"""Methods of the user's own, from one Python file that the user names on the command line."""

import hashlib
import importlib.util
from pathlib import Path

from counterpoise.recipes.methods import METHODS, Method

_NAME_DIGITS = 12

_LOADED: dict[str, str] = {}
"""Methods that came from files, and the digest of the file of each."""


def load_methods(path: str | Path) -> dict[str, str]:
    """Run a Python file and add what its `METHODS` holds to the methods of the package, for this process.

    The file is code, and is trusted as such: it is named by whoever runs the command, never by data. `METHODS` in it is
    a dictionary from names to `counterpoise.recipes.Method`.

    Returns:
        The names, each with the SHA-256 of the file: a method is the same only as long as its file is.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"there is no file {file} to take methods from")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    methods = _methods_in(file, module=f"counterpoise_methods_{digest[:_NAME_DIGITS]}")
    for name in methods:
        if name in METHODS and _LOADED.get(name) != digest:
            raise ValueError(f"{file} defines the method {name!r}, which there is already; give it another name")
    METHODS.update(methods)
    found = dict.fromkeys(methods, digest)
    _LOADED.update(found)
    return found


def _methods_in(file: Path, *, module: str) -> dict[str, Method]:
    specification = importlib.util.spec_from_file_location(module, file)
    if specification is None or specification.loader is None:
        raise ValueError(f"{file} is no Python file; methods are taken from a file that ends in .py")
    loaded = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(loaded)
    except Exception as error:
        raise ValueError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    methods = getattr(loaded, "METHODS", None)
    if not (isinstance(methods, dict) and methods and all(isinstance(each, Method) for each in methods.values())):
        raise ValueError(f"{file} has no METHODS, a dictionary from names to counterpoise.recipes.Method")
    return methods
