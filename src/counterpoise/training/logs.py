"""CSV files of a run: one row a step, one row an epoch; complete up to each checkpoint, and never with a row twice."""

import csv
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
import torch.distributed as dist
from torch import Tensor

from counterpoise._files import replacing
from counterpoise.training.distributed import is_first_rank, world_size
from counterpoise.training.measures import MEASURES
from counterpoise.training.module import REMEDY, ObjectiveModule

STEP_COLUMNS = ("step", "epoch", "loss", "loss_hex", "lr")
EPOCH_COLUMNS = (
    "epoch",
    "step",
    "training_loss",
    *(f"validation_{name}" for name in MEASURES),
    "lr",
    "images_per_second",
    "seconds",
)
_BUFFERED = 50


class RowLog:
    """Appends rows to a CSV file."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)

    def append(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows, and have them on disk before anything that refers to them."""
        with self.path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, str]]:
        """All complete rows; a line that was cut off by a crash is none."""
        text = self.path.read_text() if self.path.exists() else ""
        complete = text[: text.rfind("\n") + 1]
        return list(csv.DictReader(complete.splitlines()))

    def begin_after(self, step: int) -> None:
        """Make the file, or remove its rows of later steps: training goes back to this one, and writes them again."""
        rows = self.rows()
        for number, row in enumerate(rows):
            if tuple(row) != self.columns or not (row["step"] or "").isdecimal():
                raise ValueError(
                    f"{self.path}: row {number} is not as it was written, with the columns {', '.join(self.columns)}; "
                    "restore the file, or remove it"
                )
        self._write([list(row.values()) for row in rows if int(row["step"]) <= step])

    def _write(self, rows: Sequence[Sequence[Any]]) -> None:
        with replacing(self.path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(rows)


class KeepLogs(L.Callback):
    """Fills `steps.csv` and `epochs.csv` of a run; losses are fetched from the device some steps at a time."""

    def __init__(self, steps: RowLog, epochs: RowLog) -> None:
        self.steps, self.epochs = steps, epochs
        self._pending: list[tuple[int, int, Tensor, float]] = []
        self._losses, self._count = 0.0, 0
        self._images, self._started = 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        """What the row of the running epoch is made of."""
        return {"losses": self._losses, "count": self._count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the running epoch's row."""
        self._losses, self._count = state_dict["losses"], state_dict["count"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._started, self._images = time.monotonic(), 0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock of the epoch."""
        self._started, self._images = time.monotonic(), 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the loss; look at it later."""
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self._images += len(batch.labels) * trainer.world_size
        self._pending.append((trainer.global_step, trainer.current_epoch, outputs["loss"].detach(), rate))
        if len(self._pending) >= _BUFFERED:
            self.flush()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look at all losses of the epoch first: of a model that broke down there is nothing to measure."""
        self.flush()

    def flush(self) -> None:
        """Write what is pending."""
        if not self._pending:
            return
        stacked = torch.stack([loss for _, _, loss, _ in self._pending])
        if world_size() > 1:
            # Each rank has the loss of its share of the batch.
            dist.all_reduce(stacked)
            stacked /= world_size()
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
        """One row for the epoch."""
        assert isinstance(pl_module, ObjectiveModule)
        self.flush()
        seconds = time.monotonic() - self._started
        row = (
            trainer.current_epoch,
            trainer.global_step,
            repr(self._losses / max(1, self._count)),
            *(repr(pl_module.validation.get(name, "")) for name in MEASURES),
            trainer.optimizers[0].param_groups[0]["lr"],
            f"{self._images / seconds:.1f}",
            f"{seconds:.2f}",
        )
        self._losses, self._count = 0.0, 0
        if trainer.is_global_zero:
            self.epochs.append([row])
