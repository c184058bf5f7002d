"""Which samples of several models are the same, by their keys, in bounded memory.

Files in the same order, the usual case, are compared as they are read. Samples that come in another order wait for each
other; when too many wait, all go to temporary files by a hash of their keys, and each of these is joined by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.functional.paired import HIGHEST_POWER, power_sums
from counterpoise.metrics.keys import Keys
from counterpoise.scoring.partitions import Partitions

MOST_WAITING = 1 << 21
"""Samples of one model that wait in memory: some 70 MB."""

Values = NDArray[np.float64]


class Samples(NamedTuple):
    """Keys `[n]` and values `[n, Q]` of samples."""

    keys: Keys
    values: Values

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "Samples":
        return Samples(self.keys[rows], self.values[rows])


@dataclass(frozen=True)
class Joined:
    """A join that was made elsewhere; see `SampleJoin`, whose attributes of these names it has."""

    columns: int
    sums: Tensor
    matched: int
    left: tuple[tuple[int, Samples], ...]

    @classmethod
    def of(cls, join: "SampleJoin") -> "Joined":
        left = tuple(join.rest())
        return cls(join.columns, join.sums, join.matched, left)

    def rest(self) -> Iterator[tuple[int, Samples]]:
        return iter(self.left)


class SampleJoin:
    """Joins the samples of several models, and adds up how their values differ.

    Args:
        models: how many.
        columns: Q, values of each sample.
        folder: an empty one for temporary files.
        most_waiting: samples of one model that are kept in memory.

    Attributes:
        matched: samples that were found in all models so far.
    """

    def __init__(self, models: int, columns: int, folder: Path, *, most_waiting: int = MOST_WAITING) -> None:
        self.pairs = list(combinations(range(models), 2))
        self.sums = torch.zeros(len(self.pairs), columns, HIGHEST_POWER + 1, dtype=torch.float64)
        self._waiting: list[list[Samples]] = [[] for _ in range(models)]
        self.columns, self._most = columns, most_waiting
        self._record = np.dtype([("key", np.uint64), ("values", np.float64, (columns,))])
        self._partitions = [Partitions(folder / str(model), self._record) for model in range(models)]
        self._on_disk = False
        self.matched = 0

    def add(self, model: int, samples: Samples) -> None:
        self._waiting[model].append(samples)
        if not self._on_disk:
            self._join_in_order()
        if max(sum(len(part.keys) for part in parts) for parts in self._waiting) > self._most:
            if not self._on_disk:
                self._waiting = [[rest] for rest in self._join(self._whole())]
            if self._on_disk or max(len(parts[0].keys) for parts in self._waiting) > self._most // 2:
                self._write()

    def finish(self) -> bool:
        """Join what is left; whether every sample of each model was found in all others."""
        return sum(len(samples.keys) for _, samples in self.rest()) == 0

    def rest(self) -> Iterator[tuple[int, Samples]]:
        """The samples that were not found in all models so far, with their models; the join is over then."""
        if not self._on_disk:
            yield from enumerate(self._join(self._whole()))
            return
        self._write()
        for parts in zip(*(each.drained() for each in self._partitions), strict=True):
            yield from enumerate(self._join([Samples(records["key"], records["values"]) for records in parts]))

    def absorb(self, other: "SampleJoin | Joined") -> None:
        for model, samples in other.rest():
            if len(samples.keys):
                self.add(model, samples)
        self.sums += other.sums
        self.matched += other.matched

    def power_sums(self, pair: tuple[int, int], column: int) -> Tensor:
        """`power_sums` of the differences in a column, second model minus first."""
        return self.sums[self.pairs.index(pair), column]

    def _join_in_order(self) -> None:
        """As long as the samples that wait longest are the same for all models."""
        while all(self._waiting):
            length = min(len(parts[0].keys) for parts in self._waiting)
            heads = [parts[0].take(slice(length)) for parts in self._waiting]
            if any(not np.array_equal(head.keys, heads[0].keys) for head in heads[1:]):
                return
            self._accumulate(heads)
            for parts in self._waiting:
                rest = parts.pop(0).take(slice(length, None))
                if len(rest.keys):
                    parts.insert(0, rest)

    def _whole(self) -> list[Samples]:
        empty = Samples(np.zeros(0, np.uint64), np.zeros((0, self.columns)))
        return [
            Samples(*(np.concatenate(parts) for parts in zip(empty, *waiting, strict=True)))
            for waiting in self._waiting
        ]

    def _join(self, every: list[Samples]) -> list[Samples]:
        """Join the samples that all models have; returns the others of each."""
        ordered = [samples.take(np.argsort(samples.keys, kind="stable")) for samples in every]
        common = reduce(np.intersect1d, [samples.keys for samples in ordered])
        places = [np.searchsorted(samples.keys, common) for samples in ordered]
        self._accumulate([samples.take(place) for samples, place in zip(ordered, places, strict=True)])
        return [_without(samples, place) for samples, place in zip(ordered, places, strict=True)]

    def _accumulate(self, every: list[Samples]) -> None:
        self.matched += len(every[0].keys)
        for place, (first, second) in enumerate(self.pairs):
            with np.errstate(invalid="ignore"):  # two labels of probability 0
                difference = torch.from_numpy(every[second].values - every[first].values)
            for column, own in enumerate(difference.unbind(-1)):
                self.sums[place, column] += power_sums(own)

    def _write(self) -> None:
        self._on_disk = True
        for samples, partitions in zip(self._whole(), self._partitions, strict=True):
            records = np.zeros(len(samples.keys), self._record)
            records["key"], records["values"] = samples
            partitions.append(samples.keys, records)
        self._waiting = [[] for _ in self._waiting]


def _without(samples: Samples, places: NDArray[np.intp]) -> Samples:
    kept = np.ones(len(samples.keys), bool)
    kept[places] = False
    return samples.take(kept)
