"""Files of predictions in, `Evaluation` out: one pass over each file, in memory that does not grow with the rows."""

import hashlib
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics import Metric, Scores
from counterpoise.metrics.comparison import PAIRED, Comparison, Evaluation, compare
from counterpoise.metrics.keys import Keys
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.scores import Source
from counterpoise.metrics.state import OOD, ScoreState
from counterpoise.predictions import (
    AmbiguousInputError,
    Columns,
    Header,
    Location,
    PredictionFile,
    PredictionFileError,
    Reading,
    ShardSet,
    find_shards,
)
from counterpoise.predictions.table import Kind
from counterpoise.scoring.batches import (
    CLEAN,
    CORRUPTED,
    OOD_SET,
    BatchScorer,
    FileBatch,
    Marks,
    require_score,
)
from counterpoise.scoring.ids import RepeatedKeys
from counterpoise.scoring.join import SampleJoin, Samples
from counterpoise.scoring.parallel import ordered_map
from counterpoise.scoring.recalibration import try_temperature

DEFAULT_THREADS = 2
EXACT_SAMPLES = 1_000_000
"""Up to this many samples ranks are exact; beyond, they come from a fine histogram with a stated error bound."""

MOST_MODELS = 64
"""In one file, by its column `model`: each is read by itself."""

ReadAs = Literal["models", "shards"]

_File = tuple[PredictionFile, int, str | None]
"""A file, its place in its set, and the name of the OOD set that it is."""

Progress = Callable[[str, int, int | None], None]
"""Takes the file's name, the rows done, and the number of all rows where it is known."""


def score_files(
    paths: Sequence[Location],
    *,
    ood: Sequence[Location] = (),
    names: Sequence[str | None] = (),
    columns: Columns | None = None,
    read_as: ReadAs | None = None,
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
    reading = Reading(columns or Columns())
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
        each for path, name in zip(paths, given, strict=True) for each in _models_of(find_shards(path), name, reading)
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
        for index, (own, name, own_reading) in enumerate(sets):
            beside = slice(index, index + 1) if several else slice(None)
            own_ood = dict(zip(ood_names[beside], outside[beside], strict=True))
            models.append(_Model(own, own_ood, reading=own_reading, name=name, folder=Path(folder) / f"ids-{index}"))
        pairing = _Pairing(len(models), Path(folder)) if several else None
        _read_all(models, options, temperature, threads=threads, pairing=pairing, progress=progress)
        scores = _named([model.scores() for model in models])
        notices = [notice for model in models for notice in model.notices]
        comparison = None
        if pairing is not None:
            comparison, remarks = pairing.compare(scores, models, level=level, asked=read_as is not None)
            notices += remarks
    return Evaluation(models=scores, comparison=comparison, notices=notices)


def _all_files(paths: Sequence[Location]) -> list[Path]:
    return [shard.path for path in paths for shard in find_shards(path).shards]


def _models_of(shards: ShardSet, name: str | None, reading: Reading) -> list[tuple[ShardSet, str | None, Reading]]:
    """The models whose predictions a set of files holds: one, or each that a column `model` names."""
    first = next(shards.opened(reading))
    if first.layout.model is None or first.header.model:
        return [(shards, name, reading)]
    found = dict.fromkeys(model for file in shards.opened(reading) for model in file.models())
    if len(found) > MOST_MODELS:
        raise PredictionFileError(f"{shards.name}: its column 'model' has {len(found):,} names, {MOST_MODELS} are most")
    if len(found) < 2:
        return [(shards, name or next(iter(found), None), reading)]
    prefix = "" if name is None else f"{name} "
    return [(shards, f"{prefix}{model}", replace(reading, only=model)) for model in found]


@dataclass(frozen=True)
class _Read:
    """A batch of a model, or, where there is none, the end of one of its files."""

    model: int
    file: PredictionFile
    ood: str | None
    batch: FileBatch | None


class _Model:
    """What is known of one model while its files are read."""

    def __init__(
        self, own: ShardSet, ood: dict[str, ShardSet], *, reading: Reading, name: str | None, folder: Path
    ) -> None:
        self.own, self.ood, self.reading, self.name = own, ood, reading, name
        self._folder, self._ids = folder, dict[str | None, RepeatedKeys]()
        self.first: PredictionFile | None = None
        self.state: ScoreState | None = None
        self.notices: list[str] = []
        self.rows = 0
        self._digests: list[str | None] = []
        self._splits: dict[tuple[str, ...], str] = {}
        self._shard: ScoreState | None = None

    @property
    def header(self) -> Header:
        """Of the first file."""
        assert self.first is not None  # noqa: S101
        return self.first.header

    @property
    def kind(self) -> Kind:
        """Of the first file."""
        assert self.first is not None  # noqa: S101
        return self.first.kind

    @property
    def classes(self) -> int:
        """Of the first file."""
        assert self.first is not None  # noqa: S101
        return self.first.classes

    def files(self, score: str) -> Iterator[_File]:
        """The files one after the other, with their places in their sets and the names of OOD sets."""
        for name, shards in ((None, self.own), *self.ood.items()):
            like = None if name is None or self.first is None else self.first.layout
            for place, file in enumerate(shards.opened(replace(self.reading, like=like))):
                require_score(file, score)
                if self.first is None:
                    self.first = file
                if name is not None and (file.kind, file.classes) != (self.first.kind, self.first.classes):
                    raise PredictionFileError(
                        f"{file.path}: it holds {file.kind} for {file.classes} classes, "
                        f"{self.first.path} holds {self.first.kind} for {self.first.classes}"
                    )
                self.notices += file.notices
                if name is None:
                    self._digests.append(file.digest)
                yield file, place, name

    def add_ids(self, ood: str | None, identities: Keys) -> None:
        """What tells the next rows from all others of their set."""
        if ood not in self._ids:
            self._ids[ood] = RepeatedKeys(self._folder.with_name(f"{self._folder.name}-{len(self._ids)}"))
        self._ids[ood].add(identities)

    def require_distinct_ids(self, score: str) -> None:
        """Refuse a set of files in which an id occurs twice."""
        for name, ids in self._ids.items():
            key = ids.repeated()
            if key is None:
                continue
            places: dict[object, str] = {}
            for file, place, ood in self.files(score):
                row = 0
                for table in file.batches() if ood == name else ():
                    batch = FileBatch(file, table, row, place, ood)
                    for index in np.flatnonzero(batch.identities(batch.keys()) == np.uint64(key)).tolist():
                        own, here = table.ids[index : index + 1].tolist()[0], f"{file.path} row {row + index}"
                        if own in places:
                            raise PredictionFileError(
                                f"{places[own]} and {here} have the same id, {own!r}: a sample counts once. Drop one "
                                "of them, or name another column of ids with --id"
                            )
                        places[own] = here
                    row += len(table)

    def add(self, batch: ScoreState) -> None:
        """The state of the next batch."""
        if self._shard is None:
            self._shard = batch
        else:
            self._shard.merge(batch)

    def end_of_file(self, file: PredictionFile, *, is_own: bool) -> None:
        """Files are merged one by one, so that it does not matter which worker read them."""
        if self._shard is None:
            return
        if is_own:
            self._splits.setdefault(tuple(self._shard.names.get("split", ())), str(file.path))
        if len(self._splits) > 1:
            (one, path), (other, second) = list(self._splits.items())[:2]
            raise PredictionFileError(
                f"{path} holds the split {', '.join(one) or 'of no name'}, {second} the split "
                f"{', '.join(other) or 'of no name'}: they are not shards of one table; name a file of {self.own.name}"
            )
        if self.state is None:
            self.state = self._shard
        else:
            self.state.merge(self._shard)
        self._shard = None

    def require_samples(self) -> None:
        """Refuse a model without a sample to score."""
        if self.state is None or not self.state.samples:
            notices = "".join(f" ({notice})" for notice in self.notices)
            raise PredictionFileError(
                f"{self.own.name}: it holds no labelled in-distribution sample; name the column of labels with --label "
                f"NAME, or a file of them with --labels FILE{notices}"
            )

    def scores(self) -> Scores:
        """The scores of all that was read."""
        state, header = self.state, self.header
        assert state is not None  # noqa: S101
        options = state.options
        self.notices += [f"{self.own.name}: {notice}" for notice in state.notices()]
        if state.unlabelled:
            self.notices.append(f"{self.own.name}: {state.unlabelled:,} rows without a label were left out")
        if state.headline is state.clean and state.corrupted_samples:
            self.notices.append(
                f"{self.own.name}: {state.corrupted_samples:,} corrupted samples are not in the headline: "
                "they are shown by severity, or by group"
            )
        return replace(
            state.compute(),
            recalibration=try_temperature(state.headline.trial, options=options),
            class_names=None if header.class_names is None or options.clustered else list(header.class_names),
            source=self._source(state),
        )

    def _source(self, state: ScoreState) -> Source:
        assert self.first is not None  # noqa: S101
        header = self.header
        return Source(
            path=self.own.name,
            digest=self._digest(),
            kind=self.first.kind,
            members=self.first.members,
            name=self.name or "",
            model=header.model,
            method=header.method,
            seed=header.seed,
            config_digest=header.config_digest,
            data_sets=list(state.names.get("data_set", {})),
            splits=list(state.names.get("split", {})),
            versions=dict(header.versions),
            notices=self.notices,
        )

    def _digest(self) -> str | None:
        """Of the file, or of the digests of all files; None where one has none."""
        if None in self._digests or len(self._digests) == 1:
            return self._digests[0] if len(self._digests) == 1 else None
        return hashlib.sha256("\n".join(map(str, self._digests)).encode()).hexdigest()


def _read_all(
    models: Sequence[_Model],
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
        identities = read.batch.identities(read.batch.keys()) if read.file.has_ids else None
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
                label_of=_label_indices(model.header, models[0].header),
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
    models: Sequence[_Model], files: Sequence[Iterable[_File]], progress: Progress | None
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


def _reads(index: int, files: Iterable[_File], progress: Progress | None) -> Iterator[_Read]:
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
        self, scores: Sequence[Scores], models: Sequence[_Model], *, level: float, asked: bool
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
        return compare(scores, headlines, level=level, pairs=pairs, without=unlike), remarks


def _label_indices(header: Header, first: Header) -> NDArray[np.int64] | None:
    """Indices into the classes of the first model, where another has the same ones in another order."""
    names, theirs = header.class_names, first.class_names
    if names is None or theirs is None or names == theirs or set(names) != set(theirs):
        return None
    return np.array([theirs.index(name) for name in names])


def _named(models: list[Scores]) -> list[Scores]:
    """A name for each model: what its header says, with the seed if need be, else what is distinct about its path."""
    sources = [model.source for model in models]
    names = [source.name or " ".join(filter(None, (source.model, source.method))) for source in sources]
    seeded = [
        f"{name}, seed {each.seed}" if name and not each.name and each.seed is not None else ""
        for name, each in zip(names, sources, strict=True)
    ]
    paths = [Path(source.path) for source in sources]
    found = [
        name if name and names.count(name) == 1 else other if other and seeded.count(other) == 1 else ""
        for name, other in zip(names, seeded, strict=True)
    ]
    rest = [index for index, name in enumerate(found) if not name]
    for index, name in zip(rest, distinct([paths[index] for index in rest]), strict=True):
        found[index] = name
    return [replace(model, source=replace(model.source, name=name)) for model, name in zip(models, found, strict=True)]


def distinct(paths: list[Path]) -> list[str]:
    """Names of files, where two are alike replaced by a folder that tells all of them apart, else numbered.

    >>> distinct([Path("runs/ce/predictions/test.npz"), Path("runs/mte/predictions/test.npz")])
    ['ce', 'mte']
    >>> distinct([Path("a.npz"), Path("b.npz"), Path("a.npz")])
    ['a (1)', 'b', 'a (2)']
    """
    names = [path.stem for path in paths]
    if len(set(names)) == len(names):
        return names
    absolute = [path.absolute() for path in paths]
    for depth in range(min((len(path.parts) for path in absolute), default=0) - 1):
        folders = [path.parents[depth].name for path in absolute]
        if len(set(folders)) == len(folders):
            return folders
    counts, seen = Counter(names), Counter[str]()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name} ({seen[name]})" if counts[name] > 1 else name)
    return numbered
