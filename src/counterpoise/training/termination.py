"""SIGTERM, as from a scheduler that wants its machine back: the run ends after its step, with a checkpoint."""

import signal
import threading
from typing import Any

import lightning as L  # noqa: N812
import torch
import torch.distributed as dist

from counterpoise.training.distributed import world_size


class HeedTermination(L.Callback):
    """Takes notice of SIGTERM while a run trains; a second one ends the process at once.

    Attributes:
        told: whether any process of the run has been told to end, the same on all of them.
    """

    def __init__(self) -> None:
        self.told = False
        self._signalled = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the place of the engine's handler, within which ranks would wait for each other.

        The engine restores all handlers when it ends.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._notice)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Agree on it after every step."""
        self._agree(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """And after a validation."""
        self._agree(trainer)

    def _notice(self, *_: Any) -> None:
        self._signalled = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _agree(self, trainer: L.Trainer) -> None:
        self.told = self._signalled
        if world_size() > 1:
            told = torch.tensor(int(self._signalled), device=trainer.strategy.root_device)
            dist.all_reduce(told, op=dist.ReduceOp.MAX)
            self.told = bool(told)
