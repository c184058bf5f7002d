"""A file of predictions, and the digest beside it or in a manifest that it was verified for."""

import hashlib
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from counterpoise._addresses import Address, regular
from counterpoise._digests import digest_path, disagreement, stated_digest
from counterpoise._files import FilePath
from counterpoise.predictions.table import PredictionFileError

FETCHED_WHOLE = 1 << 27
"""Bytes of a file in a store up to which all of it is fetched at once, so that its digest costs no second reading."""

_REPLACED = "it was changed or replaced after it was opened; open it again once its writer has finished"

_POINTER, _LARGEST_POINTER = re.compile(rb"version \S+git-lfs"), 1024


@dataclass(frozen=True)
class Source:
    """A file as it was when it was checked.

    Attributes:
        path: of the file.
        digest: SHA-256 that was verified, or None where none was stated, or a file in a store is too large for it.
        size: bytes.
        identity: tells the file from another one of the same name, and from itself after a change.
        data: the bytes of a small file in a store.
    """

    path: FilePath
    digest: str | None
    size: int
    identity: tuple[int | bytes, ...]
    data: bytes | None = field(default=None, repr=False)

    @property
    def is_remote(self) -> bool:
        return isinstance(self.path, Address) and self.data is None

    def reopened(self) -> pa.NativeFile:
        """The file for reading, if it still is the one that was checked."""
        if self.data is not None:
            return pa.BufferReader(self.data)
        found: tuple[int | bytes, ...]
        if isinstance(self.path, Path):
            handle = pa.OSFile(str(self.path))
            found = _identity(os.fstat(handle.fileno()))
        else:
            pieces = self.path.open_unbuffered()
            handle, found = pa.PythonFile(pieces, mode="r"), pieces.identity
        if found != self.identity:
            handle.close()
            raise PredictionFileError(_REPLACED)
        return handle

    def require_unchanged(self) -> None:
        """Reject a file that changed since it was checked, so that what was read of it may be of two files."""
        if self.data is not None:
            return
        now = _identity(self.path.stat()) if isinstance(self.path, Path) else self.path.identity()
        if now != self.identity:
            raise PredictionFileError(_REPLACED)


def checked(path: FilePath, *, digest: str | None = None, size: int | None = None) -> Source:
    """A file whose bytes agree with the digest that is stated, if one is: by a manifest, or else beside the file."""
    if isinstance(path, Path) and path.is_dir():
        raise PredictionFileError("it is a folder; name a file in it")
    source = _local(path) if isinstance(path, Path) else _fetched(path)
    if not source.size:
        raise PredictionFileError("it is empty; write it again")
    if size is not None and source.size != size:
        raise PredictionFileError(f"it has {source.size:,} bytes, the manifest says {size:,}; write it again")
    if source.size < _LARGEST_POINTER and not source.is_remote:
        with source.reopened() as file:
            if _POINTER.match(file.read()):
                raise PredictionFileError("it is a pointer of Git LFS instead of the file; run git lfs pull")
    beside = digest_path(path)
    try:
        stated = digest or stated_digest(beside)
    except ValueError as error:
        raise PredictionFileError(str(error)) from None
    if stated is None or source.is_remote:
        return source
    with source.reopened() as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if stated != actual:
        raise PredictionFileError(
            "it is not the file that the manifest names; write it again" if digest is not None else disagreement(beside)
        )
    return replace(source, digest=actual)


def _local(path: Path) -> Source:
    with regular(path).open("rb") as file:
        status = os.fstat(file.fileno())
    return Source(path=path, digest=None, size=status.st_size, identity=_identity(status))


def _fetched(path: Address) -> Source:
    identity = path.identity()
    data = path.read_bytes() if identity[0] <= FETCHED_WHOLE else None
    return Source(path=path, digest=None, size=identity[0], identity=identity, data=data)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns
