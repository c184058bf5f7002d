"""From requests to tasks: which runs there are, which of them wait for a choice, and what was chosen."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Literal

from counterpoise.recipes.config import LARGER_IS_BETTER, Recipe
from counterpoise_study.requests import Hyper, Line, Request

Stage = Literal["validation", "complete"]
"""How much of a cell is wanted: trained and its validation images predicted, or everything."""

STAGES: tuple[Stage, ...] = ("validation", "complete")

Metrics = Mapping[str, float]
_ID_LENGTH = 16


@dataclass(frozen=True)
class Cell:
    """One run: data set x backbone x method x hyper-parameters x seed.

    Attributes:
        recipe: everything that decides it.
        source: SHA-256 of the file that its method comes from; empty for the methods of the package.
    """

    recipe: Recipe
    source: str = ""

    @cached_property
    def id(self) -> str:
        """Digest of what can change its result: cells of several studies that are the same have the same."""
        return cell_id(self.recipe.digest, self.source)


def is_cell_id(text: object) -> bool:
    """Whether a text can be the name of a cell, and so of its folder; a path, for one, cannot.

    >>> is_cell_id("06130d892a031aa8"), is_cell_id("../06130d892a031"), is_cell_id("/home")
    (True, False, False)
    """
    return isinstance(text, str) and len(text) == _ID_LENGTH and set(text) <= set("0123456789abcdef")


def cell_id(digest: str, source: str) -> str:
    """The name of a cell, from the digest of its recipe and that of its method's file."""
    return hashlib.sha256(f"{digest}{source}".encode()).hexdigest()[:_ID_LENGTH]


@dataclass(frozen=True)
class Task:
    """A cell, and how much of it is wanted.

    Attributes:
        cell: the run.
        stage: how much of it.
        name: what people are shown.
        group: tasks of one group follow from one choice of hyper-parameters; others never wait for them.
    """

    cell: Cell
    stage: Stage
    name: str
    group: str

    @property
    def key(self) -> tuple[str, Stage]:
        """What tells it from other tasks."""
        return self.cell.id, self.stage


@dataclass(frozen=True)
class Result:
    """One line of a table as its cells: the chosen hyper-parameters, and a cell for each seed.

    Attributes:
        line: that was asked for.
        hyper: the values; None until they are chosen.
        cells: one for each seed, in order; empty until the values are chosen.
    """

    line: Line
    hyper: Hyper | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Progress:
    """What is known of tasks: `metrics` of those that are done, by task; `given_up` those that failed for good."""

    metrics: Mapping[tuple[str, Stage], Metrics]
    given_up: frozenset[tuple[str, Stage]] = frozenset()

    def is_done(self, task: Task) -> bool:
        """Whether there is nothing more to do; what is complete is validated as well."""
        return task.key in self.metrics or (task.cell.id, "complete") in self.metrics

    def of(self, cell: Cell) -> Metrics | None:
        """Validation metrics of a cell, if it has been trained."""
        for stage in STAGES:
            if (cell.id, stage) in self.metrics:
                return self.metrics[cell.id, stage]
        return None

    def has_failed(self, cell: Cell) -> bool:
        """Whether the cell was given up before it was trained."""
        return self.of(cell) is None and any((cell.id, stage) in self.given_up for stage in STAGES)


def cell_of(request: Request, line: Line, *, setting: str, hyper: Hyper, seed: int) -> Cell:
    """One run of a line; made once for a request, because its digest takes time."""
    key = (setting, line.method, line.source, tuple(hyper.items()), seed)
    if key not in request.made:
        recipe = request.setting(setting).recipe
        recipe = replace(recipe, method=line.method, hyper=recipe.hyper | hyper, seed=seed)
        request.made[key] = Cell(recipe, line.source)
    made: Cell = request.made[key]
    return made


def results(request: Request, progress: Progress) -> Iterator[Result]:
    """Every line of the finished table, as far as it is decided; a swept line gives one for each candidate."""
    for line in request.lines:
        if line.swept:
            for hyper in line.candidates:
                yield Result(line, hyper, _cells(request, line, hyper))
            continue
        choice = chosen(request, line, progress)
        yield Result(line, choice, () if choice is None else _cells(request, line, choice))


def chosen(request: Request, line: Line, progress: Progress) -> Hyper | None:
    """The candidate with the best validation metric, as the mean over the seeds that choose; the first of equals.

    None while one of them is still to be trained, or where all of them have failed. Those of which a run failed do not
    count.
    """
    if len(line.candidates) == 1:
        return line.candidates[0]
    sign = -1 if request.rule in LARGER_IS_BETTER else 1
    measured: list[tuple[float, int]] = []
    for index, hyper in enumerate(line.candidates):
        cells = trial_cells(request, line, hyper)
        if any(map(progress.has_failed, cells)):
            continue
        found = [metrics[request.rule] for cell in cells if (metrics := progress.of(cell)) is not None]
        if len(found) < len(cells):
            return None
        measured.append((sign * fmean(found), index))
    return line.candidates[min(measured)[1]] if measured else None


def candidate_cells(request: Request, line: Line) -> list[Cell]:
    """The cells of all candidates, one candidate after another."""
    return [cell for hyper in line.candidates for cell in trial_cells(request, line, hyper)]


def trial_cells(request: Request, line: Line, hyper: Hyper) -> list[Cell]:
    """The cells that a candidate is judged by, one for each seed, in the setting where the choice is made."""
    setting = tuning_setting(request, line)
    return [cell_of(request, line, setting=setting, hyper=hyper, seed=seed) for seed in line.choosing_seeds]


def tasks(requests: Sequence[Request], progress: Progress) -> list[Task]:
    """All tasks that can be named now, each once: what chooses comes first, then seed by seed.

    Where a cell is wanted complete, it is not also asked for its validation alone.
    """
    choosing: dict[str, Task] = {}
    wanted: dict[str, tuple[int, Task]] = {}
    for request in requests:
        for line in request.lines:
            if len(line.candidates) > 1 and not line.swept:
                for cell in candidate_cells(request, line):
                    choosing.setdefault(cell.id, _task(request, line, cell, "validation"))
        for result in results(request, progress):
            for order, cell in enumerate(result.cells):
                wanted.setdefault(cell.id, (order, _task(request, result.line, cell, "complete")))
    first = [task for key, task in choosing.items() if key not in wanted]
    return first + [task for _, task in sorted(wanted.values(), key=lambda entry: entry[0])]


def groups(requests: Sequence[Request]) -> list[str]:
    """Names of all groups of tasks, in order."""
    return sorted({_group(request, line) for request in requests for line in request.lines})


def undecided(requests: Sequence[Request], progress: Progress) -> int:
    """Complete cells that cannot be named yet, because their hyper-parameters are not chosen."""
    waiting = {
        tuple(cell_of(request, line, setting=line.setting, hyper=hyper, seed=seed).id for hyper in line.candidates)
        for request in requests
        for line in request.lines
        if not line.swept and chosen(request, line, progress) is None and not is_hopeless(request, line, progress)
        for seed in line.seeds
    }
    return len(waiting)


def is_hopeless(request: Request, line: Line, progress: Progress) -> bool:
    """Whether of each candidate of a line a run was given up, so that none can be chosen."""
    return all(any(map(progress.has_failed, trial_cells(request, line, hyper))) for hyper in line.candidates)


def name_of(setting: str, cell: Cell) -> str:
    """A cell as people are shown it.

    >>> name_of("cifar10-resnet34", Cell(Recipe(method="mte1", hyper={"alpha": 0.8}, seed=2)))
    'cifar10-resnet34 mte1 alpha=0.8 seed 2'
    """
    values = [f"{name}={value:g}" for name, value in cell.recipe.hyper.items()]
    return " ".join([setting, cell.recipe.method, *values, f"seed {cell.recipe.seed}"])


def _task(request: Request, line: Line, cell: Cell, stage: Stage) -> Task:
    return Task(cell, stage, name_of(line.setting, cell), _group(request, line))


def _group(request: Request, line: Line) -> str:
    """By what is tuned, and not by the name of its setting: two settings may be the same."""
    return cell_of(request, line, setting=tuning_setting(request, line), hyper={}, seed=0).id


def tuning_setting(request: Request, line: Line) -> str:
    """Name of the setting that the hyper-parameters of a line are chosen in."""
    return request.setting(line.setting).tuned_in or line.setting


def _cells(request: Request, line: Line, hyper: Hyper) -> tuple[Cell, ...]:
    return tuple(cell_of(request, line, setting=line.setting, hyper=hyper, seed=seed) for seed in line.seeds)
