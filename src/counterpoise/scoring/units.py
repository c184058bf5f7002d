"""One unit of a plan in, sums and what else is known of it out."""

import hashlib
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch

from counterpoise.metrics.keys import Keys
from counterpoise.metrics.protocol import Metric
from counterpoise.metrics.state import ScoreState
from counterpoise.predictions import PredictionFile, Predictions
from counterpoise.scoring.batches import FileBatch, Marks
from counterpoise.scoring.join import Joined, SampleJoin, Samples
from counterpoise.scoring.plan import ModelJob, Part, Unit

T = TypeVar("T")
R = TypeVar("R")

"""By columns that were named: each has sums of its own, and a row of a table."""

States = dict[int, ScoreState]
"""By model."""
Progress = Callable[[str, int, int | None], None]
"""Takes the file's name, the rows done, and the number of all rows where it is known."""


@dataclass(frozen=True)
class PartReport:
    """What a part says of itself.

    Attributes:
        part: that was read.
        digest: of its file, where it was verified.
        notices: of its file.
        splits: that its in-distribution rows belong to, "" where none is named.
        rows: how many.
        content: digest of its predictions and labels, where it has no ids.
    """

    part: Part
    digest: str | None
    notices: tuple[str, ...]
    splits: tuple[str, ...]
    rows: int
    content: str


class Sink(Protocol):
    """Takes what is too much to be kept until a unit is done."""

    def identities(self, model: int, ood: str | None, keys: Keys) -> None:
        """Of some rows: no two of a model and set may be alike."""

    def joined(self, part: str, join: SampleJoin | Joined) -> None:
        """How the samples of several models go together; see `Marks.part`."""


@dataclass
class Collected:
    """A sink that keeps everything, for what happens in another process."""

    keys: list[tuple[int, str | None, Keys]] = field(default_factory=list)
    joins: list[tuple[str, Joined]] = field(default_factory=list)

    def identities(self, model: int, ood: str | None, keys: Keys) -> None:
        self.keys.append((model, ood, keys))

    def joined(self, part: str, join: SampleJoin | Joined) -> None:
        assert not isinstance(join, Joined)  # noqa: S101
        self.joins.append((part, Joined.of(join)))

    def pour(self, sink: Sink) -> None:
        for each in self.keys:
            sink.identities(*each)
        for part, join in self.joins:
            sink.joined(part, join)


def score_unit(
    models: Sequence[ModelJob],
    unit: Unit,
    *,
    threads: int,
    progress: Progress | None,
    sink: Sink,
) -> tuple[States, list[PartReport]]:
    """Read the parts of a unit side by side, so that samples that are compared need not wait for each other.

    Args:
        models: how each is read and scored.
        unit: the parts.
        threads: batches that are measured at a time.
        progress: called after every batch.
        sink: takes what belongs to single rows.
    """
    states: States = {}
    rows, contents = dict.fromkeys(unit, 0), {part: _Content() for part in unit}

    def scored(read: "_Read") -> tuple[_Read, ScoreState, list[Marks], Keys | None]:
        own = read.batch.identities() if read.batch.file.has_ids else None
        return read, *models[read.part.model].scorer.score(read.batch), own

    files = {part: models[part.model].opened(part) for part in unit}
    with tempfile.TemporaryDirectory(prefix="counterpoise-") as folder:
        joins = _Joins(len(models), Path(folder))
        for read, state, marks, own in ordered_map(scored, _side_by_side(files, progress), threads=threads):
            model = read.part.model
            rows[read.part] += len(read.batch.table)
            if own is not None:
                sink.identities(model, read.part.ood, own)
            else:
                contents[read.part].add(read.batch.table)
            joins.add(model, marks)
            _merge(states, {model: state})
        joins.pour(sink)
    _settle(states)
    reports = []
    for part, file in files.items():
        splits = () if part.ood is not None else tuple(states[part.model].names.get("split", ()))
        content = f"{part}" if file.has_ids else contents[part].digest()
        reports.append(PartReport(part, file.digest, file.notices, splits, rows[part], content))
    return states, reports


class _Content:
    """Digest of predictions and labels, the same however they are divided into batches."""

    def __init__(self) -> None:
        self._values, self._labels = hashlib.blake2b(), hashlib.blake2b()

    def add(self, table: Predictions) -> None:
        for digest, column in ((self._values, table.values), (self._labels, table.labels)):
            digest.update(np.ascontiguousarray(column).data)

    def digest(self) -> str:
        return self._values.hexdigest() + self._labels.hexdigest()


Packed = tuple[dict[int, bytes], tuple[Metric, ...]]
"""States as bytes, with the metrics that they need to be read."""


def score_remotely(models: Sequence[ModelJob], unit: Unit) -> tuple[Packed, tuple[list[PartReport], Collected]]:
    """`score_unit` in a worker process."""
    torch.set_num_threads(1)
    sink = Collected()
    states, reports = score_unit(models, unit, threads=1, progress=None, sink=sink)
    return _packed(states), (reports, sink)


def merge_remotely(parts: Iterable[Packed]) -> Packed:
    """`merge_states` in a worker process."""
    return _packed(merge_states(map(unpacked, parts)))


def merge_states(parts: Iterable[States]) -> States:
    """The sums of all, which are taken one after the other."""
    first: States = {}
    for part in parts:
        _merge(first, part)
    _settle(first)
    return first


def _merge(first: States, other: States) -> None:
    for model, state in other.items():
        if model in first:
            first[model].merge(state)
        else:
            first[model] = state


def _settle(states: States) -> None:
    """As if they had been written and read: a worker's are."""
    for state in states.values():
        state.settle()


def unpacked(packed: Packed) -> States:
    """States from their bytes."""
    states, metrics = packed
    return {model: ScoreState.from_bytes(data, metrics=metrics) for model, data in states.items()}


def _packed(states: States) -> Packed:
    metrics = next((state.options.metrics for state in states.values()), ())
    return {model: state.to_bytes() for model, state in states.items()}, metrics


@dataclass(frozen=True)
class _Read:
    part: Part
    batch: FileBatch


def _side_by_side(files: Mapping[Part, PredictionFile], progress: Progress | None) -> Iterator[_Read]:
    """Batches of all parts, those of the part that is furthest behind first."""
    streams = {part: _reads(part, file, progress) for part, file in files.items()}
    rows = dict.fromkeys(files, 0)
    while streams:
        behind = min(streams, key=rows.__getitem__)
        read = next(streams[behind], None)
        if read is None:
            del streams[behind]
            continue
        rows[behind] += len(read.batch.table)
        yield read


def _reads(part: Part, file: PredictionFile, progress: Progress | None) -> Iterator[_Read]:
    row = part.first_row
    for table in file.batches(part.shard.groups):
        yield _Read(part, FileBatch(file, table, row, part.place, part.ood))
        row += len(table)
        if progress is not None:
            progress(file.path.name, row, file.rows)


class _Joins:
    """The samples of several models, joined by what is compared."""

    def __init__(self, models: int, folder: Path) -> None:
        self._models, self._folder = models, folder
        self._joins: dict[str, SampleJoin] = {}

    def add(self, model: int, marks: Sequence[Marks]) -> None:
        for part, keys, values in marks:
            if part not in self._joins:
                folder = self._folder / str(len(self._joins))
                folder.mkdir()
                self._joins[part] = SampleJoin(self._models, values.shape[-1], folder)
            self._joins[part].add(model, Samples(keys, values))

    def pour(self, sink: Sink) -> None:
        for part, join in self._joins.items():
            sink.joined(part, join)


def ordered_map(function: Callable[[T], R], items: Iterable[T], *, threads: int) -> Iterator[R]:
    """`map(function, items)`, computed by some threads while the items after them are produced here.

    At most `threads + 1` items are held at a time. An exception of the function or of the items ends it.

    >>> list(ordered_map(lambda number: number**2, range(5), threads=2))
    [0, 1, 4, 9, 16]
    """
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="counterpoise") as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
