"""Files of predictions in, `Evaluation` out: one pass over each file, in memory that does not grow with the rows."""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics import Metric, Scores
from counterpoise.metrics.comparison import PAIRED, Comparison, Evaluation, compare
from counterpoise.metrics.headline import OOD
from counterpoise.metrics.keys import Keys
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.state import ScoreState
from counterpoise.predictions import (
    AmbiguousInputError,
    Columns,
    Location,
    PredictionFile,
    Reading,
    find_shards,
)
from counterpoise.scoring.batches import (
    CLEAN,
    CORRUPTED,
    OOD_SET,
    BatchScorer,
    FileBatch,
    Marks,
)
from counterpoise.scoring.join import SampleJoin, Samples
from counterpoise.scoring.models import File, Model, distinct, label_indices, models_of, named
from counterpoise.scoring.parallel import ordered_map

DEFAULT_THREADS = 2
EXACT_SAMPLES = 1_000_000
"""Up to this many samples ranks are exact; beyond, they come from a fine histogram with a stated error bound."""


ReadAs = Literal["models", "shards"]


Progress = Callable[[str, int, int | None], None]
"""Takes the file's name, the rows done, and the number of all rows where it is known."""


def score_files(
    paths: Sequence[Location],
    *,
    ood: Sequence[Location] = (),
    names: Sequence[str | None] = (),
    columns: Columns | None = None,
    read_as: ReadAs | None = None,
    by: Sequence[str] = (),
    score: str = "max_softmax",
    bins: int = DEFAULT_BINS,
    level: float = DEFAULT_LEVEL,
    metrics: Sequence[Metric] = (),
    temperature: float = 1.0,
    threads: int = DEFAULT_THREADS,
    progress: Progress | None = None,
) -> Evaluation:
    """Score the predictions of one or several models, and compare those that were made for the same samples.

    Args:
        paths: for each model a file, or many that are one table: a folder, a glob, a manifest or a list of files.
        ood: predictions for OOD samples: any number for one model, else one for each model, in order. Their labels
            mean nothing.
        names: of the models, where their files do not say; a file with a column `model` holds several.
        columns: what columns hold, where their names do not say.
        read_as: whether several files are `models`, or the `shards` of one; asked where they share no sample.
        by: columns whose values samples are grouped by, beside `domain`, `corruption` and `severity`.
        score: confidence score for misclassification and OOD detection.
        bins: number of calibration bins.
        level: nominal coverage of the intervals.
        metrics: in addition to the standard ones.
        temperature: that logits are divided by before anything is measured; `fit_temperature` finds one.
        threads: batches that are measured at a time. Operations on them are small: `torch.set_num_threads(1)` makes
            more of several cores, and is what the command line does. The result does not depend on it.
        progress: called after every batch.

    Raises:
        AmbiguousInputError: a file can be read in more than one way.
        PredictionFileError: a file cannot be trusted or understood.
    """
    reading = Reading(columns or Columns(), by=(by,) if isinstance(by, str) else tuple(dict.fromkeys(by)))
    if read_as == "shards":
        paths, names = [_all_files(paths)], names[:1]
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if not paths:
        raise ValueError("give at least one file of predictions")
    given = [*names, *[None] * (len(paths) - len(names))]
    sets = [
        each for path, name in zip(paths, given, strict=True) for each in models_of(find_shards(path), name, reading)
    ]
    several = len(sets) > 1
    if several and len(ood) not in (0, len(sets)):
        raise ValueError(
            f"there are {len(sets)} models and {len(ood)} files of OOD samples; give one for each model, in order"
        )
    options = ScoreOptions(
        score=score,
        bins=bins,
        level=level,
        metrics=tuple(metrics),
        paired=several,
        exact_samples=EXACT_SAMPLES,
    )
    outside = [find_shards(path) for path in ood]
    ood_names = [OOD] * len(outside) if several else distinct([Path(each.name) for each in outside])
    with tempfile.TemporaryDirectory(prefix="counterpoise-") as folder:
        models = []
        for index, files in enumerate(sets):
            beside = slice(index, index + 1) if several else slice(None)
            own_ood = dict(zip(ood_names[beside], outside[beside], strict=True))
            models.append(Model(files, own_ood, folder=Path(folder) / f"ids-{index}"))
        pairing = _Pairing(len(models), Path(folder)) if several else None
        _read_all(models, options, temperature, threads=threads, pairing=pairing, progress=progress)
        scores = named([model.scores() for model in models])
        notices = [notice for model in models for notice in model.notices]
        comparison = None
        if pairing is not None:
            comparison, remarks = pairing.compare(scores, models, level=level, asked=read_as is not None)
            notices += remarks
    return Evaluation(models=scores, comparison=comparison, notices=notices)


def _all_files(paths: Sequence[Location]) -> list[Path]:
    return [shard.path for path in paths for shard in find_shards(path).shards]


@dataclass(frozen=True)
class _Read:
    """A batch of a model, or, where there is none, the end of one of its files."""

    model: int
    file: PredictionFile
    ood: str | None
    batch: FileBatch | None


def _read_all(
    models: Sequence[Model],
    options: ScoreOptions,
    temperature: float,
    *,
    threads: int,
    pairing: "_Pairing | None",
    progress: Progress | None,
) -> None:
    """Read the models side by side, so that samples that are compared need not wait for each other."""
    scorers: dict[int, BatchScorer] = {}

    def scored(read: _Read) -> tuple[_Read, ScoreState | None, list[Marks], Keys | None]:
        if read.batch is None:
            return read, None, [], None
        identities = read.batch.identities() if read.file.has_ids else None
        return read, *scorers[read.model].score(read.batch), identities

    def reads() -> Iterator[_Read]:
        streams = [model.files(options.score) for model in models]
        opened = [(next(stream), stream) for stream in streams]  # what one model's samples are paired by hangs on all
        labels_known = all(model.kind != "confidence" for model in models)
        for index, model in enumerate(models):
            several = model.kind == "multilabel"
            scorers[index] = BatchScorer(
                classes=2 if several else model.classes,
                options=replace(options, clustered=several),
                temperature=temperature,
                unnamed_ood=OOD,
                label_of=label_indices(model.header, models[0].header),
                labels_known=labels_known,
            )
        yield from _side_by_side(models, [chain([first], rest) for first, rest in opened], progress)

    for read, state, marks, identities in ordered_map(scored, reads(), threads=threads):
        model = models[read.model]
        if identities is not None:
            model.add_ids(read.ood, identities)
        if state is None:
            model.end_of_file(read.file, is_own=read.ood is None)
        else:
            model.add(state)
        if pairing is not None:
            pairing.add(read.model, marks)
    for model in models:
        model.require_samples()
        model.require_distinct_ids(options.score)


def _side_by_side(
    models: Sequence[Model], files: Sequence[Iterable[File]], progress: Progress | None
) -> Iterator[_Read]:
    """Batches of all models, those of the model that is furthest behind first."""
    streams = {index: _reads(index, each, progress) for index, each in enumerate(files)}
    while streams:
        behind = min(streams, key=lambda index: models[index].rows)
        read = next(streams[behind], None)
        if read is None:
            del streams[behind]
            continue
        models[behind].rows += 0 if read.batch is None else len(read.batch.table)
        yield read


def _reads(index: int, files: Iterable[File], progress: Progress | None) -> Iterator[_Read]:
    for file, place, ood in files:
        row = 0
        for table in file.batches():
            yield _Read(index, file, ood, FileBatch(file, table, row, place, ood))
            row += len(table)
            if progress is not None:
                progress(file.path.name, row, file.rows)
        yield _Read(index, file, ood, None)


class _Pairing:
    """Whether models were asked about the same samples, and how their answers differ."""

    def __init__(self, models: int, folder: Path) -> None:
        self._models, self._folder = models, folder
        self._joins: dict[str, SampleJoin] = {}

    def add(self, model: int, marks: Sequence[Marks]) -> None:
        """What is known of the next samples of a model."""
        for part, keys, values in marks:
            if part not in self._joins:
                folder = self._folder / str(len(self._joins))
                folder.mkdir()
                self._joins[part] = SampleJoin(self._models, values.shape[-1], folder)
            self._joins[part].add(model, Samples(keys, values))

    def compare(
        self, scores: Sequence[Scores], models: Sequence[Model], *, level: float, asked: bool
    ) -> tuple[Comparison | None, list[str]]:
        """The comparison, and what to say of it; None where the samples are not the same."""
        same = {part: join.finish() for part, join in self._joins.items()}
        if not asked and not any(join.joined for join in self._joins.values()):
            several = " and ".join(model.own.name for model in models[:2]) + (", ..." if len(models) > 2 else "")
            choices = [
                ({"read_as": "shards"}, "they are parts of one model's predictions"),
                ({"read_as": "models"}, "they are models that were asked about different samples"),
            ]
            raise AmbiguousInputError(f"{several} have no sample in common", choices)
        if not all(same.get(part, True) for part in (CLEAN, CORRUPTED)):
            return None, [
                "the files do not hold the same samples (ids, labels, and which are clean, corrupted or OOD), so the "
                "models are not compared"
            ]
        headlines = [model.state.headline for model in models if model.state is not None]
        unlike = {part.removeprefix(OOD_SET) for part, is_same in same.items() if not is_same}
        join = self._joins[CLEAN if CLEAN in self._joins else CORRUPTED]
        keys = PAIRED if join.columns else ()
        pairs = {
            pair: {str(key): join.power_sums(pair, column) for column, key in enumerate(keys)} for pair in join.pairs
        }
        remarks = (
            ["the files of OOD samples do not hold the same samples (ids), so OOD is not compared"] if unlike else []
        )
        clustered = any(model.kind == "multilabel" for model in models)
        return compare(scores, headlines, level=level, pairs=pairs, without=unlike, clustered=clustered), remarks
