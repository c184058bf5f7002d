"""DTDP's pruning: every few epochs, leave out the training samples with the lowest smoothed confidence."""

from typing import Any

import lightning as L  # noqa: N812
import torch
import torch.distributed as dist
from torch import Tensor

from counterpoise.data.memory import MemoryLoader
from counterpoise.recipes.config import PruningOptions
from counterpoise.training.distributed import world_size
from counterpoise.training.module import ObjectiveModule


def kept_samples(confidence: Tensor, *, share: float) -> Tensor:
    """Which samples stay when the `share` with the lowest confidence is left out, `[n]` of bool; ties by position.

    >>> kept_samples(torch.tensor([0.9, 0.2, 0.6, 0.5]), share=0.25)
    tensor([ True, False,  True,  True])
    """
    kept = torch.ones(len(confidence), dtype=torch.bool)
    kept[torch.argsort(confidence, stable=True)[: int(share * len(confidence))]] = False
    return kept


class PruneSamples(L.Callback):
    """Follows the confidence of every training sample and chooses, each time from the full set, which stay.

    The confidence of a sample is its largest softmax probability when it was last trained on, averaged exponentially;
    1 until it is seen, so that nothing is left out unseen. What is left out keeps its last value.
    """

    def __init__(self, options: PruningOptions) -> None:
        self.options = options
        self.kept: Tensor | None = None
        self._pending: list[tuple[Tensor, Tensor]] = []

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Find the loader, before a checkpoint's choice is applied to it."""
        loader = trainer.datamodule.training  # type: ignore[attr-defined]
        if not isinstance(loader, MemoryLoader):
            raise ValueError("samples can only be pruned from a set in memory")
        self.loader = loader
        self.confidence = torch.ones(len(loader.images))
        self.seen = torch.zeros(len(loader.images), dtype=torch.bool)
        # Ids are row numbers of the stored set, of which training uses a part.
        self._row = {int(sample): row for row, sample in enumerate(loader.images.ids.tolist())}

    def state_dict(self) -> dict[str, Any]:
        """The averages, and the choice that is in force."""
        self._take_in()
        return {"confidence": self.confidence, "seen": self.seen, "kept": self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the averages and the choice."""
        self.confidence, self.seen = state_dict["confidence"].clone(), state_dict["seen"].clone()
        self.kept = state_dict["kept"]
        self.loader.use_only(self.kept)

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the confidences of the batch."""
        assert isinstance(pl_module, ObjectiveModule)
        confidence = pl_module.latest.logits.float().softmax(-1).amax(-1)
        self._pending.append((batch.ids, confidence))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Choose anew after every so many epochs."""
        self._take_in()
        if (trainer.current_epoch + 1) % self.options.every == 0:
            self.kept = kept_samples(self.confidence, share=self.options.share)
            self.loader.use_only(self.kept)

    def _take_in(self) -> None:
        """Bring the averages up to date, the same on all ranks; a collective."""
        latest = torch.full_like(self.confidence, -1.0)
        for ids, confidence in self._pending:
            latest[torch.tensor([self._row[sample] for sample in ids.tolist()])] = confidence.cpu()
        self._pending = []
        if world_size() > 1:
            shared = latest.to(self.loader.device)  # NCCL takes nothing from the host
            dist.all_reduce(shared, op=dist.ReduceOp.MAX)
            latest = shared.cpu()
        new, weight = latest >= 0, self.options.smoothing
        smoothed = torch.where(self.seen, weight * latest + (1 - weight) * self.confidence, latest)
        self.confidence = torch.where(new, smoothed, self.confidence)
        self.seen |= new
