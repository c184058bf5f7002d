"""A monitor's folder: what it began with, and a file of counts for each window and source.

    FOLDER/reference.json
    FOLDER/windows/20260301T05-SOURCE-000000000250-LABELS.json
    FOLDER/windows/20260301T05-SOURCE.ids

A file is named by its window, by a digest of the rows without their labels, by the number of labels, and by a digest of
these. So the same predictions given again are the same file; with more labels they are another one, which counts in
place of the first; and writers need no lock, because different content has different names. What a killed writer did
not finish is not there, or is a hidden temporary file that nobody reads.

Rows with ids have a file of 64 bits for each. A source all of whose ids are in larger ones does not count, whichever
came first; two sources that share some of their ids are rejected.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from counterpoise._choices import Every, require_level
from counterpoise._documents import from_document, to_document
from counterpoise._files import replacing, write_text
from counterpoise.metrics.keys import Keys
from counterpoise.monitoring.counts import CELLS, Counts, StoredCounts
from counterpoise.monitoring.reading import Piece
from counterpoise.monitoring.windows import STAMP, shown_start, stamp_of, window_at
from counterpoise.scoring.units import Progress

REFERENCE, WINDOWS = "reference.json", "windows"
_SCHEMA, _PIECE_SCHEMA, _VERSION = "counterpoise.reference", "counterpoise.window", 1
_NAME = re.compile(
    rf"(?P<stamp>{STAMP})-(?P<source>[0-9a-f]{{32}})-(?P<labelled>[0-9]{{12}})-(?P<labels>[0-9a-f]{{16}})\.json"
)
_IDS = re.compile(rf"{STAMP}-[0-9a-f]{{32}}\.ids")
_LOOKS = 5
"""At a window, while a file takes the place of another between its listing and its reading."""
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
    ids: str | None = None
    """SHA-256 of the file of ids, where rows have ids."""


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


class Kept(NamedTuple):
    """What became of a piece.

    Attributes:
        new: whether it was kept; otherwise its rows are there already.
        unused_labels: of this piece or of those that it replaces, which are not the labels that count now.
        unsure: another file of its window, where one of the two has no ids: nobody can tell whether they share rows.
    """

    new: bool
    unused_labels: int = 0
    unsure: str | None = None


def write_piece(folder: str | Path, piece: Piece, reference: Reference) -> Kept:
    """Keep a piece unless its rows are there with as many labels; what it contains is removed.

    `ValueError` where it shares some of its ids, and not all, with another.
    """
    target = Path(folder) / WINDOWS
    target.mkdir(exist_ok=True)
    stamp = stamp_of(piece.window, reference.every)
    labelled = piece.counts.labelled
    name = f"{stamp}-{piece.source}-{labelled:012d}-{piece.labels}.json"
    own = _Name(piece.window, piece.source, labelled, piece.labels, name)
    before = _names(target.glob(f"{stamp}-*.json"), reference.every)
    if own in before:
        return Kept(new=False)
    pieces, ids = _pieces(target, before, reference)
    before, ids = list(pieces), ids | {own.source: piece.ids}
    counting = _counting([*before, own], ids, target)
    if own not in counting:
        rivals = [each for each in before if each.source == own.source and each.labelled >= labelled]
        if rivals:
            unused = 0 if own.labels in {each.labels for each in rivals} else labelled
        else:
            unused = max(0, labelled - sum(each.labelled for each in counting))
        return Kept(new=False, unused_labels=unused)
    replaced = [each for each in before if each not in counting]
    content = None if piece.ids is None else piece.ids.astype("<u8").tobytes()
    if content is not None:
        with replacing(target / _ids_name(stamp, own)) as temporary:
            temporary.write_bytes(content)
    digest = None if content is None else hashlib.sha256(content).hexdigest()
    stored = _StoredPiece(stamp, piece.source, piece.labels, StoredCounts.of(piece.counts), digest)
    write_text(target / own.name, to_document(stored, schema=_PIECE_SCHEMA, version=_VERSION, indent=None))
    for each in replaced:  # a reader that saw the name looks again
        with suppress(OSError):
            (target / each.name).unlink(missing_ok=True)
            if each.source != own.source:
                (target / _ids_name(stamp, each)).unlink(missing_ok=True)
    others = [each for each in counting if each != own]
    unsure = next((each.name for each in others if ids[each.source] is None or piece.ids is None), None)
    return Kept(new=True, unused_labels=max(0, sum(each.labelled for each in replaced) - labelled), unsure=unsure)


def windows_of(
    folder: str | Path, reference: Reference, *, progress: Progress | None = None
) -> Iterator[tuple[int, Counts]]:
    """Each window with predictions, in their order: its number and its counts."""
    target = Path(folder) / WINDOWS
    # Listed twice: while a file takes the place of another, one listing may come too early for the one and too late
    # for the other.
    found = [path for _ in range(2) if target.is_dir() for path in target.iterdir()]
    windows: dict[int, list[_Name]] = {}
    for name in _names(set(found), reference.every):
        if name.window < reference.first:
            raise ValueError(
                f"{target / name.name}: it is of a window before the monitor's first, {reference.start}; remove it"
            )
        windows.setdefault(name.window, []).append(name)
    for done, window in enumerate(sorted(windows)):
        yield window, _counts_of(target, windows[window], reference)
        if progress is not None:
            progress(str(target), done + 1, len(windows))


def _counts_of(target: Path, names: list[_Name], reference: Reference) -> Counts:
    """Of one window."""
    pieces, ids = _pieces(target, names, reference)
    counts = [pieces[each].stored.counts(reference.classes) for each in _counting(pieces, ids, target)]
    return sum(counts, Counts.zeros(reference.classes))


def _pieces(
    target: Path, names: list[_Name], reference: Reference, *, looks: int = _LOOKS
) -> tuple[dict[_Name, _StoredPiece], dict[str, Keys | None]]:
    """The files of one window, and the ids of each source; what has been replaced since is looked for again."""
    try:
        pieces = {each: _read(target / each.name, each, reference) for each in names}
        return pieces, {each.source: _ids(target, each, piece, reference) for each, piece in pieces.items()}
    except FileNotFoundError as error:
        again = _names(target.glob(f"{stamp_of(names[0].window, reference.every)}-*.json"), reference.every)
        if not looks:
            raise ValueError(f"{error.filename}: it is missing; restore it, or give its predictions again") from None
        return _pieces(target, again, reference, looks=looks - 1)


def _counting(names: Iterable[_Name], ids: Mapping[str, Keys | None], target: Path) -> list[_Name]:
    """The files of one window that count: of each source the last, if its ids are not all in larger ones."""
    best: dict[str, _Name] = {}
    for name in names:
        best[name.source] = max(name, best.get(name.source, name))
    kept, known = [each for each in best.values() if ids[each.source] is None], np.zeros(0, np.uint64)
    with_ids = [(own, each) for each in best.values() if (own := ids[each.source]) is not None]
    for own, each in sorted(with_ids, key=lambda pair: (len(pair[0]), pair[1].labelled, pair[1]), reverse=True):
        shared = np.intersect1d(own, known, assume_unique=True)
        if not len(shared):
            kept.append(each)
            known = np.concatenate([known, own])
        elif len(shared) < len(own):
            raise ValueError(
                f"the window of {target / each.name} has {len(shared):,} of its {len(own):,} ids in other rows too, "
                "which would be counted twice; give one file with all rows, or one with new rows alone"
            )
    return kept


def _ids(target: Path, name: _Name, piece: _StoredPiece, reference: Reference) -> Keys | None:
    """Keys of the rows of a file, or None where they have no ids."""
    if piece.ids is None:
        return None
    path = target / _ids_name(stamp_of(name.window, reference.every), name)
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != piece.ids:
        raise ValueError(f"{path}: it is damaged; restore it, or remove {name.name} and give its predictions again")
    return np.frombuffer(content, "<u8").astype(np.uint64)


def _ids_name(stamp: str, name: _Name) -> str:
    return f"{stamp}-{name.source}.ids"


def _names(paths: Iterable[Path], every: Every) -> list[_Name]:
    """Those of counts; what no monitor wrote is a `ValueError`."""
    found = []
    for path in sorted(paths):
        if path.name.startswith("."):
            continue
        if path.is_symlink() or path.is_dir():
            raise ValueError(f"{path}: it is a link or a folder, which no monitor writes; remove it")
        if not _IDS.fullmatch(path.name):
            found.append(_parsed(path, every))
    return found


def _parsed(path: Path, every: Every) -> _Name:
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise ValueError(f"{path}: it is no file of a monitor; remove it")
    try:
        window = window_at(found["stamp"], every)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; remove it") from None
    return _Name(window, found["source"], int(found["labelled"]), found["labels"], path.name)


def _read(path: Path, name: _Name, reference: Reference) -> _StoredPiece:
    try:
        text = _bounded(path, 1000 + _NUMBER_BYTES * (4 * CELLS + 2 * reference.classes))
        found = from_document(_StoredPiece, text, schema=_PIECE_SCHEMA, version=_VERSION)
        own = (stamp_of(name.window, reference.every), name.source)
        if (found.window, found.source) != own or found.stored.counts(reference.classes).labelled < name.labelled:
            raise ValueError("it does not hold what its name says")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; restore it, or remove it and give its predictions again") from None
    return found


def _bounded(path: Path, most: int) -> str:
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is larger than the {most:,} bytes that it can have")
    return data.decode("utf-8")
