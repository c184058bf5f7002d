"""Work that processes share, by locks that the operating system takes away with the process that holds them.

A task belongs to the process that holds its lock, which lies beside the task's folder. A killed process holds none, so
that the next one that looks for work finds its task and goes on with it. What became of tasks is recorded under another
lock, which is held for moments. Processes on several machines need a file system that has locks, such as NFS 4.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Claim:
    """A task that belongs to this process until it is released, or done."""

    lock: FileLock

    def release(self) -> None:
        """Leave the task to whoever looks for work next."""
        self.lock.release()

    def done(self) -> None:
        """Remove the lock with its file; only while what became of tasks is being recorded, under its lock."""
        self.lock.release()
        Path(self.lock.lock_file).unlink(missing_ok=True)


def claimed(folder: Path) -> Claim | None:
    """The task of that folder, or None where another process has it."""
    lock = lock_of(_lock_file(folder))
    return Claim(lock) if acquired(lock, timeout=0) else None


def _lock_file(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.lock"
