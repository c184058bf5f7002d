"""Search over fields of a recipe: an Optuna study in a folder, which any number of processes work on at a time.

    FOLDER/study.log            Optuna's journal: the values and the metric of every trial
    FOLDER/study.lock           held for moments by the process that reads the journal and adds to it
    FOLDER/trials/0000          a run as `counterpoise train` makes it, without test predictions
    FOLDER/trials/0000.lock     held by the process that trains it
    FOLDER/search.json          every trial so far; search.png and search.svg show them
    FOLDER/best.json            the recipe with the best values so far

Trials are claimed as `counterpoise._locks` says: whoever comes after a killed process goes on from the newest
checkpoint. Where the conditions have changed, that is refused, and `counterpoise resume` can finish the trial under the
new ones.

Values come from a sweep first (the middle of every range, its ends, its quarters: for alpha, the grid of the paper),
then from a Gaussian process, which suits few dimensions and a metric that changes smoothly; it takes trials that are
still running into account. Where it draws a point that was tried already, whose metric would be the same, a random one
is tried instead. Points are drawn under the lock, with a seed that depends on the number of trials: processes get
different ones, and a search in one process that was interrupted draws the same as one that was not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock

from counterpoise._documents import from_document, to_document
from counterpoise._extras import require
from counterpoise._files import write_text
from counterpoise._locks import Claim, claimed, holding, lock_of
from counterpoise.recipes.config import LARGER_IS_BETTER, Recipe, ValidationMetric
from counterpoise.recipes.ranges import Range, changed_fields, with_values

require("optuna", extra="tune", purpose="tuning")

import optuna  # noqa: E402
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution  # noqa: E402
from optuna.samplers import GPSampler  # noqa: E402
from optuna.storages import JournalStorage  # noqa: E402
from optuna.storages.journal import JournalFileBackend  # noqa: E402
from optuna.trial import FrozenTrial, TrialState  # noqa: E402

SCHEMA, SCHEMA_VERSION = "counterpoise.search", 2
SWEEP = (0.5, 0.0, 1.0, 0.25, 0.75)
"""Shares of each range that are tried first."""

_METRIC, _METRICS = "measure", "measures"
"""What the journal calls them, which has no version: a search of an earlier release goes on."""
_REDRAWS = 1000
"""Random points, the last resort, after which nothing new is expected."""

_NAME = "search"

State = Literal["complete", "failed", "running"]
Values = dict[str, int | float]


@dataclass(frozen=True)
class Trial:
    """One training of a search.

    Attributes:
        number: of the trial, from 0.
        state: `failed` where training broke down, as it does when it diverges.
        values: of the searched fields, by path.
        metrics: of the validation images after the last epoch; empty until the trial is complete.
        folder: of the run, below the folder of the search.
        reason: why it failed.
    """

    number: int
    state: State
    values: Values
    metrics: dict[str, float]
    folder: str
    reason: str | None = None


@dataclass(frozen=True)
class Search:
    """A search so far: what `search.json` holds."""

    recipe: Recipe
    ranges: tuple[Range, ...]
    metric: ValidationMetric
    trials: tuple[Trial, ...]

    @property
    def ranked(self) -> list[Trial]:
        """The complete trials, the best first; of equals, the earliest."""
        sign = -1 if self.metric in LARGER_IS_BETTER else 1
        complete = [trial for trial in self.trials if trial.state == "complete"]
        return sorted(complete, key=lambda trial: sign * trial.metrics[self.metric])

    @property
    def best(self) -> Recipe | None:
        """The recipe with the best values, or None while no trial is complete."""
        ranked = self.ranked
        return with_values(self.recipe, ranked[0].values) if ranked else None

    def to_json(self) -> str:
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION)

    @classmethod
    def from_json(cls, text: str) -> "Search":
        """Read what `to_json` wrote; anything else is a `ValueError` that names the place."""
        return from_document(cls, text, schema=SCHEMA, version=SCHEMA_VERSION)


@dataclass(frozen=True)
class ClaimedTrial:
    """A trial that this process trains."""

    number: int
    values: Values
    claim: Claim


class SharedStudy:
    """An Optuna study in a folder, and who works on which of its trials."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        ranges: Sequence[Range],
        *,
        metric: ValidationMetric,
        seed: int = 0,
        data: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.recipe, self.ranges, self.metric, self.seed = folder, recipe, tuple(ranges), metric, seed
        (folder / "trials").mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.lock = lock_of(folder / "study.lock")
        with holding(self.lock):
            self._storage = _open_journal(folder / "study.log", self.lock)
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=_NAME,
                direction="maximize" if metric in LARGER_IS_BETTER else "minimize",
                load_if_exists=True,
            )
            self._require_same(dict(data or {}))

    def path(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    def take(self, total: int) -> ClaimedTrial | None:
        """A trial to train: one that nobody trains any more, or a new one while there are fewer than `total`.

        None where there is none, or where every point of ranges of whole numbers was tried.
        """
        with holding(self.lock):
            for trial in self._trials(TrialState.RUNNING):
                claimed_trial = self._claim(trial)
                if claimed_trial is not None:
                    return claimed_trial
            if len(self._trials(TrialState.RUNNING, TrialState.COMPLETE)) >= total:
                return None
            return self._ask()

    def finish(
        self, trial: ClaimedTrial, *, metrics: Mapping[str, float] | None = None, reason: str | None = None
    ) -> None:
        """Record what came of a trial, and write the results so far.

        For a trial that failed the sampler is told the worst metric so far, so that it keeps away.
        """
        with holding(self.lock):
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, trial.number)
            if metrics is not None:
                self._storage.set_trial_user_attr(trial_id, _METRICS, dict(metrics))
                value = metrics[self.metric]
            else:
                self._storage.set_trial_user_attr(trial_id, "reason", reason)
                value = self.search().ranked[-1].metrics[self.metric]
            self._study.tell(trial.number, value)
            trial.claim.done()
            self.write()

    def search(self) -> Search:
        trials = (
            Trial(
                number=trial.number,
                state=_state(trial),
                values=dict(trial.params),
                metrics=trial.user_attrs.get(_METRICS, {}),
                folder=str(self.path(trial.number).relative_to(self.folder)),
                reason=trial.user_attrs.get("reason"),
            )
            for trial in self._trials(TrialState.RUNNING, TrialState.COMPLETE)
        )
        return Search(self.recipe, self.ranges, self.metric, tuple(trials))

    def write(self) -> Search:
        with holding(self.lock):
            search = self.search()
            write_text(self.folder / "search.json", search.to_json())
            if search.best is not None:
                write_text(self.folder / "best.json", search.best.to_json())
        return search

    @property
    def _study_id(self) -> int:
        return self._storage.get_study_id_from_name(_NAME)

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)

    def _claim(self, trial: FrozenTrial) -> ClaimedTrial | None:
        """The trial, unless another process trains it or it was lost before it had its values."""
        claim = claimed(self.path(trial.number))
        if claim is None:
            return None
        if len(trial.params) < len(self.ranges):
            self._study.tell(trial.number, state=TrialState.FAIL)
            claim.done()
            return None
        return ClaimedTrial(trial.number, dict(trial.params), claim)

    def _ask(self) -> ClaimedTrial | None:
        """A new trial, if there is anything new to try; the lock must be held."""
        if not self._trials(TrialState.WAITING):  # else a process died before it began its trial
            point = self._next_point()
            if point is None:
                return None
            self._study.enqueue_trial(point)
        number = self._study.ask(self._distributions).number
        trial = self._claim(self._study.get_trials(deepcopy=False)[number])
        assert trial is not None
        return trial

    def _next_point(self) -> Values | None:
        """Of the sweep, or else of the Gaussian process, or else a random one: the first that was not tried."""
        tried = [trial.values for trial in self.search().trials]
        for point in sweep(self.ranges, seed=self.seed):
            if point not in tried:
                return point
        # In a study of its own, so that what is drawn and not used leaves no trace.
        seed = 1000 * self.seed + len(tried)
        sampler = GPSampler(seed=seed, n_startup_trials=len(SWEEP), warn_independent_sampling=False)
        study = optuna.create_study(sampler=sampler, direction=self._study.direction)
        study.add_trials(self._trials(TrialState.RUNNING, TrialState.COMPLETE))
        drawn = study.ask(self._distributions).params
        point = {r.path: r.fitted(drawn[r.path]) for r in self.ranges}
        if point not in tried:
            return point
        generator = np.random.default_rng(seed)
        random = ({r.path: r.at(generator.random()) for r in self.ranges} for _ in range(_REDRAWS))
        return next((point for point in random if point not in tried), None)

    @property
    def _distributions(self) -> dict[str, BaseDistribution]:
        return {r.path: _distribution(r) for r in self.ranges}

    def _require_same(self, data: dict[str, str]) -> None:
        """Record what is searched and digests of the data, or refuse to go on with something else."""
        now: dict[str, Any] = {"recipe": self.recipe.to_json(), "ranges": [asdict(r) for r in self.ranges]}
        now |= {_METRIC: self.metric, "data": data}
        before = self._study.user_attrs
        if not before:
            # One entry of the journal, so that it is there whole or not at all.
            self._study.set_user_attr("searched", now)
            return
        found = before["searched"]
        changed = [
            *changed_fields(Recipe.from_json(found["recipe"]), self.recipe),
            *(f"the {name}" for name, key in (("ranges", "ranges"), ("metric", _METRIC)) if found[key] != now[key]),
            *(["the content of the data"] if data and found.get("data") and found["data"] != data else []),
        ]
        if changed:
            raise ValueError(
                f"{self.folder} holds a search with other values of {', '.join(changed)}; go on as it was started, or "
                "use another folder"
            )


def sweep(ranges: Sequence[Range], *, seed: int) -> list[Values]:
    """The points that are tried first: every range at each share of `SWEEP`, the first in order, others shuffled.

    >>> [point["hyper.alpha"] for point in sweep([Range("hyper.alpha", 0.4, 1.2)], seed=0)]
    [0.8, 0.4, 1.2, 0.6, 1.0]
    """
    columns = []
    for index, searched in enumerate(ranges):
        shuffled = [1 + i for i in np.random.default_rng([seed, index]).permutation(len(SWEEP) - 1)]
        order = [0, *shuffled] if index else range(len(SWEEP))
        columns.append([searched.at(SWEEP[place]) for place in order])
    return [{r.path: value for r, value in zip(ranges, point, strict=True)} for point in zip(*columns, strict=True)]


def _open_journal(path: Path, lock: FileLock) -> JournalStorage:
    """The journal, without half a line that a crash may have left at its end; the lock must be held."""
    if path.exists():
        content = path.read_bytes()
        if not content.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)
    # Optuna's own lock is a file that outlives a killed process for half a minute; this one ends with the process.
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))  # type: ignore[arg-type]


def _distribution(searched: Range) -> BaseDistribution:
    if searched.integer:
        return IntDistribution(int(searched.low), int(searched.high), log=searched.log)
    return FloatDistribution(searched.low, searched.high, log=searched.log)


def _state(trial: FrozenTrial) -> State:
    if trial.state == TrialState.RUNNING:
        return "running"
    return "complete" if _METRICS in trial.user_attrs else "failed"
