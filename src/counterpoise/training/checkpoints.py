"""Checkpoints: the complete state, written atomically, verified, and listed in a manifest with their digests.

A checkpoint counts once the manifest names it, and the manifest names it once its bytes have been read back. Those that
the manifest does not name are removed, so that the previous checkpoint stays until the new one has been verified.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor

from counterpoise._documents import from_document, to_document
from counterpoise._files import digest_of, replacing, write_text
from counterpoise.training.distributed import average_buffers
from counterpoise.training.module import ObjectiveModule

SCHEMA, SCHEMA_VERSION = "counterpoise.checkpoints", 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """One checkpoint: what it is, and what its file must be."""

    file: str
    sha256: str
    bytes: int
    step: int
    epoch: int
    measure: str | None = None
    value: float | None = None


@dataclass(frozen=True)
class Manifest:
    """The checkpoints of a run that count."""

    last: Entry | None = None
    previous: Entry | None = None
    best: Entry | None = None

    @property
    def files(self) -> set[str]:
        """Names of the files that are kept."""
        return {entry.file for entry in (self.last, self.previous, self.best) if entry is not None}

    def until(self, step: int) -> "Manifest":
        """What is left of it when training goes back to that step."""
        kept = {name: entry for name, entry in vars(self).items() if entry is None or entry.step <= step}
        return Manifest(**kept)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder of checkpoints; an empty one where there is none yet."""
    path = folder / MANIFEST
    if not path.exists():
        return Manifest()
    try:
        return from_document(Manifest, path.read_text(), schema=SCHEMA, version=SCHEMA_VERSION)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; without this file training begins anew") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, then remove the checkpoints that it does not name."""
    write_text(folder / MANIFEST, to_document(manifest, schema=SCHEMA, version=SCHEMA_VERSION))
    remove_strays(folder)


def remove_strays(folder: Path) -> None:
    """Remove checkpoints that the manifest does not name, and what a killed process was writing."""
    named = read_manifest(folder).files
    for path in [*folder.glob("step-*.ckpt"), *folder.glob(".*.tmp")]:
        if path.name not in named:
            path.unlink()


def newest_intact(folder: Path) -> tuple[Entry | None, list[str]]:
    """The newest checkpoint whose bytes are those of the manifest, and what was wrong with newer ones."""
    manifest, wrong = read_manifest(folder), []
    for entry in (manifest.last, manifest.previous):
        if entry is None:
            continue
        path = folder / entry.file
        if not path.exists():
            wrong.append(f"{path} is missing")
        elif digest_of(path) != entry.sha256:
            wrong.append(f"{path} has changed since it was written: its SHA-256 is not the manifest's")
        else:
            return entry, wrong
    return None, wrong


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
    ) -> None:
        self.folder = folder
        self.files = files
        self.every_steps = every_steps
        self.every_epochs = every_epochs
        self.measure = measure
        self.larger_is_better = larger_is_better
        self.flush = flush

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save inside an epoch; after its last step the validation comes first."""
        if self.every_steps and trainer.global_step % self.every_steps == 0 and not trainer.is_last_batch:
            self._save(trainer, pl_module, value=None)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save after the validation."""
        epoch = trainer.current_epoch + 1
        if epoch % self.every_epochs == 0 or epoch == trainer.max_epochs:
            assert isinstance(pl_module, ObjectiveModule)
            self._save(trainer, pl_module, value=pl_module.validation.get(self.measure))

    def _save(self, trainer: L.Trainer, module: L.LightningModule, *, value: float | None) -> None:
        average_buffers(module)
        self.flush()
        path = self.folder / f"step-{trainer.global_step:09d}.ckpt"
        trainer.save_checkpoint(path)
        if not trainer.is_global_zero:
            return
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


def state_digest(path: Path) -> str:
    """SHA-256 over everything in a checkpoint: parameters, buffers, optimizer, progress, random state.

    Bit for bit, whatever the layout of the file: two runs that end with the same digest are the same run.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    digest = hashlib.sha256()
    _add(digest, state)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(f"tensor {value.dtype} {list(value.shape)}".encode())
        digest.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in value:
            digest.update(f"key {key!r}".encode())
            _add(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"sequence {len(value)}".encode())
        for item in value:
            _add(digest, item)
    else:
        digest.update(repr(value).encode())
