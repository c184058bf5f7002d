"""Every table and figure of the paper, by one command: studies, the grid of their runs, the store, the report.

studies, scales, requests    what is compared, as data
cells                        from requests to tasks, and what was chosen
store, manifest              what is finished, for any number of processes
work, grid, cluster          one task, one after another, on Ray
record                       what is kept of a cell
summary, tables, figures     over seeds, and beside the published numbers

Names are imported when they are asked for: the engine takes seconds, and the command line's help does not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from counterpoise_study.cluster import run_on_ray
    from counterpoise_study.custom_methods import load_methods
    from counterpoise_study.grid import run_sequentially
    from counterpoise_study.record import CellRecord
    from counterpoise_study.report import write_report
    from counterpoise_study.requests import Request, Setting
    from counterpoise_study.store import Store
    from counterpoise_study.studies import STUDIES, Study, request_of

__version__ = "0.1.0"

__all__ = [
    "STUDIES",
    "CellRecord",
    "Request",
    "Setting",
    "Store",
    "Study",
    "__version__",
    "load_methods",
    "request_of",
    "run_on_ray",
    "run_sequentially",
    "write_report",
]

_MODULES = {
    "STUDIES": "studies",
    "CellRecord": "record",
    "Request": "requests",
    "Setting": "requests",
    "Store": "store",
    "Study": "studies",
    "load_methods": "custom_methods",
    "request_of": "studies",
    "run_on_ray": "cluster",
    "run_sequentially": "grid",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
