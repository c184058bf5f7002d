"""Files that are either the old ones or the new ones, whatever happens while they are written; safetensors."""

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from counterpoise._addresses import Address, as_path

if TYPE_CHECKING:
    from torch import Tensor

FilePath = Path | Address
"""A file here, or in an object store."""


@contextmanager
def replacing(path: str | FilePath) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the place of `path` when the block ends without an error.

    The bytes reach the disk before the name does, and the folder after it, so that a crash leaves no half a file. What
    belongs in an object store is written to a temporary folder first, and uploaded.
    """
    target = as_path(path)
    if isinstance(target, Address):
        with tempfile.TemporaryDirectory(prefix="counterpoise-") as folder:
            yield Path(folder) / target.name
            target.upload(Path(folder) / target.name)
        return
    # Cut, because the target's name may be as long as a name can be; random, because threads share a process id.
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(target)
        _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | FilePath, text: str) -> None:
    """Write a whole text file, atomically: UTF-8, line ends as they are in the text."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def digest_of(path: FilePath) -> str:
    """SHA-256 of the whole file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_safetensors(path: str | Path) -> tuple[dict[str, str], dict[str, "Tensor"]]:
    """Metadata and tensors of a safetensors file; `ValueError` that names the file if it is none."""
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder, not a safetensors file")
    try:
        with safe_open(str(path), framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None


def _sync(path: Path) -> None:
    folder = path.is_dir()
    if folder and os.name == "nt":
        return  # Windows opens no folders; its rename is durable with the file
    descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)  # Windows flushes only what may be written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
