"""Files that are either the old ones or the new ones, whatever happens while they are written; safetensors."""

import glob
import hashlib
import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from safetensors import SafetensorError, safe_open

from counterpoise._addresses import Address, as_path, naming, regular
from counterpoise._documents import CHANGED, DIGEST, content_hash
from counterpoise._json import parsed

if TYPE_CHECKING:
    from torch import Tensor

FilePath = Path | Address
"""A file here, or in an object store."""

METADATA_DIGEST = "counterpoise_sha256"
"""The entry of a safetensors file's metadata that holds the SHA-256 of everything else in it."""

_ABANDONED = 60.0
"""Seconds after which a temporary file of a process that is gone is removed."""


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
    begin = f".{target.name[:40]}.{_machine()}-"
    _remove_abandoned(target.parent, begin)
    temporary = target.with_name(f"{begin}{os.getpid()}-{secrets.token_hex(8)}.tmp")
    try:
        with naming(target):
            yield temporary
            _sync(temporary)
            temporary.replace(target)
            _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@cache
def _machine() -> str:
    """This machine in a few characters: process ids of another one say nothing here."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def _remove_abandoned(folder: Path, begin: str) -> None:
    """Remove what killed processes of this machine have left of earlier attempts to write the same file."""
    for path in folder.glob(f"{glob.escape(begin)}*.tmp"):
        process = path.name.removeprefix(begin).partition("-")[0]
        # A container may hide a process that writes; it will not take that long.
        with suppress(OSError):
            if process.isdecimal() and not _is_alive(int(process)) and time.time() - path.stat().st_mtime > _ABANDONED:
                path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # where signal 0 is no question
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def write_text(path: str | FilePath, text: str) -> None:
    """Write a whole text file, atomically: UTF-8, line ends as they are in the text."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def digest_of(path: FilePath) -> str:
    """SHA-256 of the whole file, in hexadecimal."""
    with naming(path), regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Written:
    """What has been read back of what was written."""

    sha256: str
    bytes: int


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


def read_safetensors(path: str | Path) -> tuple[dict[str, str], dict[str, "Tensor"]]:
    """Metadata and tensors of a safetensors file; `ValueError` that names the file if it is none, or was changed.

    The metadata are without the digest of the file, where it has one (`write_safetensors`).
    """
    metadata, tensors = _read(path)
    if is_content_changed(metadata, tensors):
        raise ValueError(f"{path}: {CHANGED}")
    return {name: value for name, value in metadata.items() if name != METADATA_DIGEST}, tensors


def write_safetensors(path: str | Path, tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> None:
    """Write contiguous tensors and text with their digest, atomically; the same content gives the same bytes."""
    from safetensors.torch import save_file

    digest = {METADATA_DIGEST: content_digest(metadata, tensors)}
    with replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(dict(tensors), str(temporary), metadata={**metadata, **digest})
        with temporary.open("r+b") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            header["__metadata__"] = dict(sorted(header["__metadata__"].items()))  # safetensors writes any order
            text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(length)
            if len(text) > length:
                raise AssertionError(f"{path}: the same entries in another order need more bytes")
            file.seek(8)
            file.write(text)
        temporary.chmod(mode)  # safetensors lets the owner alone read its files


def is_content_changed(metadata: Mapping[str, str], tensors: Mapping[str, "Tensor"]) -> bool | None:
    """Whether a safetensors file is not what was written; None where it has no digest.

    The digest is an entry of its metadata, or, because safetensors writes several entries in any order and some files
    have the same bytes each time, a field of the JSON that is their only entry.
    """
    if METADATA_DIGEST in metadata:
        others = {name: value for name, value in metadata.items() if name != METADATA_DIGEST}
        return metadata[METADATA_DIGEST] != content_digest(others, tensors)
    try:
        content: Any = parsed(*metadata.values()) if len(metadata) == 1 else {}
    except ValueError:
        content = {}
    if not isinstance(content, dict) or DIGEST not in content:
        return None
    return bool(content.pop(DIGEST) != content_digest(content, tensors))


def content_digest(content: Mapping[str, Any], tensors: Mapping[str, "Tensor"]) -> str:
    """SHA-256 of what JSON says, and of the names, dtypes, shapes and bytes of tensors, in hexadecimal."""
    from torch import uint8

    digest = content_hash(content)
    for name, value in sorted(tensors.items()):
        digest.update(f"\n{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(uint8).numpy())
    return str(digest.hexdigest())


def _read(path: str | Path) -> tuple[dict[str, str], dict[str, "Tensor"]]:
    target = as_path(path)
    if regular(target).is_dir():
        raise ValueError(f"{path} is a folder, not a safetensors file")
    try:
        if isinstance(target, Address):
            from safetensors.torch import load

            data = target.read_bytes()
            header = parsed(data[8 : 8 + int.from_bytes(data[:8], "little")])
            return header.get("__metadata__", {}), load(data)
        with safe_open(str(path), framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None


def has_digest(path: str | Path) -> bool:
    """Whether a safetensors file says what its content must be; `ValueError` where its content is not that."""
    metadata, tensors = _read(path)
    changed = is_content_changed(metadata, tensors)
    if changed:
        raise ValueError(f"{path}: {CHANGED}")
    return changed is not None


def _sync(path: Path) -> None:
    folder = path.is_dir()
    if folder and os.name == "nt":
        return  # Windows opens no folders; its rename is durable with the file
    descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)  # Windows flushes only what may be written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
