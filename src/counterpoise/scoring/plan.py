"""What there is to score, cut into units that are scored independently, wherever they run.

The plan depends on the files alone, and not on how many workers there are, so that neither do the sums.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from counterpoise._files import FilePath
from counterpoise.predictions import PredictionFile, PredictionFileError, Reading
from counterpoise.predictions.columns import Layout
from counterpoise.predictions.shards import Form
from counterpoise.scoring.batches import BatchScorer, require_score

UNIT_BYTES = 1 << 28
_STATES = 32
"""A unit is at least as large as this many sets of sums: adding those up shall cost little beside reading it."""
_CLASS_SUMS = 5 * 8
"""Bytes of sums for each class and bin."""


class TableShard(Protocol):
    """What opens as a file of predictions: one on disk, or one that is predicted as it is read.

    Attributes:
        path: what it is called.
        groups: the row groups of it, where they are not all.
    """

    @property
    def path(self) -> FilePath: ...

    @property
    def groups(self) -> range | None: ...

    def opened(self, reading: Reading, *, first: Form | None = None) -> PredictionFile: ...

    def divided(self, reading: Reading, wanted: int) -> Iterator[tuple["TableShard", int]]:
        """Parts of about so many bytes, each with the row that it starts at."""
        ...


class Tables(Protocol):
    """Shards of one table, in order, and what they are called together."""

    @property
    def name(self) -> str: ...

    @property
    def shards(self) -> Sequence[TableShard]: ...


@dataclass(frozen=True)
class Part:
    """A file, or some row groups of it, that belongs to a model.

    Attributes:
        model: place of the model.
        shard: the file.
        place: of the file in its set.
        first_row: of the part in the file.
        ood: name of the OOD set that it is.
    """

    model: int
    shard: TableShard
    place: int
    first_row: int
    ood: str | None


Unit = tuple[Part, ...]
"""Parts that are scored together: one, or one of each model, whose samples are then paired at once."""


@dataclass(frozen=True)
class ModelJob:
    """How the files of one model are read and scored.

    Attributes:
        reading: of its files.
        form: of the first of them, which all others have.
        layout: of the first of them, which OOD files may lack parts of.
        scorer: for its batches.
    """

    reading: Reading
    form: Form
    layout: Layout
    scorer: BatchScorer

    def opened(self, part: Part) -> PredictionFile:
        like = None if part.ood is None else self.layout
        form = self.form if part.ood is None else None
        file = part.shard.opened(replace(self.reading, like=like), first=form)
        require_score(file, self.scorer.options.score)
        if (file.kind, file.classes) != (self.form.kind, self.form.classes):
            raise PredictionFileError(
                f"{file.path}: it holds {file.kind} for {file.classes} classes, "
                f"{self.form.path} holds {self.form.kind} for {self.form.classes}"
            )
        return file


def units_of(parts: Sequence[Sequence[Part]]) -> Iterator[Unit]:
    """Parts of each model, side by side where all have as many, else those of the model that is behind first."""
    if len({len(own) for own in parts}) == 1:
        yield from zip(*parts, strict=True)
        return
    placed = [((index + 0.5) / len(own), part.model, part) for own in parts for index, part in enumerate(own)]
    yield from ((part,) for _, _, part in sorted(placed, key=lambda each: each[:2]))


def parts_of(model: int, job: ModelJob, shards: Tables, *, ood: str | None) -> Iterator[Part]:
    """The files of a set, large ones by row groups."""
    wanted = max(UNIT_BYTES, _STATES * job.form.classes * job.scorer.options.bins * _CLASS_SUMS)
    reading = job.reading if ood is None else replace(job.reading, like=job.layout)
    for place, shard in enumerate(shards.shards):
        for each, first_row in shard.divided(reading, wanted):
            yield Part(model, each, place, first_row, ood)
