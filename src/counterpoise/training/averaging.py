"""The moving average of the primary, one step after every step of the optimizer."""

from typing import Any

import lightning as L  # noqa: N812

from counterpoise.training.module import ObjectiveModule


class KeepAverage(L.Callback):
    """Updates `module.average`; a callback, so that it comes before the checkpoint of the same step."""

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the average towards the primary."""
        assert isinstance(pl_module, ObjectiveModule)
        if pl_module.average is not None:
            pl_module.average.update_parameters(pl_module.primary)
