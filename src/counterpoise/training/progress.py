"""What is seen of a run while it trains: a bar on a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import lightning as L  # noqa: N812
from lightning.pytorch.callbacks import RichProgressBar

from counterpoise.training.module import ObjectiveModule

_PAUSE = 30.0
_REFRESH = 5
_BAR_WIDTH = 15
"""Characters, so that bar, times and measures fit into a line of 80."""


_is_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def say(text: str) -> None:
    """A line on standard error, at once; a run goes on where nobody reads it any more."""
    if not _is_quiet.get():
        with suppress(BrokenPipeError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


@contextmanager
def quiet() -> Iterator[None]:
    """Show nothing of the runs in this block: whoever runs many has a view of all of them."""
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


class Bar(RichProgressBar):
    """Lightning's Rich bar with the loss and the last validation beside it."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=_REFRESH)
        self._shown: dict[str, str] = {}

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        """The loss now, and the last validation's NLL."""
        assert isinstance(pl_module, ObjectiveModule)
        loss, validation = pl_module.latest.loss, pl_module.validation
        # To fetch it from a device is to wait for the step, so only when the bar is drawn anew.
        if loss is not None and (not self._shown or trainer.global_step % _REFRESH == 0):
            self._shown = {"loss": f"{loss.item():.3f}"}
        return self._shown | ({"nll": f"{validation['nll']:.3f}"} if validation else {})

    def configure_columns(self, trainer: L.Trainer) -> list[Any]:
        """Epoch, a short bar, steps and times; the measures come behind them."""
        from rich.progress import BarColumn

        epoch, _, steps, times, _ = super().configure_columns(trainer)
        return [epoch, BarColumn(bar_width=_BAR_WIDTH), steps, times]

    def _get_train_description(self, current_epoch: int) -> str:
        """Epochs are counted from 1, as `Lines` does."""
        return f"Epoch {current_epoch + 1}/{self.trainer.max_epochs}"


class Lines(L.Callback):
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
        """Say what the validation gave."""
        assert isinstance(pl_module, ObjectiveModule)
        if trainer.is_global_zero:
            measures = ", ".join(f"{name} {value:.4f}" for name, value in pl_module.validation.items())
            self._say(f"{_epoch(trainer)}: validation {measures}")

    def _say(self, text: str) -> None:
        self._last = time.monotonic()
        say(text)


def _epoch(trainer: L.Trainer) -> str:
    return f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"


def progress_callback() -> L.Callback:
    """A bar where there is a terminal to redraw, lines elsewhere."""
    if _is_quiet.get():
        return L.Callback()
    return Bar() if sys.stderr.isatty() else Lines()
