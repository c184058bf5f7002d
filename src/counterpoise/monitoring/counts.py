"""What is kept of predictions: how many there were, by class and by confidence. Counts add up, in any order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

CELLS = 1000
"""Confidence is kept as the number of a cell of 1/1,000; in all that follows it is the middle of that cell."""

LARGEST_COUNT = 2**53
"""Beyond which a double is no longer exact."""

Counted = NDArray[np.int64]


def cell_values() -> NDArray[np.float64]:
    """The confidence that each cell stands for, `[CELLS]`."""
    return (np.arange(CELLS) + 0.5) / CELLS


@dataclass(frozen=True)
class Counts:
    """How often each predicted class and each cell of the confidence was seen.

    Attributes:
        classes: predictions of each class, `[K]`; `[0]` where only confidences are known.
        predictions: of each cell, `[CELLS]`.
        hits: of those with a label, the right ones.
        misses: the wrong ones.
    """

    classes: Counted
    predictions: Counted
    hits: Counted
    misses: Counted

    @classmethod
    def zeros(cls, classes: int) -> "Counts":
        return cls(np.zeros(classes, np.int64), *(np.zeros(CELLS, np.int64) for _ in range(3)))

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.classes + other.classes,
            self.predictions + other.predictions,
            self.hits + other.hits,
            self.misses + other.misses,
        )

    @property
    def samples(self) -> int:
        return int(self.predictions.sum())

    @property
    def labelled(self) -> int:
        return int(self.hits.sum() + self.misses.sum())

    def add(self, confidence: NDArray[np.floating], predicted: Counted, hit: NDArray[np.int8]) -> None:
        """Count samples.

        Args:
            confidence: `[n]` in [0, 1].
            predicted: `[n]`, the class; not looked at where classes are not known.
            hit: `[n]`, 1 where the prediction was right, 0 where it was wrong, -1 where nobody knows.
        """
        cells = np.minimum((confidence.astype(np.float64) * CELLS).astype(np.int64), CELLS - 1)
        for target, rows in ((self.predictions, hit >= -1), (self.hits, hit == 1), (self.misses, hit == 0)):
            target += np.bincount(cells[rows], minlength=CELLS)
        if len(self.classes):
            self.classes[:] += np.bincount(predicted, minlength=len(self.classes))


@dataclass(frozen=True)
class StoredCounts:
    """Counts as JSON has them: what is not 0, each list in the order of the places before it.

    Attributes:
        classes: that were predicted.
        class_counts: how often each of them was.
        cells: that were seen.
        predictions: in each of them.
        hits: in each of them.
        misses: in each of them.
    """

    classes: tuple[int, ...]
    class_counts: tuple[int, ...]
    cells: tuple[int, ...]
    predictions: tuple[int, ...]
    hits: tuple[int, ...]
    misses: tuple[int, ...]

    @classmethod
    def of(cls, counts: Counts) -> "StoredCounts":
        classes, cells = np.flatnonzero(counts.classes), np.flatnonzero(counts.predictions)
        return cls(
            *(
                tuple(part.tolist())
                for part in (
                    classes,
                    counts.classes[classes],
                    cells,
                    counts.predictions[cells],
                    counts.hits[cells],
                    counts.misses[cells],
                )
            )
        )

    def counts(self, classes: int) -> Counts:
        """Dense counts of K classes; `ValueError` where these cannot be any."""
        if problem := next(self._problems(classes), None):
            raise ValueError(problem)
        found = Counts.zeros(classes)
        found.classes[list(self.classes)] = self.class_counts
        for target, values in (
            (found.predictions, self.predictions),
            (found.hits, self.hits),
            (found.misses, self.misses),
        ):
            target[list(self.cells)] = values
        return found

    def _problems(self, classes: int) -> Iterator[str]:
        cells = len(self.cells)
        if len(self.classes) != len(self.class_counts) or {len(self.predictions), len(self.hits), len(self.misses)} != {
            cells
        }:
            yield "its lists do not have the same length"
        if not (_are_places(self.classes, classes) and _are_places(self.cells, CELLS)):
            yield f"its classes must rise within [0, {classes}) and its cells within [0, {CELLS})"
        lists = (self.class_counts, self.predictions, self.hits, self.misses)
        if any(count < 0 for counts in lists for count in counts) or sum(map(sum, lists)) > LARGEST_COUNT:
            yield f"its counts must be neither negative nor above {LARGEST_COUNT} in total"
        if any(hit + miss > seen for seen, hit, miss in zip(self.predictions, self.hits, self.misses, strict=False)):
            yield "it has more labels than predictions"
        if classes and sum(self.class_counts) != sum(self.predictions):
            yield "its classes and its cells do not count the same predictions"


def _are_places(places: Sequence[int], size: int) -> bool:
    return all(0 <= place < size for place in places) and all(first < second for first, second in pairwise(places))
