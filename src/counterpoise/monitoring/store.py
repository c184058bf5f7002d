"""A monitor's folder: what it began with, and a file of counts for each window and source.

    FOLDER/reference.json
    FOLDER/windows/20260301T05-SOURCE-000000000250-LABELS.json

A file is named by its window, by a digest of the rows without their labels, by the number of labels, and by a digest of
these. So the same predictions given again are the same file; with more labels they are another one, which counts in
place of the first; and writers need no lock, because different content has different names. What a killed writer did
not finish is not there, or is a hidden temporary file that nobody reads.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from counterpoise._choices import Every, require_level
from counterpoise._documents import from_document, to_document
from counterpoise._files import write_text
from counterpoise.monitoring.counts import CELLS, Counts, StoredCounts
from counterpoise.monitoring.reading import Piece
from counterpoise.monitoring.windows import STAMP, shown_start, stamp_of, window_at
from counterpoise.scoring.units import Progress

REFERENCE, WINDOWS = "reference.json", "windows"
_SCHEMA, _PIECE_SCHEMA, _VERSION = "counterpoise.reference", "counterpoise.window", 1
_NAME = re.compile(
    rf"(?P<stamp>{STAMP})-(?P<source>[0-9a-f]{{32}})-(?P<labelled>[0-9]{{12}})-(?P<labels>[0-9a-f]{{16}})\.json"
)
_NUMBER_BYTES = 24
"""At most, of a number in JSON with what stands around it."""
_MOST_CLASSES = 1_000_000


@dataclass(frozen=True)
class Reference:
    """What a monitor began with.

    Attributes:
        every: length of its windows.
        start: stamp of the first of them.
        level: probability that it never gives a false alarm.
        classes: K, or 0 where only the confidence of the predicted class is known.
        class_names: where they are known.
        source: name of the file of labelled predictions.
        stored: counts of them.
    """

    every: Every
    start: str
    level: float
    classes: int
    class_names: tuple[str, ...] | None
    source: str
    stored: StoredCounts

    @cached_property
    def counts(self) -> Counts:
        return self.stored.counts(self.classes)

    @cached_property
    def first(self) -> int:
        return window_at(self.start, self.every)

    @property
    def shown_start(self) -> str:
        return shown_start(self.first, self.every)


@dataclass(frozen=True)
class _StoredPiece:
    window: str
    source: str
    labels: str
    stored: StoredCounts


@dataclass(frozen=True, order=True)
class _Name:
    """A name, in the order in which of several of one window and source the last counts."""

    window: int
    source: str
    labelled: int
    labels: str
    name: str


def create(folder: str | Path, reference: Reference) -> Path:
    """Begin a folder; to begin the same again changes nothing."""
    path = Path(folder) / REFERENCE
    text = to_document(reference, schema=_SCHEMA, version=_VERSION)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if path.read_text(encoding="utf-8") != text:
            raise ValueError(f"{folder}: a monitor with another reference began here; name another folder")
        return path
    if any(path.parent.glob("[!.]*")):
        raise ValueError(f"{folder}: it holds other files; name a folder of the monitor's own")
    write_text(path, text)
    return path


def read_reference(folder: str | Path) -> Reference:
    """What the monitor of a folder began with."""
    path = Path(folder) / REFERENCE
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: no monitor began here; counterpoise monitor begin {folder} LABELLED_PREDICTIONS"
        )
    try:
        text = _bounded(path, _NUMBER_BYTES * (6 * CELLS + 2 * _MOST_CLASSES) + 100 * _MOST_CLASSES)
        found = from_document(Reference, text, schema=_SCHEMA, version=_VERSION)
        require_level(found.level)
        if not 0 <= found.classes <= _MOST_CLASSES:
            raise ValueError(f"a monitor has at most {_MOST_CLASSES:,} classes, not {found.classes:,}")
        if found.class_names is not None and len(found.class_names) != found.classes:
            raise ValueError(f"it has {len(found.class_names)} names for {found.classes} classes")
        if not found.counts.labelled or found.first < 0:
            raise ValueError("it has no labelled predictions")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return found


def write_piece(folder: str | Path, piece: Piece, reference: Reference) -> tuple[bool, bool]:
    """Keep a piece unless as many labels are there; whether it was kept, and whether those are others than its own."""
    target = Path(folder) / WINDOWS
    target.mkdir(exist_ok=True)
    stamp = stamp_of(piece.window, reference.every)
    own = _Name(
        piece.window,
        piece.source,
        piece.counts.labelled,
        piece.labels,
        f"{stamp}-{piece.source}-{piece.counts.labelled:012d}-{piece.labels}.json",
    )
    before = [
        _parsed(path, reference.every)
        for path in target.glob(f"{stamp}-{piece.source}-*.json")
        if not path.is_symlink()
    ]
    as_many = {each.labels for each in before if each.labelled >= own.labelled}
    others = piece.counts.labelled > 0 and bool(as_many) and piece.labels not in as_many
    if any(each >= own for each in before):
        return False, others
    stored = _StoredPiece(stamp, piece.source, piece.labels, StoredCounts.of(piece.counts))
    write_text(target / own.name, to_document(stored, schema=_PIECE_SCHEMA, version=_VERSION, indent=None))
    for each in before:  # what this one replaces; a reader that saw the name looks again
        with suppress(OSError):
            (target / each.name).unlink(missing_ok=True)
    return True, others


def windows_of(
    folder: str | Path, reference: Reference, *, progress: Progress | None = None
) -> Iterator[tuple[int, Counts]]:
    """Each window with predictions, in their order: its number and its counts."""
    target = Path(folder) / WINDOWS
    # Listed twice: while a file takes the place of another, one listing may come too early for the one and too late
    # for the other.
    found = [path for _ in range(2) if target.is_dir() for path in target.iterdir()]
    best: dict[tuple[int, str], _Name] = {}
    for path in (path for path in set(found) if not path.name.startswith(".")):
        if path.is_symlink() or path.is_dir():
            raise ValueError(f"{path}: it is a link or a folder, which no monitor writes; remove it")
        name = _parsed(path, reference.every)
        if name.window < reference.first:
            raise ValueError(f"{path}: it is of a window before the monitor's first, {reference.start}; remove it")
        key = (name.window, name.source)
        best[key] = max(name, best.get(key, name))
    window, counts = -1, Counts.zeros(reference.classes)
    for done, name in enumerate(sorted(best.values())):
        if name.window != window and done:
            yield window, counts
            counts = Counts.zeros(reference.classes)
        window, counts = name.window, counts + _read(target / name.name, name, reference)
        if progress is not None:
            progress(str(target), done + 1, len(best))
    if best:
        yield window, counts


def _parsed(path: Path, every: Every) -> _Name:
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise ValueError(f"{path}: it is no file of a monitor; remove it")
    try:
        window = window_at(found["stamp"], every)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; remove it") from None
    return _Name(window, found["source"], int(found["labelled"]), found["labels"], path.name)


def _read(path: Path, name: _Name, reference: Reference) -> Counts:
    try:
        text = _bounded(_latest(path, name, reference), 1000 + _NUMBER_BYTES * (4 * CELLS + 2 * reference.classes))
        found = from_document(_StoredPiece, text, schema=_PIECE_SCHEMA, version=_VERSION)
        counts = found.stored.counts(reference.classes)
        own = (stamp_of(name.window, reference.every), name.source)
        if (found.window, found.source) != own or counts.labelled < name.labelled:
            raise ValueError("it does not hold what its name says")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; restore it, or remove it and give its predictions again") from None
    return counts


def _latest(path: Path, name: _Name, reference: Reference) -> Path:
    """The file, or the one with more labels that has taken its place since its name was read."""
    if path.exists():
        return path
    stamp = stamp_of(name.window, reference.every)
    found = [_parsed(each, reference.every) for each in path.parent.glob(f"{stamp}-{name.source}-*.json")]
    return path.parent / max(found).name if found else path


def _bounded(path: Path, most: int) -> str:
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is larger than the {most:,} bytes that it can have")
    return data.decode("utf-8")
