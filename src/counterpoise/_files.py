"""Files that are either the old ones or the new ones, whatever happens while they are written."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the place of `path` when the block ends without an error.

    The bytes reach the disk before the name does, and the folder after it, so that a crash leaves no half a file.
    """
    target = Path(path)
    # Cut, because the target's name may be as long as a name can be; random, because threads share a process id.
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(target)
        _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    folder = path.is_dir()
    if folder and os.name == "nt":
        return  # Windows opens no folders; its rename is durable with the file
    descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)  # Windows flushes only what may be written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
