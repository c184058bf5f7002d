"""Locks between processes that the operating system takes away with the process that holds them."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


def lock_of(path: Path) -> FileLock:
    """The lock of that file, not taken yet."""
    return FileLock(path, fallback_to_soft=False)  # a soft one would outlive a process that was killed


def acquired(lock: FileLock, *, timeout: float) -> bool:
    """Take a lock within so many seconds, -1 for any time; False where another process has it."""
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        return False
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        raise ValueError(
            f"the file system of {lock.lock_file} has no locks, without which processes would disturb each other; use "
            "a folder on another (NFS 4 has them, Lustre where it is mounted with -o flock)"
        ) from None
    return True


@contextmanager
def holding(lock: FileLock) -> Iterator[None]:
    """Hold a lock while the block runs, however long it is waited for."""
    acquired(lock, timeout=-1)
    try:
        yield
    finally:
        lock.release()
