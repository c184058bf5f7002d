"""Some rows of a set, still encoded, and what is known of their classes; the same wherever they are stored."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from counterpoise._text import some
from counterpoise.data.sets import MISSPELT
from counterpoise.data.sources import DataSource

UNLABELLED: Final = -1
CHUNK: Final = 1000
"""Rows that are held encoded at a time."""

MOST_CLASSES: Final = 10_000_000
"""Without names; a larger label stands for something else, and so many names would not fit into memory."""


Progress = Callable[[int, int], None]
"""Called with what is done and what there is in all."""


class Chunk(NamedTuple):
    """Some rows: encoded images (or why one was not read), labels (-1: none), row numbers in the split, and files."""

    images: list[bytes | OSError | None]
    labels: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    files: list[str]

    def part(self, rows: slice | npt.NDArray[Any]) -> "Chunk":
        """Some of the rows: a slice, or their positions."""
        positions = np.arange(len(self.ids))[rows]
        return Chunk(
            images=[self.images[row] for row in positions],
            labels=self.labels[rows],
            ids=self.ids[rows],
            files=[self.files[row] for row in positions],
        )


@dataclass(frozen=True)
class Rows:
    """The rows of a split, to be read once.

    Attributes:
        stored: how many there are in the split, whether they were asked for or not.
        most: as many as the chunks hold, or more.
        classes: names of the classes; empty where nothing tells them.
        chunks: the rows that were asked for.
        names: of all stored rows, by their numbers: paths of image files; empty where rows have none.
    """

    stored: int
    most: int
    classes: tuple[str, ...]
    chunks: Iterator[Chunk]
    names: Sequence[str] = ()


def regrouped(chunks: Iterable[Chunk], size: int) -> Iterator[Chunk]:
    """The same rows in chunks of `size`, of which the last may be shorter."""
    held: list[Chunk] = []
    for chunk in chunks:
        start = 0
        while start < len(chunk.ids):
            part = chunk.part(slice(start, start + size - sum(len(each.ids) for each in held)))
            held.append(part)
            start += len(part.ids)
            if sum(len(each.ids) for each in held) == size:
                yield _joined(held)
                held = []
    if held:
        yield _joined(held)


def first_difference(names: Sequence[str], expected: Sequence[str]) -> str:
    """Where two different lists of names differ first.

    >>> first_difference(("cat", "cow", "dog"), ("cat", "dog"))
    "class 1 is 'cow' instead of 'dog'"
    >>> first_difference(("cat",), ("cat", "dog"))
    "class 1 is missing instead of 'dog'"
    """
    pairs = enumerate(itertools.zip_longest(names, expected))
    index, pair = next((index, pair) for index, pair in pairs if pair[0] != pair[1])
    found, wanted = ("missing" if name is None else repr(name) for name in pair)
    return f"class {index} is {found} instead of {wanted}"


def class_places(names: Sequence[str], known: Sequence[str], *, where: str) -> npt.NDArray[np.int64]:
    """Where the classes of a set are among those of a model, by their names; labels index it, also -1, its last value.

    >>> class_places(("dog", "ant"), ("ant", "cat", "dog"), where="photos").tolist()
    [2, 0, -1]
    """
    if tuple(names) == tuple(known):
        return np.array([*range(len(known)), UNLABELLED])
    places = {name: place for place, name in enumerate(known)}
    if unknown := [name for name in names if name not in places]:
        raise ValueError(
            f"{where} has {some(unknown)} among its classes, which the model does not know: it tells apart "
            f"{some(known)}; to predict the images as out of distribution, add --ood"
        )
    return np.array([*(places[name] for name in names), UNLABELLED])


def class_names(source: DataSource, stored: Iterable[str], where: str) -> tuple[str, ...]:
    """Names from the table, else those that the rows came with; where both are there they must agree."""
    names, known = tuple(stored), source.info.classes
    spelt = tuple(MISSPELT.get(name, name) for name in names)
    if names and known and spelt != known:
        raise ValueError(
            f"{where} names other classes than {source.info.title} has, or in another order: "
            f"{first_difference(spelt, known)}"
        )
    return known or names


def numbers_to(largest: int, *, where: str) -> tuple[str, ...]:
    """Names of classes that have none: numbers up to the largest label."""
    if largest >= MOST_CLASSES:
        raise ValueError(
            f"{where}: a label is {largest}; without names of the classes, labels are below {MOST_CLASSES:,}, and "
            f"{UNLABELLED} stands for a sample without a label"
        )
    return tuple(str(index) for index in range(largest + 1))


def require_row_numbers(ids: Tensor, rows: int) -> None:
    """Refuse ids that no stored row has."""
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
        raise ValueError(f"ids must be row numbers in [0, {rows}), got {int(ids.min())} to {int(ids.max())}")


def _joined(chunks: list[Chunk]) -> Chunk:
    return Chunk(
        images=[image for chunk in chunks for image in chunk.images],
        labels=np.concatenate([chunk.labels for chunk in chunks]),
        ids=np.concatenate([chunk.ids for chunk in chunks]),
        files=[file for chunk in chunks for file in chunk.files],
    )
