"""Which samples of different files are the same, by their ids."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from counterpoise.predictions import MISSING_LABEL, Predictions
from counterpoise.scoring.rows import RowKinds

Numbers = NDArray[np.int64]


class SampleRegister:
    """Numbers the samples of a first file."""

    def __init__(self) -> None:
        self._ids: list[pa.Array] = []
        self._facts: list[Numbers] = []
        self._names: tuple[str, ...] | None = None
        self._whole: tuple[pa.Array, Numbers] | None = None
        self._find: Callable[[pa.Array], Numbers | None] | None = None
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, table: Predictions) -> Numbers:
        """Numbers of the next samples of the first file."""
        first = self._rows
        self._rows += len(table)
        self._names = table.header.class_names
        self._ids.append(pa.array(table.ids))
        self._facts.append(_facts(table, table.labels))
        return np.arange(first, self._rows)

    def find(self, table: Predictions, row: int) -> Numbers | None:
        """Numbers of another file's samples, the first of which is its row `row`; None where one is not known.

        A sample with another label under the same id, or one that is corrupted or foreign in one file alone, is
        another sample. Labels are compared by name where two files have the same classes in another order.
        """
        if self._whole is None:
            self._whole = pa.concat_arrays(self._ids), np.concatenate(self._facts)
        known, facts = self._whole
        ids = pa.array(table.ids)
        if ids.type != known.type:
            return None
        # Files in the same order, the usual case, are only compared.
        if ids.equals(known.slice(row, len(ids))):
            numbers: Numbers | None = np.arange(row, row + len(ids))
        else:
            self._find = self._find or _finder(known)
            numbers = self._find(ids)
        if numbers is None or not np.array_equal(facts[numbers], _facts(table, self._own_labels(table))):
            return None
        return numbers

    def _own_labels(self, table: Predictions) -> Numbers:
        """Labels as indices into the classes of the first file."""
        names = table.header.class_names
        if names is None or self._names is None or names == self._names or set(names) != set(self._names):
            return table.labels
        places = np.array([*(self._names.index(name) for name in names), MISSING_LABEL])
        own: Numbers = places[table.labels]
        return own


class SamplePairing:
    """The numbers of one file's samples among those of the first file, as long as all of them are known.

    Without a register no sample is known; the first file fills it.
    """

    def __init__(self, register: SampleRegister | None, *, is_first: bool) -> None:
        self._register = register
        self._is_first = is_first
        self._is_possible = register is not None
        self._seen = np.zeros(0 if register is None or is_first else len(register), bool)
        self._rows = 0

    def numbers(self, table: Predictions, row: int) -> Numbers | None:
        """As `SampleRegister.find`; None for all that comes after a sample that is not known."""
        if self._register is None or not self._is_possible:
            return None
        if self._is_first:
            return self._register.add(table)
        numbers = self._register.find(table, row)
        if numbers is None:
            self._is_possible = False
        else:
            self._seen[numbers] = True
            self._rows += len(numbers)
        return numbers

    @property
    def is_complete(self) -> bool:
        """Whether the file holds the samples of the first, each once, and no other."""
        return self._is_possible and (self._is_first or (self._rows == len(self._seen) and bool(self._seen.all())))


def _finder(known: pa.Array) -> Callable[[pa.Array], Numbers | None]:
    """Looks for the places of ids among those that are known; None where one is not. Numbers take 16 bytes a row."""
    if pa.types.is_integer(known.type):
        values = known.to_numpy()
        order = np.argsort(values, kind="stable")
        ordered = values[order]

        def find_numbers(ids: pa.Array) -> Numbers | None:
            wanted = ids.to_numpy()
            places = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
            found: Numbers | None = order[places] if np.array_equal(ordered[places], wanted) else None
            return found

        return find_numbers
    named = {each: place for place, each in enumerate(known.to_pylist())}

    def find_names(ids: pa.Array) -> Numbers | None:
        places = [named.get(each) for each in ids.to_pylist()]
        return None if None in places else np.array(places, np.int64)

    return find_names


def _facts(table: Predictions, labels: Numbers) -> Numbers:
    """One number `[n]` for what a sample is: its label, and whether it is clean, corrupted or foreign."""
    kinds = RowKinds.of(table)
    facts: Numbers = 4 * labels + kinds.clean + 2 * kinds.corrupted + 3 * kinds.foreign
    return facts
