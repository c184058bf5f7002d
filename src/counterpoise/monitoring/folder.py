"""A monitor from its beginning: labelled predictions, then the stream, then how the model stands."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from counterpoise._choices import DEFAULT_LEVEL, EVERY, Every, require_level
from counterpoise.monitoring.counts import StoredCounts
from counterpoise.monitoring.reading import Piece, classes_of, counted, opened, pieces_of, time_column
from counterpoise.monitoring.standing import Standing, judged, require_coarser
from counterpoise.monitoring.store import WINDOWS, Kept, Reference, create, read_reference, windows_of, write_piece
from counterpoise.monitoring.windows import stamp_of, time_of, window_at_time
from counterpoise.predictions import Columns, Location, PredictionFile, PredictionFileError
from counterpoise.scoring.units import Progress

_WRITERS = 16
"""Files that are written at a time: what takes long is to wait until the disk has each."""


@dataclass(frozen=True)
class Updated:
    """What an update has brought.

    Attributes:
        windows: that the predictions are of.
        kept: files of counts that were written; the others were there already, or had more labels.
        predictions: that were read.
        labelled: those with a label.
        notices: what was taken for what.
    """

    windows: int
    kept: int
    predictions: int
    labelled: int
    notices: tuple[str, ...]


def begin(
    folder: str | Path,
    predictions: Location,
    *,
    columns: Columns | None = None,
    every: Every = "hour",
    start: str | None = None,
    level: float = DEFAULT_LEVEL,
    progress: Progress | None = None,
) -> Reference:
    """Begin a monitor with labelled predictions of a time when the model was fine.

    Args:
        folder: of the monitor; made where it is not there.
        predictions: a file, a folder or a glob of files; not those that the model was trained or calibrated on.
        columns: what columns hold, where their names do not say.
        every: length of the windows that predictions are counted by.
        start: time in the first window, ISO 8601; now.
        level: probability that the monitor never gives a false alarm.
        progress: called after every batch.
    """
    require_level(level)
    if every not in EVERY:
        raise ValueError(f"every is {every!r}; it must be one of {', '.join(EVERY)}")
    time = datetime.now(UTC) if start is None else time_of(start)
    window = window_at_time(time, every)
    if window < 0:
        raise ValueError(f"--start {start}: a monitor begins in 1970 at the earliest")
    files = (file for file, _ in opened(predictions, columns, by=lambda _: None))
    first = next(files)  # a set has at least one
    counts, keys = counted(first, progress=progress)
    for file in files:
        more, others = counted(file, progress=progress)
        counts, keys = counts + more, np.concatenate([keys, others])
    if repeated := len(keys) - len(np.unique(keys)):
        raise PredictionFileError(
            f"{predictions}: {repeated:,} rows have the id of another row and would be counted twice; remove them, or "
            "give each prediction an id of its own"
        )
    if not counts.labelled:
        raise PredictionFileError(f"{first.path}: a monitor begins with labelled predictions, and these have no labels")
    reference = Reference(
        every=every,
        start=stamp_of(window, every),
        level=level,
        classes=classes_of(first),
        class_names=first.header.class_names if classes_of(first) else None,
        source=first.path.name,
        stored=StoredCounts.of(counts),
    )
    create(folder, reference)
    return reference


def update(
    folder: str | Path,
    predictions: Location,
    *,
    columns: Columns | None = None,
    time: str | None = None,
    progress: Progress | None = None,
) -> Updated:
    """Count predictions into a monitor's windows; the same rows given again are counted once, with the most labels.

    Args:
        folder: that `begin` made. Any number of processes may update it at a time.
        predictions: a file, a folder or a glob of files.
        columns: what columns hold, where their names do not say.
        time: the column of times, where its name does not say.
        progress: called after every batch.
    """
    reference = read_reference(folder)
    windows, kept, rows, labelled, notices = set[int](), 0, 0, 0, list[str]()
    for file, column in opened(predictions, columns, by=lambda file: time_column(file, time)):
        _require_same_model(file, reference)
        assert column is not None  # noqa: S101
        pieces = pieces_of(file, time=column, every=reference.every, first=reference.first, progress=progress)
        unsure = list[str]()
        with ThreadPoolExecutor(_WRITERS) as writers:
            for piece, found in writers.map(partial(_written, folder, reference, file), pieces):
                kept += found.new
                if found.unused_labels:
                    notices.append(
                        f"{stamp_of(piece.window, reference.every)}: {found.unused_labels:,} labels are not added to "
                        "those that are there for the same predictions; give all that are known in one file"
                    )
                unsure += [] if found.unsure is None else [found.unsure]
                windows.add(piece.window)
                rows += piece.counts.samples
                labelled += piece.counts.labelled
                if progress is not None:
                    progress(f"{folder}: windows", len(windows), None)
        notices += file.notices
        if unsure:
            notices.append(
                f"{file.path}: {len(unsure):,} of its windows already had rows, and without ids nobody can tell "
                f"whether they are the same; if they are, remove {Path(folder) / WINDOWS / unsure[0]} (and those like "
                "it); give rows an `id`, and each is counted once"
            )
    return Updated(len(windows), kept, rows, labelled, tuple(notices))


def _written(folder: str | Path, reference: Reference, file: PredictionFile, piece: Piece) -> tuple[Piece, Kept]:
    try:
        return piece, write_piece(folder, piece, reference)
    except ValueError as error:
        raise PredictionFileError(f"{file.path}: {error}") from None


def show(folder: str | Path, *, every: Every | None = None, progress: Progress | None = None) -> Standing:
    """How the model stands, from all that has been counted.

    Args:
        folder: of the monitor.
        every: length of the windows that are shown, not shorter than those that are counted; alarms do not hang on it.
        progress: called after every window.
    """
    reference = read_reference(folder)
    require_coarser(reference.every, every or reference.every)

    return judged(reference, windows_of(folder, reference, progress=progress), shown=every)


def _require_same_model(file: PredictionFile, reference: Reference) -> None:
    classes, names = classes_of(file), file.header.class_names
    if classes != reference.classes:
        raise PredictionFileError(
            f"{file.path}: it has {_described(classes)}, and the reference ({reference.source}) has "
            f"{_described(reference.classes)}"
        )
    if classes and None not in (names, reference.class_names) and names != reference.class_names:
        raise PredictionFileError(
            f"{file.path}: its classes are not those of the reference ({reference.source}), or in another order"
        )


def _described(classes: int) -> str:
    return f"{classes:,} classes" if classes else "confidences alone"
