"""Faults at full size: `python -m benchmarks.faults [--kills] [--grid] [--disk]`.

- Kills: 200 runs are killed with SIGKILL and resumed, in turn over SGD and AdamW, images in memory, streamed and in tar
  shards, and cross-entropy, MTE-1, MTE-1 with a shared trunk, MTE-1 whose auxiliary has a process of its own, and an
  ensemble of three. Each must end with the bits of the run that nobody killed, and leave no temporary file.
- Grid: 500 cells on a local Ray cluster, with 60 workers and 10 coordinators killed (`benchmarks.grid` has the rest).
- Disk: a grid whose store has reads and writes of which one in 200 fails, a disk that is full twice, or a clock that
  jumps by up to a day, by a library that is loaded before C's (`faults.c`). The same command is given again until it
  ends well. Every stop must be a clear one, and the records and tables those of the undisturbed grid, byte for byte.

Without a choice, all three. Linux alone, with a C compiler.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import grid, interruptions
from benchmarks.reporting import Check, finish, progress
from counterpoise.models import Backbone
from counterpoise.recipes.config import OptimizerOptions, Recipe
from counterpoise.recipes.savings import SavingOptions
from counterpoise_study.grid import run_sequentially
from counterpoise_study.store import Store

TRIALS = 200
GRID_SEEDS = 83
"""For 500 cells."""
GRID_KILLS = grid.Kills(workers=60, coordinators=10)

DISK_SEEDS = 5
"""For 32 cells."""
MOST_ATTEMPTS = 100
ONE_IN = 200
SPACE = (100_000, 400_000)
"""Bytes after which the disk is full, the first and the second time."""

OPTIMIZERS = {
    "sgd": OptimizerOptions(milestones=(3,)),
    "adamw": OptimizerOptions(name="adamw", lr=1e-3, weight_decay=0.05, schedule="cosine", warmup=0.5),
}
METHODS = {
    "ce": ("ce", SavingOptions(), 0),
    "mte1": ("mte1", SavingOptions(), 0),
    "shared trunk": ("mte1", SavingOptions("layer2"), 0),
    "remote auxiliary": ("mte1", SavingOptions(), 1),
    "de3": ("de3", SavingOptions(), 0),
}


def main() -> None:
    """Measure, print JSON, compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("kills", "grid", "disk")
    for part in parts:
        parser.add_argument(f"--{part}", action="store_true", help="this alone")
    parser.add_argument("--trials", type=int, default=TRIALS, help="number of kills")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    chosen = [part for part in parts if getattr(options, part)] or parts
    figures: dict[str, Any] = {}
    checks: list[Check] = []
    with tempfile.TemporaryDirectory() as scratch:
        if "kills" in chosen:
            done = interruptions.run_trials(killed_recipes(Path(scratch)), options.trials, seed=options.seed)
            figures["kills"] = {
                "trials": options.trials,
                "same": done.same,
                "killed in the state": dict(done.killed_at),
                "temporary files left": done.left,
            }
            checks.append(
                Check("killed runs that end with the same state and losses", done.same, at_least=options.trials)
            )
            checks.append(Check("temporary files that killed runs left", done.left, at_most=0))
        if "disk" in chosen:
            for name, outcome in failing_disks(Path(scratch), seeds=DISK_SEEDS, seed=options.seed).items():
                figures[name] = asdict(outcome)
                checks += outcome.checks(name, cells=2 * (3 * DISK_SEEDS + 1))
        if "grid" in chosen:
            survived = grid.faults(Path(scratch), grid.grid_of(GRID_SEEDS), kills=GRID_KILLS, seed=options.seed)
            figures["grid"] = asdict(survived)
            checks += survived.checks(GRID_KILLS, cells=2 * (3 * GRID_SEEDS + 1))
    finish(" ".join(["python -m benchmarks.faults", *sys.argv[1:]]), figures, checks)


def killed_recipes(folder: Path) -> dict[str, Recipe]:
    """Every optimizer with every pipeline and every method."""
    shards = folder / "shards"
    shards.mkdir()
    interruptions.write_shards(shards)
    streamed = interruptions.pipeline_options("stream")
    pipelines = {
        "memory": interruptions.pipeline_options("memory"),
        "stream": streamed,
        "webdataset": replace(streamed, name=str(shards), limit=None),
    }
    network = Backbone(name="resnet10", width=4)
    found = {}
    for optimizer, pipeline, name in product(OPTIMIZERS, pipelines, METHODS):
        method, savings, devices = METHODS[name]
        recipe = interruptions.recipe(method, network, pipelines[pipeline], OPTIMIZERS[optimizer])
        engine = replace(recipe.engine, auxiliary_devices=devices)
        found[f"{name}, {pipeline}, {optimizer}"] = replace(recipe, savings=savings, engine=engine)
    return found


@dataclass(frozen=True)
class Outcome:
    """What came of a grid on a failing disk, beside the undisturbed one.

    Attributes:
        cells: that have a commit.
        committed_twice: tasks with more than one commit.
        other_records: cells whose record is missing or not the undisturbed one's.
        other_tables: files of tables that are not the undisturbed one's.
        faults: that there were.
        stops: of the command, before it ended well.
        unclear_stops: those with a traceback, or by a signal.
        seconds: in all.
    """

    cells: int
    committed_twice: int
    other_records: int
    other_tables: int
    faults: int
    stops: int
    unclear_stops: int
    seconds: float

    def checks(self, name: str, *, cells: int) -> list[Check]:
        """What must hold."""
        return [
            Check(f"{name}: cells with a commit", self.cells, at_least=cells),
            Check(f"{name}: faults", self.faults, at_least=1),
            Check(f"{name}: unclear stops", self.unclear_stops, at_most=0),
            Check(f"{name}: tasks committed more than once", self.committed_twice, at_most=0),
            Check(f"{name}: cells with another record than undisturbed", self.other_records, at_most=0),
            Check(f"{name}: tables with other bytes than undisturbed", self.other_tables, at_most=0),
        ]


def failing_disks(scratch: Path, *, seeds: int, seed: int) -> dict[str, Outcome]:
    """The same small grid with each kind of fault."""
    library = scratch / "faults.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)  # noqa: S607
    request = grid.grid_of(seeds)
    undisturbed = Store(scratch / "undisturbed-disk")
    undisturbed.add([request])
    run_sequentially(undisturbed, [request], page=False)
    kinds: dict[str, list[dict[str, str]]] = {
        f"one in {ONE_IN} reads and writes fails": [{"FAULT_EIO": str(ONE_IN)}] * MOST_ATTEMPTS,
        "the disk is full twice": [{"FAULT_SPACE": str(space)} for space in SPACE] + [{}] * MOST_ATTEMPTS,
        "clocks jump": [{"FAULT_CLOCK": "20"}] * MOST_ATTEMPTS,
    }
    found = {}
    for number, (name, faults) in enumerate(kinds.items()):
        store = Store(scratch / f"disturbed-{number}")
        found[name] = _repeated(store, undisturbed, library, faults, seeds=seeds, seed=seed, name=name)
    return found


def _repeated(
    store: Store,
    undisturbed: Store,
    library: Path,
    faults: list[dict[str, str]],
    *,
    seeds: int,
    seed: int,
    name: str,
) -> Outcome:
    """Give the command again until it ends well."""
    arguments = ["run", "cifar10", "--scale", "smoke", "--seeds", str(seeds), "--store", str(store.path), "--again"]
    command = [sys.executable, "-m", "counterpoise_study", *arguments, "--only", *grid.METHODS]
    log = store.path.with_suffix(".log")
    unclear, started = 0, time.monotonic()
    for attempt, fault in enumerate(faults):
        preload = {
            "LD_PRELOAD": str(library),
            "FAULT_FOLDER": str(store.path),
            "FAULT_SEED": str(1000 * seed + attempt),
            "FAULT_LOG": str(log),
        }
        ended = subprocess.run(
            command,
            env=os.environ | preload | fault,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        progress(f"{name}: attempt {attempt + 1} ended with {ended.returncode}: {ended.stderr.strip()[-150:]!r}")
        if ended.returncode == 0:
            break
        if "Traceback" in ended.stderr or ended.returncode < 0:
            unclear += 1
            progress(ended.stderr[-3000:])
    return Outcome(
        *grid.agreement(undisturbed, store),
        faults=log.stat().st_size if log.exists() else 0,
        stops=attempt,
        unclear_stops=unclear,
        seconds=time.monotonic() - started,
    )


if __name__ == "__main__":
    main()
