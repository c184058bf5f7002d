"""The complete state of a training as the engine saves it: atomically, verified, then named in the manifest.

To it belong the generators of every rank: order and augmentation do not depend on them; dropout, stochastic depth and
whatever a user's model draws do.
"""

import random
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import lightning as L  # noqa: N812
import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from counterpoise._files import Written, write_verified
from counterpoise.training.callbacks import StopEarly
from counterpoise.training.checkpoints import Entry, read_manifest, read_state, write_manifest
from counterpoise.training.distributed import average_buffers, gathered, world_size
from counterpoise.training.module import ObjectiveModule


def random_state() -> dict[str, Any]:
    """The state of all generators of this process, as tensors and numbers."""
    version, internal, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        # Of this process' own device: others, that it never uses, may not be there when it goes on.
        "cuda": [torch.cuda.get_rng_state()] if _uses_cuda() else [],
        "mps": [torch.mps.get_rng_state()] if torch.backends.mps.is_available() else [],
        "numpy": [torch.from_numpy(np.asarray(keys, np.int64)), int(position), int(has_gauss), float(cached)],
        "python": [version, list(internal), gauss],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what `random_state` gave.

    >>> before = random_state()
    >>> first = torch.rand(1), random.random(), np.random.random()
    >>> set_random_state(before)
    >>> first == (torch.rand(1), random.random(), np.random.random())
    True
    """
    torch.set_rng_state(state["torch"])
    if state["cuda"] and _uses_cuda():
        torch.cuda.set_rng_state(state["cuda"][0])
    if torch.backends.mps.is_available() and state.get("mps"):
        torch.mps.set_rng_state(state["mps"][0])
    keys, position, has_gauss, cached = state["numpy"]
    words: Tensor = keys
    np.random.set_state(("MT19937", words.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class SaveRandomState(L.Callback):
    """Saves the generators of all ranks in checkpoints, and restores each rank's own when training goes on."""

    def __init__(self) -> None:
        self._restored: list[dict[str, Any]] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"ranks": gathered(random_state())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the states until training starts: setting up draws random numbers too."""
        self._restored = state_dict["ranks"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._restored is not None and len(self._restored) == world_size():
            set_random_state(self._restored[trainer.global_rank])
        self._restored = None


_SECOND: Final[Mapping[signal.Signals, Callable[[int, FrameType | None], Any] | signal.Handlers]] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}
"""What a second signal does after the first, which has the run save its step and end."""


class TerminationSignal(L.Callback):
    """Takes notice of SIGTERM and Ctrl-C while a run trains; a second one ends the process at once.

    Attributes:
        requested: whether any process of the run got the signal, the same on all of them.
    """

    def __init__(self) -> None:
        self.requested = False
        self._signalled = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the place of the engine's handler; the engine restores all handlers when it ends."""
        # Within Lightning's (2.6.6) a rank sends a broadcast that no other rank waits for: where one rank alone gets
        # the signal, the run hangs instead of saving its step (test_parallel.py).
        if threading.current_thread() is threading.main_thread():
            for signalled in _SECOND:
                signal.signal(signalled, self._handle)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._agree(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._agree(trainer)

    def _handle(self, signalled: int, _: Any) -> None:
        self._signalled = True
        signal.signal(signalled, _SECOND[signal.Signals(signalled)])

    def _agree(self, trainer: L.Trainer) -> None:
        self.requested = self._signalled
        if world_size() > 1:
            requested = torch.tensor(int(self._signalled), device=trainer.strategy.root_device)
            dist.all_reduce(requested, op=dist.ReduceOp.MAX)
            self.requested = bool(requested)


class VerifiedCheckpointIO(CheckpointIO):
    """Writes a checkpoint as one file and reads it back; loads either form, and nothing but data."""

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: Callable[[Written], None] | None = None,
    ) -> None:
        """Write it; what is called when it is whole comes as `storage_options`, which the engine hands through."""
        written = write_verified(Path(path), lambda file: torch.save(checkpoint, file))
        if storage_options is not None:
            storage_options(written)

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Callable[..., Any] | None = None,
        weights_only: bool | None = True,  # noqa: FBT001
    ) -> dict[str, Any]:
        """Tensors, numbers and text; code is refused."""
        return read_state(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Files are removed when the manifest stops naming them."""

    def finish(self) -> None:
        """Wait until all that was saved is whole."""


class SaveCheckpoints(L.Callback):
    """Saves the complete state at steps and epochs, and keeps the last two and the best.

    Args:
        folder: of the checkpoints.
        files: what the engine writes them with.
        every_steps: steps between checkpoints inside an epoch, or None for none.
        every_epochs: epochs between checkpoints; the last epoch always has one.
        metric: validation metric that decides which is best.
        larger_is_better: about this metric.
        stopping: which epoch is the best so far; it is always saved, because the best one ships. None if the last does.
        flush: called before each checkpoint, so that logs hold every step that the checkpoint has seen.
        termination: knows whether the run is to end, which it does as soon as it has saved.
    """

    def __init__(
        self,
        folder: Path,
        *,
        files: VerifiedCheckpointIO,
        every_steps: int | None,
        every_epochs: int,
        metric: str,
        larger_is_better: bool,
        stopping: StopEarly | None,
        flush: Callable[[], None],
        termination: TerminationSignal,
    ) -> None:
        self.folder = folder
        self.files = files
        self.every_steps = every_steps
        self.every_epochs = every_epochs
        self.metric = metric
        self.larger_is_better = larger_is_better
        self.stopping = stopping
        self.flush = flush
        self.termination = termination

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save inside an epoch; after its last step the validation comes first."""
        due = self.every_steps and trainer.global_step % self.every_steps == 0
        if (due or self.termination.requested) and not trainer.is_last_batch:
            self._save(trainer, pl_module, value=None)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        assert isinstance(pl_module, ObjectiveModule)
        due = epoch % self.every_epochs == 0 or epoch == trainer.max_epochs or trainer.should_stop
        best = self.stopping is not None and self.stopping.waited == 0
        if due or best or self.termination.requested:
            self._save(trainer, pl_module, value=pl_module.validation.get(self.metric))

    def _save(self, trainer: L.Trainer, module: L.LightningModule, *, value: float | None) -> None:
        assert isinstance(module, ObjectiveModule)
        average_buffers(module, module.objective.process_group)
        self.flush()
        entry = Entry(
            file=f"step-{trainer.global_step:09d}.ckpt",
            sha256="",
            bytes=0,
            step=trainer.global_step,
            epoch=trainer.current_epoch,
            metric=None if value is None else self.metric,
            value=value,
        )
        trainer.save_checkpoint(self.folder / entry.file, storage_options=partial(self._name, entry))
        if self.termination.requested:
            self.files.finish()
            # A launcher may end the other ranks after the first that ends, while one still writes the manifest.
            trainer.strategy.barrier()
            raise SIGTERMException

    def _name(self, entry: Entry, written: Written) -> None:
        """Name a checkpoint in the manifest, as soon as it is whole: on the first rank, perhaps in another thread."""
        entry = replace(entry, sha256=written.sha256, bytes=written.bytes)
        value = entry.value
        manifest = read_manifest(self.folder)
        previous = manifest.last if manifest.last and manifest.last.file != entry.file else manifest.previous
        best = entry if value is not None and self._is_best(value, manifest.best) else manifest.best
        write_manifest(self.folder, replace(manifest, last=entry, previous=previous, best=best))

    def _is_best(self, value: float, best: Entry | None) -> bool:
        if best is None or best.value is None or best.metric != self.metric:
            return True
        return value > best.value if self.larger_is_better else value < best.value
