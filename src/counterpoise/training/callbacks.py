"""What watches a training besides its checkpoints: logs, progress, pruning of samples, the moving average."""

import math
import sys
import time
from typing import Any

import lightning as L  # noqa: N812
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import RichProgressBar
from torch import Tensor

from counterpoise.data.memory import MemoryLoader
from counterpoise.recipes.config import PruningOptions
from counterpoise.training.distributed import is_first_rank, place_in, world_size
from counterpoise.training.evaluation import VALIDATION_METRICS
from counterpoise.training.folder import RowLog
from counterpoise.training.module import REMEDY, ObjectiveModule
from counterpoise.training.progress import is_quiet, say

_BUFFERED = 50
"""Steps whose losses are fetched from the device at a time."""

_PAUSE = 30.0
_REFRESH = 5
_BAR_WIDTH = 15
"""Characters, so that bar, times and metrics fit into a line of 80."""


class AverageWeights(L.Callback):
    """Updates `module.average`; a callback, so that it comes before the checkpoint of the same step."""

    # Not Lightning's EMAWeightAveraging (2.6.6): it keeps the average outside of the module, where ranks do not share
    # BatchNorm's statistics, so that a run on two ranks does not resume with the same bits (test_parallel.py). It also
    # averages the auxiliaries, which do not ship.

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the average towards the primary."""
        assert isinstance(pl_module, ObjectiveModule)
        if pl_module.average is not None:
            pl_module.average.update_parameters(pl_module.primary)


class StopEarly(L.Callback):
    """Ends training after `patience` epochs in a row without a lower validation NLL.

    Attributes:
        waited: epochs since the best one; 0 where the last epoch is the best so far.
    """

    # Not Lightning's EarlyStopping (2.6.6): a run that was killed after its last epoch would train another one when it
    # is resumed (test_finetuning.py).

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.waited = 0
        self._lowest = math.inf

    def state_dict(self) -> dict[str, Any]:
        return {"lowest": self._lowest, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._lowest, self.waited = state_dict["lowest"], state_dict["waited"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A run that had stopped stays so."""
        trainer.should_stop = self.waited >= self.patience

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, ObjectiveModule)
        nll = pl_module.validation["nll"]
        self.waited = 0 if nll < self._lowest else self.waited + 1
        self._lowest = min(nll, self._lowest)
        trainer.should_stop = self.waited >= self.patience


class RunLogs(L.Callback):
    """Fills `steps.csv` and `epochs.csv` of a run; losses are fetched from the device some steps at a time."""

    def __init__(self, steps: RowLog, epochs: RowLog) -> None:
        self.steps, self.epochs = steps, epochs
        self._pending: list[tuple[int, int, Tensor, float]] = []
        self._losses, self._count = 0.0, 0
        self._images, self._started = 0, 0.0
        self._group: dist.ProcessGroup | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self._losses, "count": self._count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._losses, self._count = state_dict["losses"], state_dict["count"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._group = place_in(trainer).group
        self._started, self._images = time.monotonic(), 0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started, self._images = time.monotonic(), 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the loss; look at it later."""
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self._images += len(batch.labels) * (1 if self._group is None else dist.get_world_size(self._group))
        self._pending.append((trainer.global_step, trainer.current_epoch, outputs["loss"].detach(), rate))
        if len(self._pending) >= _BUFFERED:
            self.flush()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look at all losses of the epoch first: of a model that broke down there is nothing to measure."""
        self.flush()

    def flush(self) -> None:
        if not self._pending:
            return
        stacked = torch.stack([loss for _, _, loss, _ in self._pending])
        if self._group is not None:
            # Each rank has the loss of its share of the batch.
            dist.all_reduce(stacked, group=self._group)
            stacked /= dist.get_world_size(self._group)
        losses = stacked.cpu().double().tolist()
        self._losses, self._count = self._losses + sum(losses), self._count + len(losses)
        rows = [
            (step, epoch, repr(loss), loss.hex(), rate)
            for (step, epoch, _, rate), loss in zip(self._pending, losses, strict=True)
        ]
        self._pending = []
        broken = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if is_first_rank():
            self.steps.append(rows[:broken])
        if broken is not None:
            raise FloatingPointError(f"the loss is {losses[broken]} at step {rows[broken][0]}; {REMEDY}")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, ObjectiveModule)
        self.flush()
        seconds = time.monotonic() - self._started
        row = (
            trainer.current_epoch,
            trainer.global_step,
            repr(self._losses / max(1, self._count)),
            *(repr(pl_module.validation.get(name, "")) for name in VALIDATION_METRICS),
            trainer.optimizers[0].param_groups[0]["lr"],
            f"{self._images / seconds:.1f}",
            f"{seconds:.2f}",
        )
        self._losses, self._count = 0.0, 0
        if trainer.is_global_zero:
            self.epochs.append([row])


class ProgressBar(RichProgressBar):
    """Lightning's Rich bar with the loss and the last validation beside it."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=_REFRESH)
        self._shown: dict[str, str] = {}

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        assert isinstance(pl_module, ObjectiveModule)
        loss, validation = pl_module.latest.loss, pl_module.validation
        # To fetch it from a device is to wait for the step, so only when the bar is drawn anew.
        if loss is not None and (not self._shown or trainer.global_step % _REFRESH == 0):
            self._shown = {"loss": f"{loss.item():.3f}"}
        return self._shown | ({"nll": f"{validation['nll']:.3f}"} if validation else {})

    def configure_columns(self, trainer: L.Trainer) -> list[Any]:
        """Epoch, a short bar, steps and times; the metrics come behind them."""
        from rich.progress import BarColumn

        epoch, _, steps, times, _ = super().configure_columns(trainer)
        return [epoch, BarColumn(bar_width=_BAR_WIDTH), steps, times]

    def _get_train_description(self, current_epoch: int) -> str:
        """Epochs are counted from 1, as `ProgressLines` does."""
        return f"Epoch {current_epoch + 1}/{self.trainer.max_epochs}"


class ProgressLines(L.Callback):
    """A line on standard error after every epoch, and every half a minute inside one."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Say how far it is, if nothing was said for a while."""
        if trainer.is_global_zero and time.monotonic() - self._last > _PAUSE:
            steps = len(trainer.datamodule.training)  # type: ignore[attr-defined]
            self._say(f"{_epoch(trainer)}, step {batch_idx + 1} of {steps}: loss {outputs['loss'].item():.3f}")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, ObjectiveModule)
        if trainer.is_global_zero:
            metrics = ", ".join(f"{name} {value:.4f}" for name, value in pl_module.validation.items())
            self._say(f"{_epoch(trainer)}: validation {metrics}")

    def _say(self, text: str) -> None:
        self._last = time.monotonic()
        say(text)


def _epoch(trainer: L.Trainer) -> str:
    return f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"


def progress_callback() -> L.Callback:
    """A bar where there is a terminal to redraw, lines elsewhere."""
    if is_quiet():
        return L.Callback()
    return ProgressBar() if sys.stderr.isatty() else ProgressLines()


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
        self._take_in()
        return {"confidence": self.confidence, "seen": self.seen, "kept": self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
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
