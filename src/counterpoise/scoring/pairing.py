"""Which samples of different files are the same, by their ids."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from counterpoise.predictions import Predictions

Numbers = NDArray[np.int64]


class SampleRegister:
    """Numbers the samples of a first file, and finds those of other files among them.

    Files in the same order, the usual case, are only compared; others are looked up.
    """

    def __init__(self) -> None:
        self._ids: list[pa.Array] = []
        self._labels: list[Numbers] = []
        self._whole: tuple[pa.Array, Numbers] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._ids))

    def add(self, table: Predictions) -> Numbers:
        """Numbers of the next samples of the first file."""
        first = len(self)
        self._ids.append(pa.array(table.ids))
        self._labels.append(table.labels)
        return np.arange(first, first + len(table))

    def find(self, table: Predictions, row: int) -> Numbers | None:
        """Numbers of another file's samples, the first of which is its row `row`; None where one is not known.

        A sample with another label under the same id is another sample.
        """
        if self._whole is None:
            self._whole = pa.concat_arrays(self._ids), np.concatenate(self._labels)
        known, labels = self._whole
        ids = pa.array(table.ids)
        if ids.type != known.type:
            return None
        if ids.equals(known.slice(row, len(ids))):
            numbers = np.arange(row, row + len(ids))
        else:
            found = pc.index_in(ids, value_set=known)
            if found.null_count:
                return None
            numbers = found.to_numpy().astype(np.int64)
        return numbers if np.array_equal(labels[numbers], table.labels) else None
