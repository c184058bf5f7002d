"""What there is to score, cut into units that are scored independently, wherever they run.

The plan depends on the files alone, and not on how many workers there are, so that neither do the sums.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from counterpoise._addresses import Address
from counterpoise.predictions import PredictionFile, PredictionFileError, Reading, ShardSet
from counterpoise.predictions.columns import Layout
from counterpoise.predictions.shards import Form, Shard
from counterpoise.scoring.batches import BatchScorer, require_score

UNIT_BYTES = 1 << 28
_STATES = 32
"""A unit is at least as large as this many sets of sums: adding those up shall cost little beside reading it."""
_CLASS_SUMS = 5 * 8
"""Bytes of sums for each class and bin."""


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
    shard: Shard
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
        """The file of a part, held to those of its model."""
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


def parts_of(model: int, job: ModelJob, shards: ShardSet, *, ood: str | None) -> Iterator[Part]:
    """The files of a set, large ones by row groups."""
    wanted = max(UNIT_BYTES, _STATES * job.form.classes * job.scorer.options.bins * _CLASS_SUMS)
    reading = job.reading if ood is None else replace(job.reading, like=job.layout)
    for place, shard in enumerate(shards.shards):
        for each, first_row in _divided(shard, reading, wanted):
            yield Part(model, each, place, first_row, ood)


def _divided(shard: Shard, reading: Reading, wanted: int) -> Iterator[tuple[Shard, int]]:
    size = shard.size or (shard.path.identity()[0] if isinstance(shard.path, Address) else shard.path.stat().st_size)
    if size < 2 * wanted or shard.path.suffix.lower() != ".parquet":
        yield shard, 0
        return
    file = shard.opened(reading)
    groups, first_row = len(file.group_rows), 0
    step = max(1, round(wanted * groups / size))
    if step >= groups:  # also of a file that cannot be divided
        yield replace(shard, source=file.source), 0
        return
    for start in range(0, groups, step):
        own = range(start, min(start + step, groups))
        yield replace(shard, source=file.source, groups=own), first_row
        first_row += sum(file.group_rows[group] for group in own)
