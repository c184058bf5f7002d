"""Names of a package that load with their first use: torch takes seconds, and much is answered without it."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are in its modules.

    A package has the imports themselves under `if TYPE_CHECKING:`, which editors and type checkers read, and this
    under `else:`.

    Args:
        package: its `__name__`.
        homes: for each module, the names that it has, in words; its own is the module itself.
    """
    module_of = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{module_of[name]}")
        value = module if name == module_of[name] else getattr(module, name)
        vars(import_module(package))[name] = value  # from now on without this function
        return value

    def listed() -> list[str]:
        return sorted({*vars(import_module(package)), *module_of})

    return load, listed
