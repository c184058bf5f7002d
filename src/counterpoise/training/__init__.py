"""Everything that touches the engine: the LightningModule over an objective, schedules, checkpoints, run folders."""

from counterpoise._extras import require

require("lightning", extra="train", purpose="training")

from counterpoise.training.data import RunData, from_images, named_data  # noqa: E402
from counterpoise.training.module import ObjectiveModule  # noqa: E402
from counterpoise.training.networks import Trained, load_run  # noqa: E402
from counterpoise.training.predict import predict  # noqa: E402
from counterpoise.training.run import resume, train  # noqa: E402

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
