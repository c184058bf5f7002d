"""Whether an id occurs twice, in bounded memory."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from counterpoise.metrics.keys import Keys, mixed

MOST_WAITING = 1 << 22
"""Keys that wait in memory: 32 MB."""
_PARTITIONS = 256
_PARTITION_SALT = 5


class RepeatedKeys:
    """Collects the keys of samples; beyond `MOST_WAITING`, in temporary files by a hash.

    Args:
        folder: an empty one for temporary files.
        most_waiting: keys that are kept in memory.
    """

    def __init__(self, folder: Path, *, most_waiting: int = MOST_WAITING) -> None:
        self._folder, self._most = folder, most_waiting
        self._waiting: list[Keys] = []
        self._count = 0
        self._on_disk = False

    def add(self, keys: Keys) -> None:
        """The next keys."""
        self._waiting.append(keys)
        self._count += len(keys)
        if self._count > self._most:
            self._write()

    def repeated(self) -> int | None:
        """A key that was added twice, or None."""
        if self._on_disk:
            self._write()
            found = (_repeated(np.fromfile(path, np.uint64)) for path in sorted(self._folder.iterdir()))
            return next((key for key in found if key is not None), None)
        return _repeated(self._all())

    def _all(self) -> Keys:
        return np.concatenate([np.zeros(0, np.uint64), *self._waiting])

    def _write(self) -> None:
        self._on_disk = True
        self._folder.mkdir(exist_ok=True)
        keys = self._all()
        partition = mixed(keys, salt=_PARTITION_SALT) % np.uint64(_PARTITIONS)
        keys = keys[order := np.argsort(partition, kind="stable")]
        ends = np.searchsorted(partition[order], np.arange(_PARTITIONS), side="right")
        for place, part in enumerate(np.split(keys, ends[:-1])):
            if len(part):
                with (self._folder / str(place)).open("ab") as file:
                    file.write(part.tobytes())
        self._waiting, self._count = [], 0


def _repeated(keys: NDArray[np.uint64]) -> int | None:
    ordered = np.sort(keys)
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    return int(ordered[again[0]]) if len(again) else None
