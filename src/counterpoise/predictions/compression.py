"""Files that are compressed as a whole, told by their suffix; and sizes that files declare, checked before use."""

import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from counterpoise._files import FilePath
from counterpoise.predictions.digest import Source
from counterpoise.predictions.table import PredictionFileError

_BY_ARROW = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_REQUEST = 1 << 23
COMPRESSED = (*_BY_ARROW, ".xz")

LARGEST_EXPANSION = 100
"""Bytes that one byte of a file may stand for. Predictions hardly compress; a bomb does little else."""

ALWAYS_ALLOWED = 1 << 26
"""Bytes that any file may unpack to."""


def bare_suffix(path: FilePath) -> str:
    """The suffix of what is inside: `.csv` of `p.csv.gz`."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


@contextmanager
def opened(source: Source) -> Iterator[pa.NativeFile]:
    """The bytes inside, from their beginning."""
    suffix = source.path.suffix.lower()
    with source.reopened() as file:
        handle = pa.BufferedInputStream(file, _REQUEST) if source.is_remote else file
        if suffix in _BY_ARROW:
            with pa.CompressedInputStream(handle, _BY_ARROW[suffix]) as stream:
                yield stream
        elif suffix == ".xz":
            with lzma.open(handle) as unpacked, pa.PythonFile(unpacked, mode="r") as stream:
                yield stream
        else:
            yield handle


def read_bytes(handle: pa.NativeFile, size: int) -> bytes:
    """At most so many bytes. Arrow's own `read` never frees them where it fails, as it does on damaged files."""
    data: bytes = handle.read_buffer(size).to_pybytes()
    return data


def largest_expansion(stored: int) -> int:
    """Bytes that a file of `stored` bytes may unpack to."""
    return max(ALWAYS_ALLOWED, LARGEST_EXPANSION * stored)


def check_expansion(*, declared: int, stored: int, what: str) -> None:
    """Refuse `stored` bytes that claim to unpack to more than `LARGEST_EXPANSION` times as many."""
    if declared < 0 or declared > largest_expansion(stored):
        raise PredictionFileError(
            f"{what} declares {declared:,} bytes and stores {stored:,}: refused, no more than {LARGEST_EXPANSION} for "
            "1 are read. If it is genuine, write it without compression"
        )
