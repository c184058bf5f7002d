"""Everything that touches the engine: the LightningModule over an objective, schedules, checkpoints, run folders.

What needs torch or the engine is imported when it is asked for: they take seconds, and what is wrong with a command is
said without them.
"""

from typing import TYPE_CHECKING

from counterpoise._extras import require_installed
from counterpoise._lazy import lazily

require_installed("lightning", extra="train", purpose="training")

if TYPE_CHECKING:
    from counterpoise.training.data import RunData, from_images, named_data
    from counterpoise.training.evaluation import predict
    from counterpoise.training.module import ObjectiveModule
    from counterpoise.training.networks import Trained, load_run
    from counterpoise.training.predicting import predicted_shards, score_shards, write_shards
    from counterpoise.training.run import resume, train
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "data": "RunData from_images named_data",
            "evaluation": "predict",
            "module": "ObjectiveModule",
            "networks": "Trained load_run",
            "predicting": "predicted_shards score_shards write_shards",
            "run": "resume train",
        },
    )

__all__ = [
    "ObjectiveModule",
    "RunData",
    "Trained",
    "from_images",
    "load_run",
    "named_data",
    "predict",
    "predicted_shards",
    "resume",
    "score_shards",
    "train",
    "write_shards",
]
