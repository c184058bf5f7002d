"""A SHA-256 digest beside a file, in the form that `sha256sum --check` reads, and the file that it was verified for."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import pyarrow as pa

from counterpoise._files import replacing
from counterpoise.predictions.table import PredictionFileError

_DIGEST_FILE_LIMIT = 4096


def digest_path(path: Path) -> Path:
    """`preds.parquet.sha256` for `preds.parquet`."""
    return path.with_name(f"{path.name}.sha256")


def write_digest(path: Path, digest: str) -> None:
    """Put the digest of `path` beside it."""
    name = os.fsencode(path.name)
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    mark = b"" if escaped == name else b"\\"  # how sha256sum says that it escaped a name
    with replacing(digest_path(path)) as temporary:
        temporary.write_bytes(mark + digest.encode() + b"  " + escaped + b"\n")


@dataclass(frozen=True)
class Source:
    """A file as it was when it was checked.

    Attributes:
        path: of the file.
        digest: SHA-256 that was verified, or None where there was none beside the file.
        size: bytes.
        identity: tells the file from another one of the same name, and from itself after a change.
    """

    path: Path
    digest: str | None
    size: int
    identity: tuple[int, ...]

    def reopened(self) -> pa.OSFile:
        """The file for reading, if it still is the one that was checked."""
        handle = pa.OSFile(str(self.path))
        if _identity(handle.fileno()) != self.identity:
            handle.close()
            raise PredictionFileError("it was changed or replaced after it was opened; open it again")
        return handle


@contextmanager
def verified(path: Path) -> Iterator[tuple[Source, BufferedReader]]:
    """Open a file whose bytes agree with the digest beside it, if there is one."""
    try:
        file = path.open("rb")
    except IsADirectoryError:
        raise PredictionFileError("it is a folder; name a file in it") from None
    with file:
        identity, size = _identity(file.fileno()), os.fstat(file.fileno()).st_size
        if not size:
            raise PredictionFileError("it is empty; write it again")
        digest = _verified_digest(path, file)
        file.seek(0)
        yield Source(path=path, digest=digest, size=size, identity=identity), file


def _verified_digest(path: Path, file: BufferedReader) -> str | None:
    beside = digest_path(path)
    try:
        with beside.open("rb") as digest_file:
            text = digest_file.read(_DIGEST_FILE_LIMIT)
    except FileNotFoundError:
        return None
    match = re.match(rb"\\?([0-9a-f]{64}) [ *]", text)
    if match is None:
        raise PredictionFileError(
            f"{beside.name} holds no SHA-256 digest; restore it, or delete it to read without one"
        )
    actual = hashlib.file_digest(file, "sha256").hexdigest()
    if match[1].decode() != actual:
        raise PredictionFileError(
            f"its bytes do not agree with the digest in {beside.name}: one of the two was damaged or changed after it "
            "was written. Restore it, or delete the digest if the change was meant"
        )
    return actual


def _identity(descriptor: int) -> tuple[int, ...]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
