"""Whether an id occurs twice, and whether two sets of ids are alike, in bounded memory."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from counterpoise.metrics.keys import Keys, mixed
from counterpoise.scoring.partitions import Partitions

MOST_WAITING = 1 << 22
"""Keys that wait in memory: 32 MB."""

_SKETCHED = 1024
_SKETCH_SALT = 7


class RepeatedKeys:
    """Collects the keys of samples; beyond `MOST_WAITING`, in temporary files by a hash.

    Args:
        folder: for temporary files; nobody else writes there.
        most_waiting: keys that are kept in memory.
    """

    def __init__(self, folder: Path, *, most_waiting: int = MOST_WAITING) -> None:
        self._partitions, self._most = Partitions(folder, np.dtype(np.uint64)), most_waiting
        self._waiting: list[Keys] = []
        self._count = 0
        self._on_disk = False
        self._smallest = np.zeros(0, np.uint64)

    def add(self, keys: Keys) -> None:
        self._smallest = _smallest(self._smallest, mixed(keys, salt=_SKETCH_SALT))
        self._waiting.append(keys)
        self._count += len(keys)
        if self._count > self._most:
            self._write()

    def repeated(self) -> int | None:
        if not self._on_disk:
            return _repeated(self._all())
        self._write()
        return next((key for keys in self._partitions.drained() if (key := _repeated(keys)) is not None), None)

    def likeness(self, other: "RepeatedKeys") -> float:
        """About which share of the keys of both together is in both (Jaccard), by those whose hash is smallest."""
        together = _smallest(self._smallest, other._smallest)
        common = np.intersect1d(self._smallest, other._smallest)
        return len(np.intersect1d(common, together)) / max(1, len(together))

    def _all(self) -> Keys:
        return np.concatenate([np.zeros(0, np.uint64), *self._waiting])

    def _write(self) -> None:
        keys = self._all()
        self._partitions.append(keys, keys)
        self._on_disk, self._waiting, self._count = True, [], 0


def _smallest(one: Keys, other: Keys) -> Keys:
    if len(one) == _SKETCHED:  # few keys of a batch are below its last one
        other = other[other < one[-1]]
    return np.unique(np.concatenate([one, other]))[:_SKETCHED]


def _repeated(keys: NDArray[np.uint64]) -> int | None:
    ordered = np.sort(keys)
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    return int(ordered[again[0]]) if len(again) else None
