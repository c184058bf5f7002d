"""What is known of one model while its files are read."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from counterpoise.metrics import Scores
from counterpoise.metrics.keys import Keys
from counterpoise.metrics.scores import Source, label_notices
from counterpoise.metrics.state import ScoreState
from counterpoise.metrics.summary import ordered_groups
from counterpoise.predictions import (
    Header,
    PredictionFile,
    PredictionFileError,
    Reading,
    ShardSet,
)
from counterpoise.predictions.columns import AmbiguousInputError
from counterpoise.predictions.names import joined, normal_name
from counterpoise.predictions.table import Kind
from counterpoise.scoring.batches import FileBatch
from counterpoise.scoring.guarantees import try_guarantees
from counterpoise.scoring.ids import RepeatedKeys
from counterpoise.scoring.plan import ModelJob, Part, Tables
from counterpoise.scoring.recalibration import try_temperature
from counterpoise.scoring.units import PartReport

MOST_MODELS = 64
"""In one file, by its column `model`: each is read by itself."""
_SHOWN = 3
"""Files of one model about which the same is said."""
_FEWEST_COPIED = 30
"""Fewer rows without ids may be alike in two files by chance, such as those of a model that is sure of all."""


@dataclass(frozen=True)
class ModelFiles:
    """Files that hold the predictions of one model.

    Attributes:
        shards: the files.
        name: of the model, where it is known.
        reading: how they are read.
        first: of the files, opened.
    """

    shards: Tables
    name: str | None
    reading: Reading
    first: PredictionFile


def models_of(shards: ShardSet, name: str | None, reading: Reading) -> list[ModelFiles]:
    """The models whose predictions a set of files holds: one, or each that a column `model` names."""
    first = next(shards.opened(reading))
    shards = shards.with_first(first.source)
    if first.layout.model is None or first.header.model:
        return [ModelFiles(shards, name, reading, first)]
    found = dict.fromkeys(model for file in shards.opened(reading) for model in file.models())
    if len(found) > MOST_MODELS:
        raise PredictionFileError(f"{shards.name}: its column 'model' has {len(found):,} names, {MOST_MODELS} are most")
    if len(found) < 2:
        return [ModelFiles(shards, name or next(iter(found), None), reading, first)]
    prefix = "" if name is None else f"{name} "
    of_each = {model: replace(reading, only=model) for model in found}
    return [ModelFiles(shards, f"{prefix}{model}", own, next(shards.opened(own))) for model, own in of_each.items()]


class Model:
    """What is known of one model while its files are read."""

    def __init__(self, files: ModelFiles, ood: dict[str, Tables], *, folder: Path) -> None:
        self.own, self.ood, self.reading, self.name = files.shards, ood, files.reading, files.name
        self.first = files.first
        self._folder, self._ids = folder, dict[str | None, RepeatedKeys]()
        self.state: ScoreState | None = None
        self.notices: list[str] = []
        self._said: dict[str, int] = {}
        self._digests: dict[int, str | None] = {}
        self._splits: dict[str, str] = {}
        self._contents: dict[tuple[str | None, str], tuple[int, str]] = {}

    @property
    def header(self) -> Header:
        return self.first.header

    @property
    def kind(self) -> Kind:
        return self.first.kind

    @property
    def classes(self) -> int:
        return self.first.classes

    def note(self, report: PartReport) -> None:
        part, path = report.part, str(report.part.shard.path)
        if part.ood is None:
            self._digests[part.place] = report.digest
            for split in report.splits:
                self._splits.setdefault(split, path)
        if len(self._splits) > 1 and not any(normal_name(name) == "split" for name in self.reading.by):
            (one, first), (other, second) = list(self._splits.items())[:2]
            raise PredictionFileError(
                f"{first} holds samples of the split {one or 'of no name'}, {second} of the split "
                f"{other or 'of no name'}: scores are of one split. Keep the rows of one, or evaluate all, and "
                "each as a group, with --by split"
            )
        place, copied = self._contents.setdefault((part.ood, report.content), (part.place, path))
        if place != part.place and report.rows >= _FEWEST_COPIED:
            raise PredictionFileError(
                f"{copied} and {path} hold the same predictions and labels: a sample counts once. Leave one of them "
                "out, or give the samples of both ids of their own in a column 'id'"
            )
        for notice in report.notices if part.first_row == 0 else ():
            said = notice.removeprefix(f"{path}: ")
            self._said[said] = self._said.get(said, 0) + 1
            if self._said[said] <= _SHOWN:
                self.notices.append(notice)

    def add_ids(self, ood: str | None, identities: Keys) -> None:
        if ood not in self._ids:
            self._ids[ood] = RepeatedKeys(self._folder.with_name(f"{self._folder.name}-{len(self._ids)}"))
        self._ids[ood].add(identities)

    def require_distinct_ids(self, job: ModelJob, parts: Sequence[Part]) -> None:
        for name, ids in self._ids.items():
            key = ids.repeated()
            if key is None:
                continue
            places: dict[object, str] = {}
            for part in parts:
                row = part.first_row
                for table in job.opened(part).batches(part.shard.groups) if part.ood == name else ():
                    batch = FileBatch(self.first, table, row, part.place, part.ood)
                    for index in np.flatnonzero(batch.identities() == np.uint64(key)).tolist():
                        own, here = table.ids[index : index + 1].tolist()[0], f"{part.shard.path} row {row + index}"
                        if own in places:
                            raise PredictionFileError(
                                f"{places[own]} and {here} have the same id, {own!r}: a sample counts once. Drop one "
                                "of them, or name another column of ids with --id"
                            )
                        places[own] = here
                    row += len(table)

    def has_ids_of(self, other: "Model") -> bool:
        """Whether nearly all ids of either are those of both, as far as there are ids."""
        given = self.first.has_ids and other.first.has_ids
        return given and self._ids[None].likeness(other._ids[None]) > 0.9

    def require_samples(self) -> None:
        if self.state is None or not self.state.samples:
            notices = "".join(f" ({notice})" for notice in self.notices)
            problem = f"{self.own.name}: it holds no labelled in-distribution sample"
            if perhaps := self.first.layout.perhaps_labels:
                raise AmbiguousInputError(f"{problem}{notices}", [({"label": joined([name])}, "") for name in perhaps])
            raise PredictionFileError(
                f"{problem}; name the column of labels with --label NAME, or a file of them with --labels FILE{notices}"
            )

    def scores(self, *, alpha: float, risk: float) -> Scores:
        state, header = self.state, self.header
        assert state is not None  # noqa: S101
        options = state.options
        for said, files in self._said.items():
            if files > _SHOWN:
                self.notices.append(f"{self.own.name}: of {files - _SHOWN:,} more files, {said}")
        self.notices += [f"{self.own.name}: {notice}" for notice in state.notices()]
        if state.unlabelled:
            self.notices.append(f"{self.own.name}: {state.unlabelled:,} rows without a label were left out")
        if state.headline is state.clean and state.corrupted_samples:
            self.notices.append(
                f"{self.own.name}: {state.corrupted_samples:,} corrupted samples are not in the headline: "
                "they are shown by severity, or by group"
            )
        scores, several = state.compute(), options.clustered
        noted = () if several else label_notices(scores, header.class_names)
        self.notices += [f"{self.own.name}: {notice}" for notice in noted]
        return replace(
            scores,
            recalibration=try_temperature(state.headline.trial, options=options),
            guarantees=try_guarantees(
                state.headline.trial, groups=ordered_groups(state.groups), alpha=alpha, risk=risk
            ),
            class_names=None if header.class_names is None or options.clustered else list(header.class_names),
            source=self._source(state),
        )

    def _source(self, state: ScoreState) -> Source:
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
            splits=[*filter(None, state.names.get("split", {}))],
            versions=dict(header.versions),
            notices=self.notices,
        )

    def _digest(self) -> str | None:
        """Of the file, or of the digests of all files; None where one has none."""
        digests = list(self._digests.values())
        if None in digests or len(digests) == 1:
            return digests[0] if len(digests) == 1 else None
        return hashlib.sha256("\n".join(map(str, digests)).encode()).hexdigest()


def label_indices(header: Header, first: Header) -> NDArray[np.int64] | None:
    """Indices into the classes of the first model, where another has the same ones in another order."""
    names, theirs = header.class_names, first.class_names
    if names is None or theirs is None or names == theirs:
        return None
    if set(names) != set(theirs):  # capitals tell classes of one model apart, and not those of two
        names, theirs = (tuple(name.casefold() for name in each) for each in (names, theirs))
    if set(names) != set(theirs) or len(set(theirs)) < len(theirs):
        return None
    return np.array([theirs.index(name) for name in names])


def named(models: list[Scores]) -> list[Scores]:
    """A name of its own for each model: what its header says, with the seed if need be, else what tells its path."""
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
        numbered = (f"{name} ({number})" for number in count(2))
        found[index] = next(own for own in chain([name], numbered) if own not in found)
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
