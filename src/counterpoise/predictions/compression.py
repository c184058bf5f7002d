"""Files that are compressed as a whole, told by their suffix, and read as streams in bounded memory."""

import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from counterpoise._files import FilePath
from counterpoise.predictions.digest import Source

_BY_ARROW = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_REQUEST = 1 << 23
COMPRESSED = (*_BY_ARROW, ".xz")


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
