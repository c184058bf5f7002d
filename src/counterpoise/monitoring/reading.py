"""From files of predictions to counts: all of a file, or window by window."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from counterpoise._choices import Every
from counterpoise._files import FilePath
from counterpoise._text import some
from counterpoise.metrics.keys import Keys, sample_keys
from counterpoise.monitoring.counts import Counts
from counterpoise.monitoring.windows import TIMES, microseconds_of, window_of
from counterpoise.predictions import (
    MISSING_LABEL,
    AmbiguousInputError,
    Columns,
    Location,
    PredictionFile,
    PredictionFileError,
    Predictions,
    Reading,
    find_shards,
)
from counterpoise.predictions.columns import one_of
from counterpoise.predictions.formats import open_as
from counterpoise.predictions.names import normal_name
from counterpoise.scoring.batches import checked_rows
from counterpoise.scoring.units import Progress

_ROW_DIGEST = 16
"""Bytes of the digest of a row: two rows of one window that share it are the same row."""

Digests = NDArray[np.uint8]


@dataclass(frozen=True)
class Piece:
    """What one file says of one window.

    Attributes:
        window: number of it.
        source: digest of the rows without their labels, whatever their order.
        labels: digest of which labels are there, and which predictions they say are right.
        counts: of the rows.
        ids: keys of the rows in their order, or None where rows have no ids.
    """

    window: int
    source: str
    labels: str
    counts: Counts
    ids: Keys | None


@dataclass
class _Window:
    """A piece in the making."""

    counts: Counts
    rows: list[Digests] = field(default_factory=list)
    hits: list[NDArray[np.int8]] = field(default_factory=list)
    ids: list[Keys] = field(default_factory=list)

    def piece(self, window: int) -> Piece:
        rows, hits = np.concatenate(self.rows), np.concatenate(self.hits)
        words = rows.view(">u8")
        order = np.lexsort((hits, words[:, 1], words[:, 0]))
        rows, hits = rows[order], hits[order]
        labelled = hits >= 0
        labels = hashlib.sha256(rows[labelled].tobytes() + hits[labelled].tobytes()).hexdigest()
        source = hashlib.sha256(rows.tobytes()).hexdigest()[:32]
        return Piece(window, source, labels[:16], self.counts, np.sort(np.concatenate(self.ids)) if self.ids else None)


def classes_of(file: PredictionFile) -> int:
    """K, or 0 where only the confidence of the predicted class is known."""
    return 0 if file.kind == "confidence" else file.classes


def opened(location: Location, columns: Columns | None, *, by: Callable[[PredictionFile], str | None]) -> Iterator[
    tuple[PredictionFile, str | None]
]:  # fmt: skip
    """The files of one model, each with the column that `by` names."""
    reading, form = Reading(columns or Columns()), None
    shards = find_shards(location)
    if reading.columns.labels is not None and len(shards.shards) > 1:
        raise PredictionFileError(f"{shards.name}: labels of a file of their own belong to one file, not to several")
    for shard in shards.shards:
        file = shard.opened(reading)
        if file.kind == "multilabel":
            raise PredictionFileError(f"{file.path}: a monitor is for one label a sample, and this has several")
        if len(models := file.models()) > 1:
            raise PredictionFileError(
                f"{file.path}: it holds the models {some(models)}; write each to a file, and begin a monitor for each"
            )
        named = by(file)
        if named is not None:
            file = open_as(file.source, replace(reading, by=(named,)))
        this = (file.kind, file.classes, file.header.class_names)
        if form is not None and this != form:
            raise PredictionFileError(f"{file.path}: it is not of the same model as the files before it")
        form = this
        yield file, named


def time_column(file: PredictionFile, chosen: str | None) -> str:
    """The column of times: the one that was chosen, or the only one of a known name."""
    if chosen is not None:
        return chosen  # the reader says so where there is none
    names = file.layout.ignored
    found = one_of(names, TIMES, None, option="time")
    if found is None:
        known = [name for name in names if any(word in normal_name(name) for word in ("time", "date"))]
        choices = [({"time": name}, "") for name in known or names]
        raise AmbiguousInputError(f"{file.path}: which column holds the times?", choices)
    return found


def counted(file: PredictionFile, *, progress: Progress | None = None) -> tuple[Counts, Keys]:
    """All rows of a file, and the keys of their ids; no keys where they have none."""
    counts, keys = Counts.zeros(classes_of(file)), [np.zeros(0, np.uint64)]
    for table, first_row in _batches(file, progress):
        counts.add(*_outcomes(file, table, first_row))
        if file.has_ids:
            keys.append(sample_keys(table.ids))
    return counts, np.concatenate(keys)


def pieces_of(
    file: PredictionFile, *, time: str, every: Every, first: int, progress: Progress | None = None
) -> Iterator[Piece]:
    """The rows of a file, window by window.

    Args:
        file: that was opened by the column of times.
        time: the column.
        every: length of the windows.
        first: window that the monitor begins with; an earlier time is refused.
        progress: called after every batch.
    """
    windows: dict[int, _Window] = {}
    for table, first_row in _batches(file, progress):
        times = _times(file.path, table, time, first_row)
        window = window_of(times, every)
        if len(early := np.flatnonzero(window < first)):
            row = int(early[0])
            raise PredictionFileError(
                f"{file.path}: row {first_row + row}, column {time!r} is {_text(table, time, row)!r}, before the "
                "monitor begins; leave such rows out, or begin a monitor with an earlier --start"
            )
        confidence, predicted, hit = _outcomes(file, table, first_row)
        digests = _row_digests(table, times, with_ids=file.has_ids)
        for each in np.unique(window).tolist():
            rows = window == each
            own = windows.setdefault(each, _Window(Counts.zeros(classes_of(file))))
            own.counts.add(confidence[rows], predicted[rows], hit[rows])
            own.rows.append(digests[rows])
            own.hits.append(hit[rows])
            if file.has_ids:
                own.ids.append(sample_keys(table.ids[rows]))
    return (_without_repeats(windows[each].piece(each), file) for each in sorted(windows))


def _without_repeats(piece: Piece, file: PredictionFile) -> Piece:
    """The piece, unless an id occurs twice in it."""
    if piece.ids is None or not len(again := np.flatnonzero(piece.ids[1:] == piece.ids[:-1])):
        return piece
    ids = (table.ids[sample_keys(table.ids) == piece.ids[again[0]]] for table in file.batches())
    repeated = next(each[0] for each in ids if len(each))
    raise PredictionFileError(
        f"{file.path}: id {str(repeated)!r:.80} occurs more than once in a window, so its row would be counted twice; "
        "remove the repeated rows, or give each prediction an id of its own"
    )


def _batches(file: PredictionFile, progress: Progress | None) -> Iterator[tuple[Predictions, int]]:
    row = 0
    for table in file.batches():
        yield table, row
        row += len(table)
        if progress is not None:
            progress(str(file.path), row, file.rows)


def _outcomes(
    file: PredictionFile, table: Predictions, first_row: int
) -> tuple[NDArray[np.floating], NDArray[np.int64], NDArray[np.int8]]:
    """Confidence, predicted class, and whether it was right: 1, 0, or -1 where there is no label."""
    try:
        batch = checked_rows(table, np.ones(len(table), bool), labelled=False, first_row=first_row)
    except ValueError as error:
        raise PredictionFileError(f"{file.path}: {error}") from None
    largest, place = batch.probabilities.max(-1)
    predicted = place.numpy()
    hit = np.where(table.labels == MISSING_LABEL, -1, predicted == table.labels).astype(np.int8)
    return largest.clamp(max=1).numpy(), predicted, hit


def _times(path: FilePath, table: Predictions, name: str, first_row: int) -> NDArray[np.int64]:
    column = table.groups[name]
    if len(missing := np.flatnonzero(column.codes < 0)):
        raise PredictionFileError(f"{path}: row {first_row + int(missing[0])}, column {name!r} is missing; fill it in")
    times, given = microseconds_of(column.names)
    if len(wrong := np.flatnonzero(~given[column.codes])):
        row = int(wrong[0])
        raise PredictionFileError(
            f"{path}: row {first_row + row}, column {name!r} is {_text(table, name, row)!r:.60}, no time from 1970 on; "
            "write ISO 8601 or Unix seconds, or name another column with --time"
        )
    return times[column.codes]


def _text(table: Predictions, name: str, row: int) -> str:
    column = table.groups[name]
    return str(column.names[column.codes[row]])


def _row_digests(table: Predictions, times: NDArray[np.int64], *, with_ids: bool) -> Digests:
    """A digest of each row without its label, `[n, 16]`: time, id where there is one, and what was predicted."""
    values = np.ascontiguousarray(table.values)
    data = memoryview(values.tobytes())
    width = len(data) // len(values)
    ids = table.ids.tolist() if with_ids else [""] * len(values)
    found = bytearray()
    for row, (time, own) in enumerate(zip(times.tolist(), ids, strict=True)):
        head = hashlib.blake2b(f"{time} {own!r} {width} ".encode("utf-8", "backslashreplace"), digest_size=_ROW_DIGEST)
        head.update(data[row * width : (row + 1) * width])
        found += head.digest()
    return np.frombuffer(bytes(found), np.uint8).reshape(-1, _ROW_DIGEST)
