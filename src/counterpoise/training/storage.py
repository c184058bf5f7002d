"""How checkpoints reach the disk: atomically, read back, and reported as whole only then."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from counterpoise._files import digest_of, replacing
from counterpoise.training.checkpoints import read_state


@dataclass(frozen=True)
class Written:
    """A checkpoint that is whole: what the manifest says about its bytes."""

    sha256: str
    bytes: int


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


def write_verified(path: Path, write: Callable[[IO[bytes]], object]) -> Written:
    """Write a file, read it back, and only then give it its name."""
    with replacing(path) as temporary:
        with temporary.open("wb") as file:
            hashed = _Hashed(file)
            try:
                write(cast("IO[bytes]", hashed))
            except RuntimeError:
                if hashed.error is None:
                    raise
                # Torch says that the archive is incomplete; the file knows why.
                raise OSError(hashed.error.errno, hashed.error.strerror, str(path)) from None
        digest = hashed.sha256.hexdigest()
        if digest_of(temporary) != digest:
            raise OSError(f"{path}: what was read back is not what was written; is the disk full or failing?")
        return Written(digest, temporary.stat().st_size)


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
