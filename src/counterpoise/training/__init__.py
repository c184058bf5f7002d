"""Everything that touches the engine: the LightningModule over an objective, schedules, checkpoints, run folders.

What needs the engine is imported when it is asked for: Lightning takes seconds, and a run can be read without it.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from counterpoise._extras import require

if find_spec("lightning") is None:
    require("lightning", extra="train", purpose="training")

from counterpoise.training.data import RunData, from_images, named_data
from counterpoise.training.evaluation import predict
from counterpoise.training.networks import Trained, load_run

if TYPE_CHECKING:
    from counterpoise.training.module import ObjectiveModule
    from counterpoise.training.run import resume, train

__all__ = [
    "ObjectiveModule",
    "RunData",
    "Trained",
    "from_images",
    "load_run",
    "named_data",
    "predict",
    "resume",
    "train",
]

_OF_THE_ENGINE = {"ObjectiveModule": "module", "resume": "run", "train": "run"}


def __getattr__(name: str) -> Any:
    if name not in _OF_THE_ENGINE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_OF_THE_ENGINE[name]}"), name)
