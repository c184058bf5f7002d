"""Files of predictions in, `Evaluation` out: one pass over each file, in memory that does not grow with the rows."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from counterpoise._choices import DEFAULT_ALPHA, DEFAULT_RISK
from counterpoise._engines import Engine, Here, Tree, in_order
from counterpoise._files import FilePath
from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics import Metric, Scores
from counterpoise.metrics.comparison import PAIRED, Comparison, Evaluation, compare
from counterpoise.metrics.headline import OOD, Headline
from counterpoise.metrics.keys import Keys
from counterpoise.metrics.options import ScoreOptions
from counterpoise.predictions import (
    AmbiguousInputError,
    Columns,
    Location,
    Reading,
    find_shards,
)
from counterpoise.predictions.names import GROUPED
from counterpoise.predictions.shards import Form
from counterpoise.scoring.batches import CLEAN, CORRUPTED, OOD_SET, BatchScorer
from counterpoise.scoring.join import Joined, SampleJoin
from counterpoise.scoring.models import Model, ModelFiles, distinct, label_indices, models_of, named
from counterpoise.scoring.plan import ModelJob, Part, Tables, Unit, parts_of, units_of
from counterpoise.scoring.recalibration import compare_scaled
from counterpoise.scoring.units import (
    Progress,
    States,
    merge_remotely,
    merge_states,
    score_remotely,
    score_unit,
    unpacked,
)

DEFAULT_THREADS = 2
EXACT_SAMPLES = 1_000_000
"""Up to this many samples ranks are exact; beyond, they come from a fine histogram with a stated error bound."""


ReadAs = Literal["models", "shards"]


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
    alpha: float = DEFAULT_ALPHA,
    risk: float = DEFAULT_RISK,
    metrics: Sequence[Metric] = (),
    temperature: float = 1.0,
    threads: int = DEFAULT_THREADS,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Score the predictions of one or several models, and compare those that were made for the same samples.

    Args:
        paths: for each model a file, or many that are one table: a folder, a glob, a manifest or a list of files; each
            a path, or the address of an object store such as `s3://bucket/predictions/`.
        ood: predictions for OOD samples: any number for one model, else one for each model, in order. Their labels
            mean nothing.
        names: of the models, where their files do not say; a file with a column `model` holds several.
        columns: what columns hold, where their names do not say.
        read_as: whether several files are `models`, or the `shards` of one; asked where they share no sample.
        by: columns whose values samples are grouped by, beside `domain`, `corruption` and `severity`.
        score: confidence score for misclassification and OOD detection.
        bins: number of calibration bins.
        level: nominal coverage of the intervals.
        alpha: largest probability that the prediction sets that are tried miss the label.
        risk: error rate that accepted predictions may have, for the threshold of the confidence that is tried.
        metrics: in addition to the standard ones.
        temperature: that logits are divided by before anything is measured; `fit_temperature` finds one.
        threads: batches that are measured at a time. Operations on them are small: `torch.set_num_threads(1)` makes
            more of several cores, and is what the command line does. The result does not depend on it.
        engine: what scores many files, or the row groups of large ones, in parallel: `Processes` of this machine, or
            `Ray`, a cluster. The result is the same, bit for bit.
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
    if len(names) > len(paths):
        raise ValueError(f"there are {len(names)} names for {len(paths)} models")
    if repeated := next((name for name in names if name is not None and [*names].count(name) > 1), None):
        raise ValueError(f"two models are called {repeated!r}; give each a name of its own")
    given = [*names, *[None] * (len(paths) - len(names))]
    sets = [
        each for path, name in zip(paths, given, strict=True) for each in models_of(find_shards(path), name, reading)
    ]
    return score_models(
        sets,
        options=ScoreOptions(score=score, bins=bins, level=level, metrics=tuple(metrics)),
        ood=[find_shards(path) for path in ood],
        alpha=alpha,
        risk=risk,
        temperature=temperature,
        threads=threads,
        engine=engine,
        progress=progress,
        asked=read_as is not None,
    )


def score_models(
    sets: Sequence[ModelFiles],
    *,
    options: ScoreOptions,
    ood: Sequence[Tables] = (),
    alpha: float = DEFAULT_ALPHA,
    risk: float = DEFAULT_RISK,
    temperature: float = 1.0,
    threads: int = DEFAULT_THREADS,
    engine: Engine | None = None,
    progress: Progress | None = None,
    asked: bool = True,
) -> Evaluation:
    """`score_files` of tables that were found already, wherever they come from; `asked` if they are models for sure."""
    count, several = len(sets), len(sets) > 1
    if several and len(ood) not in (0, count):
        raise ValueError(
            f"there are {count} models: give {count} files of OOD samples, one for each in order, not {len(ood)}"
        )
    options = replace(options, paired=several, exact_samples=EXACT_SAMPLES)
    ood_names = [OOD] * len(ood) if several else distinct([Path(each.name) for each in ood])
    with tempfile.TemporaryDirectory(prefix="counterpoise-") as folder:
        models = []
        for index, files in enumerate(sets):
            beside = slice(index, index + 1) if several else slice(None)
            own_ood = dict(zip(ood_names[beside], ood[beside], strict=True))
            models.append(Model(files, own_ood, folder=Path(folder) / f"ids-{index}"))
        if len({model.kind == "multilabel" for model in models}) > 1:
            raise ValueError("some models have several labels a sample and others one: evaluate them one by one")
        pairing = _Pairing(len(models), Path(folder)) if several else None
        jobs = [*_jobs(models, options, temperature)]
        units, sink = _plan(models, jobs), _Sink(models, pairing)
        if engine is None:
            states = _score_here(models, jobs, units, sink, threads=threads, progress=progress)
        else:
            states = _score_on(engine, models, jobs, units, sink, progress=progress)
        for index, model in enumerate(models):
            model.state = states.get(index)
            model.require_samples()
            model.require_distinct_ids(jobs[index], [part for unit in units for part in unit if part.model == index])
        scores = named([model.scores(alpha=alpha, risk=risk) for model in models])
        notices = [notice for model in models for notice in model.notices]
        comparison = scaled = None
        if pairing is not None:
            comparison, remarks = pairing.compare(scores, models, level=options.level, asked=asked)
            notices += remarks
        if comparison is not None:
            scaled = compare_scaled([each.trial for each in _headlines(models)], scores, options=options)
    return Evaluation(models=scores, comparison=comparison, notices=notices, scaled=scaled)


def _headlines(models: Sequence[Model]) -> list[Headline]:
    return [model.state.headline for model in models if model.state is not None]


def _all_files(paths: Sequence[Location]) -> list[FilePath]:
    return [shard.path for path in paths for shard in find_shards(path).shards]


def _jobs(models: Sequence[Model], options: ScoreOptions, temperature: float) -> Iterator[ModelJob]:
    """How the files of each model are read and scored; what its samples are paired by hangs on all models."""
    labels_known = all(model.kind != "confidence" for model in models)
    told_apart = tuple(name for name in GROUPED if all(name in model.first.layout.descriptive for model in models))
    for model in models:
        several = model.kind == "multilabel"
        scorer = BatchScorer(
            classes=2 if several else model.classes,
            options=replace(options, clustered=several),
            temperature=temperature,
            unnamed_ood=OOD,
            label_of=label_indices(model.header, models[0].header),
            labels_known=labels_known,
            told_apart=told_apart,
        )
        yield ModelJob(model.reading, Form.of(model.first), model.first.layout, scorer)


def _plan(models: Sequence[Model], jobs: Sequence[ModelJob]) -> list[Unit]:
    """All units: the models' own files first, then those of OOD samples."""

    def parts(model: int, name: str | None) -> list[Part]:
        shards = models[model].own if name is None else models[model].ood[name]
        return [*parts_of(model, jobs[model], shards, ood=name)]

    found = [*units_of([parts(model, None) for model in range(len(models))])]
    for name in dict.fromkeys(name for model in models for name in model.ood):
        found += units_of([parts(place, name) for place, model in enumerate(models) if name in model.ood])
    return found


@dataclass(frozen=True)
class _Sink:
    """Takes what belongs to single rows to the models, and to what pairs them."""

    models: Sequence[Model]
    pairing: "_Pairing | None"

    def identities(self, model: int, ood: str | None, keys: Keys) -> None:
        self.models[model].add_ids(ood, keys)

    def joined(self, part: str, join: SampleJoin | Joined) -> None:
        if self.pairing is not None:
            self.pairing.absorb(part, join)


def _score_here(
    models: Sequence[Model],
    jobs: Sequence[ModelJob],
    units: Sequence[Unit],
    sink: _Sink,
    *,
    threads: int,
    progress: Progress | None,
) -> States:
    tree = Tree(Here(), merge_states)
    for unit in units:
        states, reports = score_unit(jobs, unit, threads=threads, progress=progress, sink=sink)
        tree.add(states)
        for report in reports:
            models[report.part.model].note(report)
    found: States = tree.root()
    return found


def _score_on(
    engine: Engine,
    models: Sequence[Model],
    jobs: Sequence[ModelJob],
    units: Sequence[Unit],
    sink: _Sink,
    *,
    progress: Progress | None,
) -> States:
    """The same by an engine; results are taken in the order of the plan, so that nothing depends on who is faster."""
    tree, rows = Tree(engine, merge_remotely), 0
    for done, (state, (reports, collected)) in enumerate(
        in_order(engine, score_remotely, [(jobs, unit) for unit in units]), start=1
    ):
        tree.add(state)
        collected.pour(sink)
        for report in reports:
            models[report.part.model].note(report)
            rows += report.rows
        if progress is not None:
            progress(f"{done:,} of {len(units):,} parts", rows, None)
    return unpacked(tree.root())


class _Pairing:
    """Whether models were asked about the same samples, and how their answers differ."""

    def __init__(self, models: int, folder: Path) -> None:
        self._models, self._folder = models, folder
        self._joins: dict[str, SampleJoin] = {}

    def absorb(self, part: str, join: SampleJoin | Joined) -> None:
        if part not in self._joins:
            folder = self._folder / str(len(self._joins))
            folder.mkdir()
            self._joins[part] = SampleJoin(self._models, join.columns, folder)
        self._joins[part].absorb(join)

    def compare(
        self, scores: Sequence[Scores], models: Sequence[Model], *, level: float, asked: bool
    ) -> tuple[Comparison | None, list[str]]:
        """The comparison, and what to say of it; None where the samples are not the same."""
        same = {part: join.finish() for part, join in self._joins.items()}
        if not asked and not any(join.matched for join in self._joins.values()):
            several = " and ".join(model.own.name for model in models[:2]) + (", ..." if len(models) > 2 else "")
            choices = [
                ({"read_as": "shards"}, "they are parts of one model's predictions"),
                ({"read_as": "models"}, "they are models that were asked about different samples"),
            ]
            raise AmbiguousInputError(f"{several} have no sample in common", choices)
        if not all(same.get(part, True) for part in (CLEAN, CORRUPTED)):
            matched = sum(self._joins[part].matched for part in (CLEAN, CORRUPTED) if part in self._joins)
            states = [model.state for model in models if model.state is not None]
            sizes = [state.clean.ranks.samples + state.corrupted_samples for state in states]
            most, alike = max(sizes), min(sizes) == max(sizes) and all(map(models[0].has_ids_of, models[1:]))
            hint = "; nearly all ids are, so labels differ, or the order of classes (--class-names)" if alike else ""
            if not all(model.first.has_ids for model in models):
                hint = "; rows without ids are matched by position: name a column of ids with --id NAME"
            return None, [
                f"the files do not hold the same samples: {matched:,} of {most:,} are alike (id, label, and whether "
                f"clean, corrupted or OOD), so the models are not compared sample by sample{hint}"
            ]
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
        headlines = _headlines(models)
        return compare(scores, headlines, level=level, pairs=pairs, without=unlike, clustered=clustered), remarks
