"""`ModelScorer`: the files of one model, read batch by batch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.functional.confidence import LOGIT_SCORES, PROBABILITY_SCORES
from counterpoise.metrics import Performance, Scores, Stream, TopLabelCalibration
from counterpoise.metrics.accumulate import Measured, ScoreAccumulator
from counterpoise.metrics.comparison import GROUPS, GroupedSums
from counterpoise.metrics.evaluate import FOREIGN
from counterpoise.metrics.inputs import PredictionBatch
from counterpoise.metrics.measures import Estimates
from counterpoise.metrics.scores import GroupScores, Source
from counterpoise.predictions import MISSING_SEVERITY, Category, PredictionFile, PredictionFileError, Predictions
from counterpoise.scoring.pairing import Numbers, SamplePairing, SampleRegister
from counterpoise.scoring.parallel import ordered_map
from counterpoise.scoring.recalibration import Reservoir, try_temperature
from counterpoise.scoring.rows import Mask, RowKinds, at_temperature, checked
from counterpoise.scoring.sampling import mixed

EXACT_SAMPLES = 1_000_000
"""Up to this many samples ranks are exact; beyond, they come from a fine histogram with a stated error bound."""

_SALT = 0

Progress = Callable[[str, int, int | None], None]
"""Takes the file's name, the rows done, and the number of all rows where it is known."""

GroupKey = tuple[str | None, str | None, int | None]
"""Domain, corruption, severity."""


class ModelScorer:
    """Gathers what `Scores` needs from one model's file, and from files of foreign samples.

    Clean and corrupted samples are kept apart: the headline is about the clean ones, where there are any.
    """

    def __init__(
        self, file: PredictionFile, *, score: str, bins: int, level: float, temperature: float, paired: bool
    ) -> None:
        self.file, self.bins, self.level, self.temperature = file, bins, level, temperature
        self.paired = paired
        self._score = score
        _require_score(file, score)
        self.unpaired_sets: set[str] = set()
        self._clean, self._corrupted = (
            _Part(file.classes, score=score, bins=bins, level=level, paired=paired) for _ in range(2)
        )
        self._groups: dict[GroupKey, tuple[Stream[Estimates], Stream[Estimates]]] = {}
        self._unlabelled = self._corrupted_samples = 0
        self._data_sets: dict[str, None] = {}
        self._splits: dict[str, None] = {}

    @property
    def grouped(self) -> GroupedSums:
        """What a comparison needs of the samples that the headline is about."""
        return self._headline.grouped

    @property
    def _headline(self) -> "_Part":
        return self._clean if self._clean.accumulator.samples else self._corrupted

    @property
    def _parts(self) -> "tuple[_Part, ...]":
        """The parts that may still be the headline: once there is a clean sample, the corrupted ones cannot be."""
        return (self._clean,) if self._clean.accumulator.samples else (self._clean, self._corrupted)

    def read(self, register: SampleRegister | None, *, is_first: bool, threads: int, progress: Progress | None) -> None:
        """Read the model's own file."""
        pairing = SamplePairing(register, is_first=is_first)
        tables = _tables(self.file, progress, ids=register is not None)
        for prepared in ordered_map(self._prepared, tables, threads=threads):
            table, first_row = prepared.table, prepared.first_row
            numbers = pairing.numbers(table, first_row)
            self.paired = numbers is not None
            self._add(prepared, np.arange(first_row, first_row + len(table)) if numbers is None else numbers)
        self.paired = pairing.is_complete
        if not self._headline.accumulator.samples:
            notices = "".join(f" ({notice})" for notice in self.file.notices)
            raise PredictionFileError(
                f"{self.file.path}: it holds no labelled in-distribution sample; labels are the column 'label', in NPZ "
                f"the array 'labels'{notices}"
            )

    def read_foreign(
        self,
        file: PredictionFile,
        name: str,
        register: SampleRegister | None,
        *,
        is_first: bool,
        progress: Progress | None,
    ) -> None:
        """Read a file of foreign samples; a set has the name of its rows' data set, else `name`."""
        if (file.kind, file.classes) != (self.file.kind, self.file.classes):
            raise PredictionFileError(
                f"{file.path}: it holds {file.kind} for {file.classes} classes, "
                f"{self.file.path} holds {self.file.kind} for {self.file.classes}"
            )
        _require_score(file, self._score)
        pairing, sets = SamplePairing(register, is_first=is_first), set[str]()
        for table, first_row in _tables(file, progress, ids=register is not None):
            numbers = pairing.numbers(table, first_row)
            sets |= self._add_foreign(table, np.ones(len(table), bool), numbers, first_row, path=file, name=name)
        if not pairing.is_complete:
            self.unpaired_sets |= sets

    def compute(self) -> Scores:
        """The scores of all that was read."""
        names, headline = self.file.header.class_names, self._headline
        notices = list(self.file.notices)
        if self._unlabelled:
            notices.append(f"{self.file.path}: {self._unlabelled:,} rows without a label were left out")
        if headline is self._clean and self._corrupted_samples:
            notices.append(
                f"{self.file.path}: {self._corrupted_samples:,} corrupted samples are not in the headline: "
                "they are shown by severity, or by group"
            )
        return replace(
            headline.accumulator.compute(),
            groups=self._group_scores(),
            recalibration=try_temperature(headline.reservoir, bins=self.bins, level=self.level),
            class_names=None if names is None else list(names),
            source=self._source(notices),
        )

    def _prepared(self, numbered: tuple[Predictions, int]) -> "_Prepared":
        """The part of the work on a batch that depends on nothing before it, and takes most of the time."""
        table, first_row = numbered
        kinds = RowKinds.of(table)
        labelled = kinds.clean | kinds.corrupted
        if not labelled.any():
            return _Prepared(table, first_row, kinds, None, [])
        batch = self._checked(self.file, table, labelled, labelled=True, first_row=first_row)
        shares = []
        for part in self._parts:
            rows = (kinds.clean if part is self._clean else kinds.corrupted)[labelled]
            if rows.any():
                share = _taken(batch, rows)
                shares.append(_Share(part, rows, share, part.accumulator.measured(share)))
        return _Prepared(table, first_row, kinds, batch, shares)

    def _add(self, prepared: "_Prepared", numbers: Numbers) -> None:
        table, kinds = prepared.table, prepared.kinds
        self._data_sets |= _names(table.data_set)
        self._splits |= _names(table.split)
        labelled = kinds.clean | kinds.corrupted
        self._unlabelled += int((~labelled & ~kinds.foreign).sum())
        self._corrupted_samples += int(kinds.corrupted.sum())
        for share in prepared.shares:
            share.part.add(share, numbers[labelled][share.rows], paired=self.paired)
        if prepared.batch is not None:
            for key, rows in _group_rows(table, labelled):
                streams = self._groups.get(key) or self._groups.setdefault(key, self._group_streams())
                taken = _taken(prepared.batch, rows)
                for stream in streams:
                    stream.update_checked(taken)
        if kinds.foreign.any():
            known = numbers if self.paired else None
            self._add_foreign(table, kinds.foreign, known, prepared.first_row, path=self.file)

    def _add_foreign(
        self,
        table: Predictions,
        foreign: Mask,
        numbers: Numbers | None,
        first_row: int,
        *,
        path: PredictionFile,
        name: str = FOREIGN,
    ) -> set[str]:
        """Returns the names of the sets that the samples belong to."""
        batch = self._checked(path, table, foreign, labelled=False, first_row=first_row)
        data_set = Category.of(name, len(table)) if table.data_set is None else table.data_set
        codes = data_set.codes[foreign]
        titles = {code: data_set.names[code] if code >= 0 else name for code in np.unique(codes).tolist()}
        for code, title in titles.items():
            rows = codes == code
            taken = _taken(batch, rows)
            for part in self._parts:
                part.add_foreign(title, taken, None if numbers is None else numbers[foreign][rows])
        return set(titles.values())

    def _checked(
        self, file: PredictionFile, table: Predictions, rows: Mask, *, labelled: bool, first_row: int
    ) -> PredictionBatch:
        try:
            batch = checked(table, rows, labelled=labelled, first_row=first_row)
        except ValueError as error:
            raise PredictionFileError(f"{file.path}: {error}") from None
        return at_temperature(batch, self.temperature)

    def _group_streams(self) -> tuple[Stream[Estimates], Stream[Estimates]]:
        return Stream(Performance(level=self.level)), Stream(TopLabelCalibration(bins=self.bins, level=self.level))

    def _group_scores(self) -> list[GroupScores]:
        def order(key: GroupKey) -> tuple[str, str, int]:
            return key[0] or "", key[1] or "", key[2] or 0

        scores = []
        for key in sorted(self._groups, key=order):
            performance, top_label = self._groups[key]
            samples = int(performance.sums["count"])
            scores.append(GroupScores(*key, samples, performance.compute() | top_label.compute()))
        return scores

    def _source(self, notices: list[str]) -> Source:
        header = self.file.header
        return Source(
            path=str(self.file.path),
            digest=self.file.digest,
            kind=self.file.kind,
            members=self.file.members,
            model=header.model,
            method=header.method,
            seed=header.seed,
            config_digest=header.config_digest,
            data_sets=list(self._data_sets),
            splits=list(self._splits),
            versions=dict(header.versions),
            notices=notices,
        )


class _Part:
    """What is gathered from the clean samples, or from the corrupted ones."""

    def __init__(self, classes: int, *, score: str, bins: int, level: float, paired: bool) -> None:
        self.accumulator = ScoreAccumulator(
            classes=classes, score=score, bins=bins, level=level, exact_samples=EXACT_SAMPLES
        )
        self.reservoir = Reservoir(classes)
        self._paired = paired

    @cached_property
    def grouped(self) -> GroupedSums:
        """Made when it is needed: for many classes it is large."""
        accumulator = self.accumulator
        return GroupedSums(classes=accumulator.classes, bins=accumulator.bins, score=accumulator.score)

    def add(self, share: "_Share", numbers: Numbers, *, paired: bool) -> None:
        self.accumulator.add(share.measured)
        self.reservoir.add(share.batch, numbers)
        if self._paired and paired:
            self.grouped.update(share.batch, _group_of(numbers))

    def add_foreign(self, name: str, batch: PredictionBatch, numbers: Numbers | None) -> None:
        self.accumulator.update_foreign(name, batch)
        if self._paired and numbers is not None:
            self.grouped.update_foreign(name, batch, _group_of(numbers))


def _require_score(file: PredictionFile, score: str) -> None:
    """Refuse a score of logits where there are none: those of a mean of probabilities are fixed but for a constant."""
    if score in PROBABILITY_SCORES or score not in LOGIT_SCORES:
        return
    if file.members is not None:
        raise PredictionFileError(
            f"{file.path}: {score} needs the logits of one network, and this is an ensemble of {file.members}, whose "
            f"probabilities are averaged; choose from {', '.join(PROBABILITY_SCORES)}"
        )
    if file.kind != "logits":
        raise PredictionFileError(f"{file.path}: {score} needs logits: probabilities do not determine it")


@dataclass(frozen=True)
class _Share:
    """The labelled rows of a batch that belong to one part, and what was measured of them."""

    part: _Part
    rows: Mask
    batch: PredictionBatch
    measured: Measured


@dataclass(frozen=True)
class _Prepared:
    """A batch of a file, its labelled rows checked, and the shares that its parts have in it."""

    table: Predictions
    first_row: int
    kinds: RowKinds
    batch: PredictionBatch | None
    shares: list[_Share]


def _tables(file: PredictionFile, progress: Progress | None, *, ids: bool) -> Iterator[tuple[Predictions, int]]:
    """Batches of a file with the number of their first row."""
    row = 0
    for table in file.batches(ids=ids):
        yield table, row
        row += len(table)
        if progress is not None:
            progress(file.path.name, row, file.rows)


def _taken(batch: PredictionBatch, rows: Mask) -> PredictionBatch:
    return batch if rows.all() else batch.take(torch.from_numpy(rows))


def _names(category: Category | None) -> dict[str, None]:
    return {} if category is None else dict.fromkeys(category.names)


def _group_of(numbers: Numbers) -> torch.Tensor:
    groups: NDArray[np.int64] = (mixed(numbers, salt=_SALT) % np.uint64(GROUPS)).astype(np.int64)
    return torch.from_numpy(groups)


def _group_rows(table: Predictions, labelled: Mask) -> Iterator[tuple[GroupKey, Mask]]:
    """The distinct domains, corruptions and severities of the labelled rows, with the rows of each."""
    if table.domain is None and table.corruption is None and table.severity is None:
        return
    none = np.full(len(table), MISSING_SEVERITY, np.int64)
    columns = [
        none if table.domain is None else table.domain.codes,
        none if table.corruption is None else table.corruption.codes,
        none if table.severity is None else table.severity,
    ]
    keys, index = np.unique(np.stack(columns, -1)[labelled], axis=0, return_inverse=True)
    for place, (domain, corruption, severity) in enumerate(keys.tolist()):
        key = (
            None if domain < 0 or table.domain is None else table.domain.names[domain],
            None if corruption < 0 or table.corruption is None else table.corruption.names[corruption],
            None if severity == MISSING_SEVERITY else int(severity),
        )
        yield key, index.reshape(-1) == place
