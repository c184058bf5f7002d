"""Checkpoints as the engine writes them: the complete state, atomically, verified, then named in the manifest."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException

from counterpoise._files import digest_of, replacing
from counterpoise.training.checkpoints import Entry, read_manifest, write_manifest
from counterpoise.training.distributed import average_buffers
from counterpoise.training.module import ObjectiveModule
from counterpoise.training.termination import HeedTermination


class _Hashed:
    """A file that is hashed while it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


class VerifiedCheckpointIO(CheckpointIO):
    """Writes a checkpoint atomically and reads it back; loads nothing but data.

    Attributes:
        sha256: of the checkpoint that was written last.
    """

    sha256 = ""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write, read back, and only then give the file its name."""
        with replacing(path) as temporary:
            with temporary.open("wb") as file:
                hashed = _Hashed(file)
                try:
                    torch.save(checkpoint, hashed)  # type: ignore[arg-type]
                except RuntimeError:
                    if hashed.error is None:
                        raise
                    # Torch says that the archive is incomplete; the file knows why.
                    raise OSError(hashed.error.errno, hashed.error.strerror, str(path)) from None
            written = hashed.sha256.hexdigest()
            if digest_of(temporary) != written:
                raise OSError(f"{path}: what was read back is not what was written; is the disk full or failing?")
        self.sha256 = written

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Callable[..., Any] | None = None,
        weights_only: bool | None = True,  # noqa: FBT001
    ) -> dict[str, Any]:
        """Tensors, numbers and text; code is refused."""
        state: dict[str, Any] = torch.load(path, map_location=map_location or "cpu", weights_only=True)
        return state

    def remove_checkpoint(self, path: str | Path) -> None:
        """Files are removed when the manifest stops naming them."""


class KeepCheckpoints(L.Callback):
    """Saves the complete state at steps and epochs, and keeps the last two and the best.

    Args:
        folder: of the checkpoints.
        files: what the engine writes them with.
        every_steps: steps between checkpoints inside an epoch, or None for none.
        every_epochs: epochs between checkpoints; the last epoch always has one.
        measure: validation measure that decides which is best.
        larger_is_better: about this measure.
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
        measure: str,
        larger_is_better: bool,
        flush: Callable[[], None],
        termination: HeedTermination,
    ) -> None:
        self.folder = folder
        self.files = files
        self.every_steps = every_steps
        self.every_epochs = every_epochs
        self.measure = measure
        self.larger_is_better = larger_is_better
        self.flush = flush
        self.termination = termination

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save inside an epoch; after its last step the validation comes first."""
        due = self.every_steps and trainer.global_step % self.every_steps == 0
        if (due or self.termination.told) and not trainer.is_last_batch:
            self._save(trainer, pl_module, value=None)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save after the validation."""
        epoch = trainer.current_epoch + 1
        if epoch % self.every_epochs == 0 or epoch == trainer.max_epochs or self.termination.told:
            assert isinstance(pl_module, ObjectiveModule)
            self._save(trainer, pl_module, value=pl_module.validation.get(self.measure))

    def _save(self, trainer: L.Trainer, module: L.LightningModule, *, value: float | None) -> None:
        average_buffers(module)
        self.flush()
        path = self.folder / f"step-{trainer.global_step:09d}.ckpt"
        trainer.save_checkpoint(path)
        if trainer.is_global_zero:
            self._name(trainer, path, value=value)
        if self.termination.told:
            # A launcher may end the other ranks after the first that ends, while one still writes the manifest.
            trainer.strategy.barrier()
            raise SIGTERMException

    def _name(self, trainer: L.Trainer, path: Path, *, value: float | None) -> None:
        """Name a checkpoint in the manifest."""
        entry = Entry(
            file=path.name,
            sha256=self.files.sha256,
            bytes=path.stat().st_size,
            step=trainer.global_step,
            epoch=trainer.current_epoch,
            measure=None if value is None else self.measure,
            value=value,
        )
        manifest = read_manifest(self.folder)
        previous = manifest.last if manifest.last and manifest.last.file != entry.file else manifest.previous
        best = entry if self._is_best(entry, manifest.best) else manifest.best
        write_manifest(self.folder, replace(manifest, last=entry, previous=previous, best=best))

    def _is_best(self, entry: Entry, best: Entry | None) -> bool:
        if entry.value is None:
            return False
        if best is None or best.value is None or best.measure != entry.measure:
            return True
        return entry.value > best.value if self.larger_is_better else entry.value < best.value
