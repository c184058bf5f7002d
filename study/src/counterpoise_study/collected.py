"""What a store holds of a study, put in order: groups of rows, each with the records of its seeds."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from counterpoise._addresses import read_text
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key
from counterpoise.report.numbers import metric_title
from counterpoise_study.cells import (
    STAGES,
    Cell,
    Metrics,
    Progress,
    Result,
    chosen,
    name_of,
    results,
    trial_cells,
    tuning_setting,
)
from counterpoise_study.plan import planned_cells
from counterpoise_study.published import OodKind
from counterpoise_study.record import CellRecord, Outcome
from counterpoise_study.requests import Hyper, Line, Request, Setting
from counterpoise_study.store import Store
from counterpoise_study.studies import DETECTION, STUDIES, Study
from counterpoise_study.summary import mean

Pick = Callable[[Outcome], Estimate | None]
"""Where an outcome holds a metric."""

Images = Literal["test", "in-domain"]
"""Whose outcome: of the test images, or of the validation images beside a test domain that was left out."""


@dataclass(frozen=True)
class Column:
    """A metric of a table.

    Attributes:
        title: head of it.
        key: which metric.
        pick: where it is.
        ood: which OOD images are told from the data.
        has_floor: whether it is shown with its noise floor.
        images: that it is measured on.
    """

    title: str
    key: Key
    pick: Pick
    ood: OodKind = ""
    has_floor: bool = False
    images: Images = "test"

    def of(self, record: CellRecord, *, scaled: bool) -> Estimate | None:
        """What a record has of it."""
        test = self.images == "test"
        outcome = record.outcome(scaled=scaled) if test else record.in_domain_outcome(scaled=scaled)
        return None if outcome is None else self.pick(outcome)


@dataclass(frozen=True)
class Run:
    """One seed of a row: its cell, and what came of it; None until it is finished."""

    cell: Cell
    record: CellRecord | None


@dataclass(frozen=True)
class Row:
    """One method at its hyper-parameters in one setting; without runs until the values are chosen."""

    label: str
    line: Line
    setting: Setting
    hyper: Hyper | None
    runs: tuple[Run, ...]

    @property
    def records(self) -> list[CellRecord]:
        """Of the seeds that are finished."""
        return [run.record for run in self.runs if run.record is not None]

    def estimates(self, column: Column, *, scaled: bool) -> list[Estimate | None]:
        """One for each run; None where it is not finished, or has no such metric."""
        records = [run.record for run in self.runs]
        return [None if record is None else column.of(record, scaled=scaled) for record in records]

    def values(self, column: Column, *, scaled: bool) -> list[float]:
        """The same as numbers, NaN for None."""
        return [math.nan if found is None else found.value for found in self.estimates(column, scaled=scaled)]

    def by_seed(self, column: Column, *, scaled: bool) -> dict[int, float]:
        """The same of the runs that have such a value."""
        values = zip(self.runs, self.values(column, scaled=scaled), strict=True)
        return {run.cell.recipe.seed: value for run, value in values if not math.isnan(value)}


@dataclass(frozen=True)
class Group:
    """Rows that are compared with each other, and the metrics that are shown of them.

    Attributes:
        setting: title of what is the same for all rows.
        rows: that are compared.
        columns: that are shown.
        ood: name of the OOD images that are told from the data.
    """

    setting: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    ood: str = ""

    @property
    def title(self) -> str:
        """Of its table."""
        return f"{self.setting}, against {self.ood}" if self.ood else self.setting


@dataclass(frozen=True)
class Trial:
    """One candidate of the hyper-parameters on the validation images of one seed."""

    cell: Cell
    metrics: Metrics | None
    has_failed: bool
    is_chosen: bool


@dataclass(frozen=True)
class Choice:
    """All candidates of one method in the setting that they are tried in."""

    setting: Setting
    line: Line
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class StudyResults:
    """A study as far as it is done.

    Attributes:
        request: what was asked for.
        study: what it shows.
        groups: of the rows, one table each.
        choices: of hyper-parameters.
        failures: name and reason of the cells that were given up.
        done: tasks that are finished.
        total: tasks in all, as far as they are known.
    """

    request: Request
    study: Study
    groups: tuple[Group, ...]
    choices: tuple[Choice, ...]
    failures: tuple[tuple[str, str], ...]
    done: int
    total: int

    @property
    def cells(self) -> dict[str, tuple[str, Cell]]:
        """Every cell that it needs, as far as they are known, by its id; with the name that people are shown."""
        found = [(row.setting, run.cell) for group in self.groups for row in group.rows for run in row.runs]
        found += [(choice.setting, trial.cell) for choice in self.choices for trial in choice.trials]
        return {cell.id: (name_of(setting.name, cell), cell) for setting, cell in found}


class Records:
    """The records of a store, each read once."""

    def __init__(self, store: Store, progress: Progress) -> None:
        self._store, self._progress = store, progress
        self._read: dict[str, CellRecord] = {}

    def of(self, cell: Cell) -> CellRecord | None:
        """What came of a cell; None until it is committed."""
        if (cell.id, "complete") not in self._progress.metrics:
            return None
        if cell.id not in self._read:
            path = self._store.record_file(cell.id)
            try:
                self._read[cell.id] = CellRecord.from_json(read_text(path))
                self._require_committed(cell)
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"{path} belongs to a finished cell, and cannot be read: {error}; restore it, or remove it, and "
                    "`counterpoise-study run ... --again` makes it anew"
                ) from None
        return self._read[cell.id]

    def _require_committed(self, cell: Cell) -> None:
        """Refuse a record of something else than what the manifest says was finished."""
        record, committed = self._read[cell.id], self._progress.metrics[cell.id, "complete"]
        if record.validation != committed:
            raise ValueError("its validation metrics are not those of manifest.jsonl: one of the two was changed")
        if Cell(record.recipe, record.source).id != cell.id:
            raise ValueError("its recipe is not that of the cell whose folder it is in")


def collect(store: Store, *, studies: Sequence[str] = ()) -> list[StudyResults]:
    """The studies of a store, in the order of the paper; by default all that were asked for."""
    store.require_whole()
    requests = {request.study: request for request in store.contents.requests}
    if missing := [name for name in studies if name not in requests]:
        raise ValueError(f"{store.path} has no study {', '.join(missing)}; it has {', '.join(requests)}")
    if unknown := [name for name in requests if name not in STUDIES]:
        raise ValueError(f"{store.path} holds {', '.join(unknown)}, which this release does not know")
    progress = store.progress()
    records = Records(store, progress)
    return [
        _gathered(store, requests[name], progress, records)
        for name in STUDIES
        if name in requests and (not studies or name in studies)
    ]


def _gathered(store: Store, request: Request, progress: Progress, records: Records) -> StudyResults:
    study = STUDIES[request.study]
    rows = [_row(request, result, records) for result in results(request, progress)]
    wanted = [each for each in planned_cells([request], progress) if each.is_counted]
    gathered = StudyResults(
        request=request,
        study=study,
        groups=tuple(_groups(study, rows)),
        choices=tuple(_choices(request, progress)),
        failures=(),
        done=sum(each.is_done for each in wanted),
        total=len(wanted),
    )
    return replace(gathered, failures=tuple(_failures(store, gathered, progress)))


def _row(request: Request, result: Result, records: Records) -> Row:
    setting, line = request.setting(result.line.setting), result.line
    swept = hyper_text(result.hyper) if line.swept and result.hyper else ""
    label = ", ".join(filter(None, (line.title, setting.variant, swept)))
    runs = tuple(Run(cell, records.of(cell)) for cell in result.cells)
    return Row(label, line, setting, result.hyper, runs)


def _groups(study: Study, rows: Sequence[Row]) -> Iterator[Group]:
    by_title: dict[str, list[Row]] = {}
    for row in rows:
        by_title.setdefault(row.setting.title, []).append(row)
    for title, members in by_title.items():
        if study.layout != "ood":
            yield Group(title, tuple(members), tuple(_columns(study, members)))
            continue
        setting = members[0].setting
        for name, ood, published in _ood_sets(setting):
            columns = tuple(
                Column(metric_title(KEY_INFO[key]), key, _ood(name, key), published) for key in study.metrics
            )
            yield Group(title, tuple(members), columns, f"{name} ({ood})")


def _ood_sets(setting: Setting) -> Iterator[tuple[str, OodKind, OodKind]]:
    """Name of each, how far it is from the data, and which of the paper's it stands for: none but the first far one."""
    if setting.near:
        yield setting.near, "near", "near"
    for index, name in enumerate(setting.far):
        yield name, "far", "" if index else "far"


def _columns(study: Study, rows: Sequence[Row]) -> Iterator[Column]:
    if study.layout == "severity":
        levels = sorted({level for row in rows for record in row.records for level in severities(record.plain)})
        for level in levels:
            yield Column(f"ECE, %, {severity_title(level)}", Key.ECE, _severity(level))
        return
    places: tuple[tuple[str, Images], ...] = (("", "test"),)
    if study.layout == "in-and-out":
        places = (", in-domain", "in-domain"), (", left-out", "test")
    for place, images in places:
        for key in study.metrics:
            # The AUROC that is no metric of OOD images is that of telling right from wrong.
            pick = _misclassification(key) if key in DETECTION else _estimate(key)
            title = f"{metric_title(KEY_INFO[key])}{place}"
            yield Column(title, key, pick, has_floor=key is Key.ECE, images=images)


def _estimate(key: Key) -> Pick:
    return lambda outcome: outcome.estimates.get(key)


def _misclassification(key: Key) -> Pick:
    return lambda outcome: outcome.misclassification.get(key)


def _ood(name: str, key: Key) -> Pick:
    return lambda outcome: outcome.ood.get(name, {}).get(key)


def _severity(level: int) -> Pick:
    """Mean ECE over the corruptions, with the mean of its noise floors."""

    def pick(outcome: Outcome) -> Estimate | None:
        found = list(severities(outcome).get(level, {}).values())
        if not found:
            return None
        floors = [each.floor for each in found if each.floor is not None]
        floor = mean(floors) if floors else None
        return Estimate(mean([each.value for each in found]), math.nan, math.nan, floor)

    return pick


def severities(outcome: Outcome) -> dict[int, dict[str, Estimate]]:
    """ECE of each corruption at each severity, clean images at 0; empty where there are no corrupted images."""
    found: dict[int, dict[str, Estimate]] = {}
    for group in outcome.groups:
        if group.severity is not None:
            found.setdefault(group.severity, {})[group.corruption or ""] = group.estimates[Key.ECE]
    return dict(sorted(found.items()))


def severity_title(level: int) -> str:
    """As tables and figures name it."""
    return f"severity {level}" if level else "clean"


def hyper_text(hyper: Hyper) -> str:
    """Such as `alpha=0.8`.

    >>> hyper_text({"gamma": 2.0, "weight": 5.0}), hyper_text({})
    ('gamma=2, weight=5', '')
    """
    return ", ".join(f"{name}={value:g}" for name, value in hyper.items())


def _choices(request: Request, progress: Progress) -> Iterator[Choice]:
    """Every choice once, though settings may share it."""
    seen = set()
    for line in request.lines:
        setting = request.setting(tuning_setting(request, line))
        if len(line.candidates) == 1 or (setting.name, line.method) in seen:
            continue
        seen.add((setting.name, line.method))
        choice = chosen(request, line, progress)
        trials = (
            Trial(cell, progress.of(cell), progress.has_failed(cell), hyper == choice)
            for hyper in line.candidates
            for cell in trial_cells(request, line, hyper)
        )
        yield Choice(setting, line, tuple(trials))


def _failures(store: Store, gathered: StudyResults, progress: Progress) -> Iterator[tuple[str, str]]:
    for key, (name, _) in gathered.cells.items():
        for stage in STAGES:
            if (key, stage) in progress.given_up:
                failures = store.manifest.state((key, stage)).failures
                reason = failures[-1].reason if failures else None
                yield name, reason or "its process was lost too often"


def page_of(store: Store, cell: Cell) -> Path | None:
    """What to look at of a cell: its report, its record, or, of one that was only validated, its configuration."""
    run = store.run_folder(cell.id)
    return next((path for path in (run.report, store.record_file(cell.id), run.config) if path.exists()), None)
