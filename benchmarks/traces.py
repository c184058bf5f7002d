"""Losses of 100 steps of every method on real images: `python -m benchmarks.traces [--write METHOD ...]`.

The traces in `tests/golden/traces.json` are what a change of the code must not change. Other processors round
differently and training amplifies it, so the comparison has a tolerance; between two runs on one machine there is none
(`tests/test_resume.py`). `--write` replaces the traces of the methods it names, which is a decision and not a repair.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.reporting import Check, finish, progress
from counterpoise.models import Backbone
from counterpoise.recipes import METHODS
from counterpoise.recipes.config import DataOptions, EngineOptions, OptimizerOptions, Recipe
from counterpoise.training import named_data, train
from counterpoise.training.folder import STEP_COLUMNS, RowLog, RunFolder, member_folders

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "traces.json"
EPOCHS, STEPS_AN_EPOCH = 5, 20
TOLERANCE = 0.01
"""Largest mean relative difference of the losses. Two threads instead of one give less than 0.001, and 0.003 for DCA,
whose loss jumps when a sample changes from wrong to right."""


def main() -> None:
    """Compare every trace, or write them anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", nargs="+", choices=METHODS, default=(), help="replace the traces of these methods")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    found = {}
    for method in options.write or METHODS:
        progress(method)
        found[method] = trace(method, threads=options.threads)
    if options.write:
        GOLDEN.write_text(json.dumps(json.loads(GOLDEN.read_text()) | found, indent=1) + "\n")
    figures = {method: difference(losses, golden(method)) for method, losses in found.items()}
    checks = [Check(f"{method}: mean relative difference", figures[method], at_most=TOLERANCE) for method in figures]
    finish("python -m benchmarks.traces", figures, checks)


def recipe_for(method: str, *, threads: int = 1) -> Recipe:
    """A small network on 1,000 images of CIFAR-10, in float32; auxiliaries that share its trunk are as wide."""
    savings = METHODS[method].savings
    return Recipe(
        method=method,
        primary=Backbone(name="cnn", width=8),
        auxiliary=Backbone(name="cnn", width=8 if savings is not None and savings.trunk else 4),
        epochs=EPOCHS,
        batch=50,
        initial_weights="by-count",  # by which the traces were written
        data=DataOptions(name="cifar10", validation=100, limit=100 + 50 * STEPS_AN_EPOCH),
        optimizer=OptimizerOptions(lr=0.02, milestones=(3,)),
        engine=EngineOptions(accelerator="cpu", threads=threads),
    )


def trace(method: str, *, epochs: int = EPOCHS, threads: int = 1) -> list[float]:
    """The loss of every step; for an ensemble, of its members' trainings after each other."""
    recipe = recipe_for(method, threads=threads)
    # Milestones are absolute, so a run of fewer epochs is the beginning of the whole one.
    recipe = replace(recipe, epochs=epochs)
    with tempfile.TemporaryDirectory() as folder:
        train(recipe, folder, data=replace(named_data(recipe), test=None))
        parts = member_folders(recipe, RunFolder(Path(folder)))
        return [float(f"{float(row['loss']):.9g}") for part in parts for row in RowLog(part.steps, STEP_COLUMNS).rows()]


def golden(method: str) -> list[float]:
    """The trace in the repository."""
    traces: dict[str, list[float]] = json.loads(GOLDEN.read_text())
    return traces[method]


def difference(losses: list[float], expected: list[float]) -> float:
    """Mean relative difference of two traces of one length."""
    return statistics.fmean(abs(one - other) / abs(other) for one, other in zip(losses, expected, strict=True))


if __name__ == "__main__":
    main()
