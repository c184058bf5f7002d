"""Stores of made-up results: everything that a store holds but the runs, in a second and without data."""

import math
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from counterpoise._files import write_text
from counterpoise.metrics import Estimate, Key
from counterpoise.metrics.estimates import KEY_INFO
from counterpoise.metrics.scores import BinTable, GroupScores
from counterpoise.recipes.checks import corruption_names
from counterpoise.recipes.config import Recipe
from counterpoise_study.cells import Task
from counterpoise_study.collected import Row
from counterpoise_study.grid import remaining
from counterpoise_study.record import CellRecord, Outcome
from counterpoise_study.requests import Request
from counterpoise_study.store import Store
from counterpoise_study.studies import DETECTION, STUDIES, request_of

METHODS = ("ce", "fl", "de3", "dml", "mte1", "mte2")
SEEDS = (0, 1, 2)
BINS = 15
SAMPLES = 200


def requests(studies: Sequence[str] = tuple(STUDIES), *, seeds: Sequence[int] = SEEDS) -> list[Request]:
    return [request_of(study, "smoke", seeds=seeds, only=METHODS) for study in studies]


def filled(path, wanted: Sequence[Request], *, skip: Callable[[Task], bool] = lambda _: False) -> Store:
    """A store in which all is committed but what is skipped."""
    store = Store(path)
    store.add(wanted)
    while ready := [task for task in remaining(store, wanted).ready if not skip(task)]:
        for task in ready:
            commit(store, task)
    return store


def commit(store: Store, task: Task) -> None:
    with store.claim(task) as mine:
        assert mine
        found = record(task.cell.recipe, source=task.cell.source)
        folder = store.run_folder(task.cell.id)
        folder.path.mkdir(exist_ok=True)
        write_text(folder.config, task.cell.recipe.to_json())
        if task.stage == "complete":
            write_text(store.record_file(task.cell.id), found.to_json())
        store.commit(task, metrics=found.validation, seconds=1.0, peak_memory=1)


def record(recipe: Recipe, *, source: str = "") -> CellRecord:
    """Made of the recipe alone. MTE-2 is far better than MTE-1, and that than all others."""
    rng = np.random.default_rng(zlib.crc32(recipe.to_json().encode()))
    plain, scaled = (_outcome(recipe, rng, shift=shift) for shift in (0.0, -0.01))
    return CellRecord(
        recipe=recipe,
        source=source,
        validation={"nll": float(rng.uniform(1, 2)), "accuracy": float(rng.uniform()), "ece": float(rng.uniform())},
        samples=SAMPLES,
        classes=10,
        level=0.95,
        temperature=float(rng.uniform(1, 2)),
        temperature_state="converged",
        plain=plain,
        scaled=scaled,
    )


def _outcome(recipe: Recipe, rng: np.random.Generator, *, shift: float) -> Outcome:
    gain = {"mte2": 0.2, "mte1": 0.1}.get(recipe.method, 0.0)

    def estimate(value: float, *, floor: float | None = None) -> Estimate:
        return Estimate(value, value - 0.01, value + 0.01, floor)

    def noise() -> float:
        return float(rng.normal(scale=0.003))

    def detection() -> dict[Key, Estimate]:
        return {key: estimate(0.5 + noise()) for key in DETECTION}

    estimates = {
        Key.ACCURACY: estimate(0.6 + gain + noise()),
        Key.ECE: estimate(0.3 - gain + shift + noise(), floor=float(rng.uniform(0.01, 0.02))),
        Key.CLASSWISE_ECE: estimate((0.3 - gain + shift + noise()) / 10),
        Key.NLL: estimate(1.0 - gain + shift + noise()),
    }
    severities = (0, *recipe.evaluation.severities) if recipe.evaluation.corruptions else ()
    groups = [
        GroupScores(None, name, level, 60, {Key.ECE: estimate(0.2 + 0.05 * level + noise(), floor=0.03)})
        for level in severities
        for name in (corruption_names(recipe.evaluation.corruptions) if level else [None])
    ]
    count = rng.multinomial(SAMPLES, np.full(BINS, 1 / BINS))
    hits = rng.binomial(count, 0.5)
    confidence = count * (np.arange(BINS) + 0.5) / BINS
    sums = [(confidence * factor).tolist() for factor in (1.0, 0.5, 0.5)]
    return Outcome(
        estimates=estimates,
        misclassification=detection(),
        ood={name: detection() for name in recipe.evaluation.ood},
        groups=groups,
        top_label=BinTable(count.tolist(), hits.tolist(), *sums),
    )


def undefined(found: CellRecord, key: Key) -> CellRecord:
    """The same with a metric that is not defined."""
    found.plain.estimates[key] = Estimate(math.nan, math.nan, math.nan)
    return found


def values(row: Row, key: Key, *, scaled: bool = False, pick=lambda outcome: outcome.estimates) -> list[float]:
    """A metric of every seed, from the records themselves, as it is shown."""
    return [KEY_INFO[key].scale * pick(record.outcome(scaled=scaled))[key].value for record in row.records]
