"""What data are, by their content: a digest that tells a set from another one of its name.

It is made of names, labels, sizes and bytes. Times and folders are no part of it, so a copy is the same data. Of a
local file above 16 MiB, its size and 16 pieces of 64 KiB from its first byte to its last are read; of a file in a
store, its size and its first and last 64 KiB. A change that keeps the size and these pieces is not noticed.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from counterpoise._addresses import Address, as_path, regular
from counterpoise._files import FilePath
from counterpoise.data.rows import hub_digest, image_files, relative_names
from counterpoise.data.sources import FILES, DataSource, stored_split

_WHOLE: Final = 1 << 24
_PIECE: Final = 1 << 16
_PIECES, _REMOTE_PIECES = 16, 2
_READ_TOGETHER = 16


def fingerprint(source: DataSource, split: str, *, domain: str | None = None) -> str:
    """Digest of the stored split that holds the rows of `split`, in hexadecimal."""
    stored = stored_split(source, split, domain)
    if source.kind == "scikit-learn":
        return digest_of([source.info.name])
    if source.kind == "hub":
        return digest_of([hub_digest(source), stored])
    if source.kind in FILES:
        rows = image_files(source, stored)
        files: list[FilePath] = [path for path, _ in rows]
        labels = [str(label) for _, label in rows]
        return digest_of(
            [*source.info.classes, *relative_names([path for path, _ in rows], source), *labels, *file_digests(files)]
        )
    files = [as_path(name) for name in source.files[stored]]
    return digest_of([*source.info.classes, *(file.name for file in files), *file_digests(files)])


def file_digests(files: Iterable[FilePath]) -> list[str]:
    """Digest of each file, some of which are read at a time."""
    with ThreadPoolExecutor(_READ_TOGETHER) as pool:
        return list(pool.map(_file_digest, files))


def digest_of(texts: Sequence[str]) -> str:
    """Digest of texts, in hexadecimal."""
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=16).hexdigest()


def _file_digest(path: FilePath) -> str:
    remote = isinstance(path, Address)
    count = _REMOTE_PIECES if remote else _PIECES
    try:
        with path.open_unbuffered() if isinstance(path, Address) else regular(path).open("rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            found = hashlib.blake2b(str(size).encode(), digest_size=16)
            if size <= (count * _PIECE if remote else _WHOLE):
                starts: Iterable[int] = range(0, size, _PIECE)
            else:
                starts = [(size - _PIECE) * piece // (count - 1) for piece in range(count)]
            for start in starts:
                file.seek(start)
                found.update(file.read(_PIECE) or b"")
    except OSError as error:  # an image that cannot be read is named, or left out, where it is decoded
        if remote:
            raise
        return f"unreadable {error.errno}"
    return found.hexdigest()
