"""More records than memory holds, in temporary files by a hash of their keys: equal keys are in one file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.metrics.keys import Keys, mixed

PARTITIONS = 256
_SALT = 3


class Partitions:
    """Appends records to `PARTITIONS` files.

    Args:
        folder: for the files; made when the first is written.
        record: type of a record.
    """

    def __init__(self, folder: Path, record: "np.dtype[Any]") -> None:
        self._folder, self._record = folder, record

    def append(self, keys: Keys, records: NDArray[Any]) -> None:
        self._folder.mkdir(exist_ok=True)
        partition = mixed(keys, salt=_SALT) % np.uint64(PARTITIONS)
        order = np.argsort(partition, kind="stable")
        ends = np.searchsorted(partition[order], np.arange(PARTITIONS), side="right")
        for place, part in enumerate(np.split(records[order], ends[:-1])):
            if len(part):
                with (self._folder / str(place)).open("ab") as file:
                    file.write(part.tobytes())

    def drained(self) -> Iterator[NDArray[Any]]:
        """The records of one file after the other, in the order of their hashes; each is deleted as it is read."""
        for place in range(PARTITIONS):
            path = self._folder / str(place)
            records = np.fromfile(path, self._record) if path.exists() else np.zeros(0, self._record)
            path.unlink(missing_ok=True)
            yield records
        if self._folder.exists():
            self._folder.rmdir()
