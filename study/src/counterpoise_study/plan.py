"""What studies will cost before anything runs: cells, network passes, FLOPs, device hours and disk."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from counterpoise.report.tables import MOST_COLUMNS, as_text, table
from counterpoise_study.cells import (
    Cell,
    Progress,
    Stage,
    candidate_cells,
    cell_of,
    chosen,
    is_hopeless,
    name_of,
    tasks,
)
from counterpoise_study.cost import Work, combined, work_of
from counterpoise_study.hardware_timing import HardwareTiming, seconds_of
from counterpoise_study.requests import Request
from counterpoise_study.store import Store

_HOUR = 3600.0
_DEVICES = {"cpu": "CPU", "cuda": "GPU", "mps": "GPU"}


@dataclass(frozen=True)
class PlannedCell:
    """A cell that requests come to; of one whose hyper-parameters are not chosen yet, a candidate stands for it.

    Attributes:
        cell: the run.
        id: of it, or of all candidates for an open one.
        name: what people are shown.
        stage: how much of it is wanted.
        is_open: whether its hyper-parameters are still to be chosen.
        is_trained: whether all but the predictions of test and OOD images is done, or is counted elsewhere.
        is_done: whether nothing is left to do.
    """

    cell: Cell
    id: str
    name: str
    stage: Stage
    is_open: bool = False
    is_trained: bool = False
    is_done: bool = False

    @property
    def is_counted(self) -> bool:
        """Whether people count it: one that is to be chosen from cells that are named is one of these."""
        return not (self.is_open and self.is_trained)


@dataclass(frozen=True)
class Share:
    """What one study, or all of them, come to; what is done counts as a cell, and costs nothing any more.

    Attributes:
        title: name of the study.
        choosing: cells that are trained to choose hyper-parameters.
        final: further cells, whose results are shown.
        done: cells that are finished.
        work: that is left.
        seconds: that it takes on one device, one cell after another.
    """

    title: str
    choosing: int
    final: int
    done: int
    work: Work
    seconds: float

    @property
    def cells(self) -> int:
        """All cells."""
        return self.choosing + self.final


@dataclass(frozen=True)
class Plan:
    """What is to come.

    Attributes:
        scale: of all studies.
        studies: each as if it were alone.
        total: of all; less than their sum where they share cells.
        timing: that hours were estimated with.
    """

    scale: str
    studies: tuple[Share, ...]
    total: Share
    timing: HardwareTiming


def plan_of(requests: Sequence[Request], *, timing: HardwareTiming, store: Store | None = None) -> Plan:
    """What requests come to, less what a store holds of them already."""
    progress = store.progress() if store is not None else Progress({})
    studies = tuple(_share(request.study, [request], progress, timing) for request in requests)
    return Plan(requests[0].scale, studies, _share("all", requests, progress, timing), timing)


def planned_cells(requests: Sequence[Request], progress: Progress) -> Iterator[PlannedCell]:
    """Every cell once: those that can be named, then those that wait for a choice of hyper-parameters.

    A cell that waits is one of its candidates. Where all of these are wanted complete anyway, it is no cell of its
    own; where all of them are trained to choose from, only its completion is left.
    """
    named: dict[str, Stage] = {}
    for task in tasks(requests, progress):
        key = task.cell.id
        named[key] = task.stage
        trained = task.stage == "complete" and (key, "validation") in progress.metrics
        yield PlannedCell(task.cell, key, task.name, task.stage, is_trained=trained, is_done=progress.is_done(task))
    seen: set[str] = set()
    for request in requests:
        for line in request.lines:
            if line.swept or chosen(request, line, progress) is not None:
                continue
            if is_hopeless(request, line, progress):
                continue
            for seed in line.seeds:
                cells = [
                    cell_of(request, line, setting=line.setting, hyper=hyper, seed=seed) for hyper in line.candidates
                ]
                ids = [cell.id for cell in cells]
                key = " ".join(ids)
                if key in seen or all(named.get(each) == "complete" for each in ids):
                    continue
                seen.add(key)
                name = name_of(line.setting, cells[0])
                trained = all(each in named for each in ids)
                yield PlannedCell(cells[0], key, name, "complete", is_open=True, is_trained=trained)


def work_left(planned: PlannedCell) -> Work:
    """What is left to do for a cell."""
    if planned.is_done:
        return Work()
    recipe = planned.cell.recipe
    whole = work_of(recipe, planned.stage)
    return whole.minus(work_of(recipe, "validation")) if planned.is_trained else whole


def seconds_left(planned: PlannedCell, timing: HardwareTiming) -> float:
    """How long that takes."""
    if planned.is_done:
        return 0.0
    recipe = planned.cell.recipe
    trained = seconds_of(recipe, "validation", timing) if planned.is_trained else 0.0
    return seconds_of(recipe, planned.stage, timing) - trained


def plan_text(source: Plan) -> str:
    """A table with a row for each study, and what the numbers are based on."""
    device = _DEVICES.get(source.timing.device, source.timing.device)
    columns = ("study", "cells", "to choose", "done", "passes", "FLOPs", f"{device} hours", "disk")
    shares = [*source.studies] if len(source.studies) == 1 else [*source.studies, source.total]
    rows = [
        (
            share.title,
            f"{share.cells:,}",
            f"{share.choosing:,}",
            f"{share.done:,}",
            _scaled(share.work.passes),
            _scaled(share.work.flops),
            _hours(share.seconds),
            _bytes(share.work.kept_bytes),
        )
        for share in shares
    ]
    shared = "; `all` is less than the sum, because studies share cells" if len(shares) > 1 else ""
    remarks = [
        f"passes: images through networks, of what is left to do{shared}",
        f"{device} hours: one cell after another; {source.timing.note}",
        f"disk: for good; besides, {_bytes(source.total.work.running_bytes)} of checkpoints at most for each cell "
        "that runs",
    ]
    lines = [textwrap.fill(remark, MOST_COLUMNS) for remark in remarks]
    return "\n".join([as_text(table(f"Plan, scale {source.scale}", columns, rows)), "", *lines])


def _share(title: str, requests: Sequence[Request], progress: Progress, timing: HardwareTiming) -> Share:
    cells = list(planned_cells(requests, progress))
    distinct = [each for each in cells if each.is_counted]
    choosing = len(
        {
            cell.id
            for request in requests
            for line in request.lines
            if len(line.candidates) > 1 and not line.swept
            for cell in candidate_cells(request, line)
        }
    )
    return Share(
        title=title,
        choosing=choosing,
        final=len(distinct) - choosing,
        done=sum(each.is_done for each in distinct),
        work=combined(work_left(each) for each in cells),
        seconds=sum(seconds_left(each, timing) for each in cells),
    )


def _scaled(value: float) -> str:
    """A large number in three digits.

    >>> _scaled(1234567), _scaled(950)
    ('1.23e+06', '950')
    """
    return f"{value:.3g}"


def _hours(seconds: float) -> str:
    """Hours.

    >>> _hours(10), _hours(5000), _hours(1e6)
    ('0.00', '1.39', '278')
    """
    hours = seconds / _HOUR
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2f}"


def _bytes(count: float) -> str:
    """Bytes in the usual units.

    >>> _bytes(1_500_000), _bytes(12)
    ('1.5 MB', '0.0 MB')
    """
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
