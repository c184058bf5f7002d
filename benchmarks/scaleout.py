"""Many shards, by many workers: `python -m benchmarks.scaleout [--short] [--folder FOLDER]`.

- 64 shards of 16,000,000 rows x 10 classes and of 200,000 x 1,000, here and in an S3 store on this machine:
  `counterpoise evaluate --json` in one process, on a Ray cluster of one worker and of two, and with workers that are
  killed in the middle of a shard. The same bytes; peak memory of workers and driver; processor time and bytes that the
  store sent, over those of one process and the size of the files.
- Two models of 64 shards each, compared on Ray and as two single files.
- 1,000 score states of 1,000 classes, merged.

Processor time is that of the driver and of all workers, from their start; Ray's own services are listed beside it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.object_store import ObjectStore, object_store
from benchmarks.reporting import Check, finish, progress
from benchmarks.watching import Run, ray_cluster, watched
from counterpoise.predictions import Predictions, PredictionWriter, read_predictions, write_manifest

SHARDS, KILLS = 64, 5
MOST_CPU, MOST_BYTES, WORKER_MEGABYTES, DRIVER_MEGABYTES = 1.15, 1.05, 1300, 1000
STATES, STATE_CLASSES, MERGE_SECONDS, MERGE_MEGABYTES = 1000, 1000, 60, 1000

_SOME_SHARDS = (10, 30)
_EVALUATE = (sys.executable, "-m", "counterpoise", "evaluate", "--json")


def main() -> None:
    """Make the files, measure, and check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="8 small shards and one killed worker, for CI")
    parser.add_argument("--folder", type=Path, help="make the files here")
    options = parser.parse_args()
    shards, kills = (8, 1) if options.short else (SHARDS, KILLS)
    sizes = {"long": (80_000, 10)} if options.short else {"long": (16_000_000, 10), "wide": (200_000, 1_000)}
    figures: dict[str, Any] = {}
    checks: list[Check] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        root = Path(folder)
        (root / "bucket").mkdir()
        with object_store(root) as store:
            for name, (rows, classes) in sizes.items():
                progress(f"writing {shards} shards of {rows:,} x {classes:,}")
                size = _write(root / "bucket" / name, rows, classes, shards, seed=0)
                figures[name] = _scored(store, name, size, kills=kills, short=options.short)
                checks += _checks(name, figures[name], short=options.short)
            progress("comparing two models")
            figures["compared"] = compared = _compared(root, shards, rows=20_000 if options.short else 2_000_000)
            checks.append(Check("largest difference of a compared value", compared["difference"], at_most=1e-12))
        progress("merging states")
        figures["merged"] = _merged(root, 50 if options.short else STATES, 100 if options.short else STATE_CLASSES)
    if not options.short:
        checks.append(Check("seconds of merging", figures["merged"]["seconds"], at_most=MERGE_SECONDS))
        checks.append(Check("megabytes of merging", figures["merged"]["megabytes"], at_most=MERGE_MEGABYTES))
    finish("python -m benchmarks.scaleout" + (" --short" if options.short else ""), figures, checks)


def _write(folder: Path, rows: int, classes: int, shards: int, *, seed: int) -> int:
    folder.mkdir()
    each = rows // shards
    for shard in range(shards):
        rng, truth = np.random.default_rng([seed, shard]), np.random.default_rng(shard)
        with PredictionWriter(folder / f"part-{shard:05}.parquet") as writer:
            for start in range(0, each, 50_000):
                count = min(50_000, each - start)
                # Every model is asked about the same samples.
                clear = 2 * truth.standard_normal((count, classes))
                labels = (clear + 2 * truth.standard_normal((count, classes))).argmax(1)
                logits = (clear + rng.standard_normal((count, classes))).astype(np.float32)
                ids = np.arange(count) + shard * each + start
                writer.append(Predictions.of(logits=logits, labels=labels, ids=ids))
    write_manifest(folder)
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))


def _scored(store: ObjectStore, name: str, size: int, *, kills: int, short: bool) -> dict[str, Any]:
    """One set in one process and on clusters, here and in the store."""
    local, remote = str(store.root / "bucket" / name), f"s3://bucket/{name}"
    runs: dict[str, Run] = {}
    progress(f"{name}: one process")
    runs["one process"] = watched([*_EVALUATE, local], store)
    runs["one process, S3"] = watched([*_EVALUATE, remote], store)
    few = (
        {}
        if short
        else {
            shards: watched([*_EVALUATE, f"{local}/part-000[0-{shards // 10 - 1}]?.parquet"], store)
            for shards in _SOME_SHARDS
        }
    )
    for workers in (2,) if short else (1, 2):
        progress(f"{name}: Ray, {workers} workers")
        with ray_cluster(workers, store) as (address, head):
            if not short:
                runs[f"Ray, {workers}"] = watched([*_EVALUATE, local, "--ray", address], store, head=head)
            runs[f"Ray, {workers}, S3"] = watched([*_EVALUATE, remote, "--ray", address], store, head=head)
            if workers == 2:
                progress(f"{name}: {kills} killed workers")
                command = [*_EVALUATE, remote, "--ray", "auto" if not short else address]
                runs["Ray, 2, S3, killed"] = watched(command, store, head=head, address=address, kills=kills)
    same = {which: _estimates(run.printed) == _estimates(runs["one process"].printed) for which, run in runs.items()}
    whole = {
        which: run.printed == runs["one process, S3" if "S3" in which else "one process"].printed
        for which, run in runs.items()
    }
    return {
        "bytes": size,
        "predicted": None if short else _predicted(few, runs["one process"]),
        "runs": {which: run.figures(size) for which, run in runs.items()},
        "the same bytes": whole,
        "the same scores as from local files": same,
    }


def _predicted(few: dict[int, Run], whole: Run) -> dict[str, float]:
    """Processor time of all shards, from that of some: a start, and a slope."""
    (less, first), (more, second) = ((shards, run.processor["driver"]) for shards, run in few.items())
    slope = (second - first) / (more - less)
    predicted = first + slope * (SHARDS - less)
    measured = whole.processor["driver"]
    return {
        "seconds of a shard": round(slope, 3),
        "seconds of the start": round(first - slope * less, 2),
        "predicted": round(predicted, 1),
        "measured": round(measured, 1),
        "ratio": round(predicted / measured, 3),
    }


def _checks(name: str, figures: dict[str, Any], *, short: bool) -> Iterator[Check]:
    for which, same in figures["the same bytes"].items():
        yield Check(f"{name}, {which}: the same bytes", float(same), at_least=1)
    for which, same in figures["the same scores as from local files"].items():
        yield Check(f"{name}, {which}: the same scores", float(same), at_least=1)
    runs = figures["runs"]
    yield Check(f"{name}: killed workers", runs["Ray, 2, S3, killed"]["killed"], at_least=1 if short else KILLS)
    if short:
        return
    yield Check(f"{name}: predicted over measured", figures["predicted"]["ratio"], at_least=0.8, at_most=1.25)
    alone = {False: runs["one process"], True: runs["one process, S3"]}
    for which, run in runs.items():
        if "S3" in which and "killed" not in which:
            yield Check(f"{name}, {which}: bytes sent over size", run["bytes sent over size"], at_most=MOST_BYTES)
        if "Ray" not in which:
            continue
        yield Check(f"{name}, {which}: megabytes of the driver", run["megabytes"]["driver"], at_most=DRIVER_MEGABYTES)
        yield Check(f"{name}, {which}: megabytes of a worker", run["megabytes"]["worker"], at_most=WORKER_MEGABYTES)
        if "killed" not in which:
            one = alone["S3" in which]["processor seconds"]["driver"]
            used = run["processor seconds"]
            ratio = (used["driver"] + used["workers"]) / one
            yield Check(f"{name}, {which}: processor time over one process", round(ratio, 3), at_most=MOST_CPU)


def _estimates(printed: bytes) -> Any:
    """All but where the predictions are, and the digest, which is of that too."""
    document = json.loads(printed)
    del document["sha256"]
    for model in document["models"]:
        model["source"] = None
    return document


def _compared(root: Path, shards: int, *, rows: int) -> dict[str, Any]:
    """Two models in shards on Ray, and as single files in one process."""
    for seed, name in enumerate(("first", "second"), start=1):
        folder = root / "bucket" / name
        _write(folder, rows, 10, shards, seed=seed)
        with PredictionWriter(root / f"{name}.parquet") as writer:
            for path in sorted(folder.glob("*.parquet")):
                writer.append(read_predictions(path))
    single = json.loads(subprocess.check_output([*_EVALUATE, root / "first.parquet", root / "second.parquet"]))
    sharded = json.loads(
        subprocess.check_output([*_EVALUATE, "s3://bucket/first", "s3://bucket/second", "--ray", "local"])
    )
    if single["comparison"] is None:
        raise RuntimeError("the models were not compared")
    one, many = ({**_numbers(each["comparison"]), **_numbers(each["models"])} for each in (single, sharded))
    if one.keys() != many.keys():
        raise RuntimeError(f"other values: {sorted(one.keys() ^ many.keys())[:5]}")
    return {
        "rows": rows,
        "values": len(one),
        "difference": max(abs(one[key] - many[key]) / max(1.0, abs(one[key])) for key in one),
    }


def _numbers(value: Any, key: str = "") -> dict[str, float]:
    """Every number of a document, by its place."""
    if isinstance(value, dict | list):
        found: dict[str, float] = {}
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found |= _numbers(inner, f"{key}/{name}")
        return found
    return {key: float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else {}


_MERGE = """
import json, resource, sys, time
from pathlib import Path
from counterpoise._engines import Here, Tree
from counterpoise.metrics.state import ScoreState
from counterpoise.scoring.units import merge_states
import torch
torch.set_num_threads(1)
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
started = time.process_time()
tree = Tree(Here(), merge_states)
for place in range({states}):
    tree.add({{0: ScoreState.load({folder!r} + f"/{{place % 8}}.safetensors")}})
samples = tree.root()[0].samples
print(json.dumps({{"seconds": time.process_time() - started, "samples": samples, "megabytes of imports": base,
    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}}))
"""


def _merged(root: Path, states: int, classes: int) -> dict[str, Any]:
    """States of shards, merged by one process; eight different ones, read again and again."""
    from counterpoise.metrics.options import ScoreOptions
    from counterpoise.metrics.state import ScoreState
    from counterpoise.scoring.files import EXACT_SAMPLES

    rows = 10_000
    for place in range(8):
        rng = np.random.default_rng(place)
        state = ScoreState(classes=classes, options=ScoreOptions(exact_samples=EXACT_SAMPLES))
        logits = rng.standard_normal((rows, classes)).astype(np.float32)
        state.update(logits=logits, labels=rng.integers(classes, size=rows), ids=np.arange(rows) + place * rows)
        state.save(root / f"{place}.safetensors")
    size = (root / "0.safetensors").stat().st_size
    printed = subprocess.check_output([sys.executable, "-c", _MERGE.format(states=states, folder=str(root))])
    measured: dict[str, Any] = json.loads(printed)
    return {"states": states, "classes": classes, "bytes of a state": size} | measured


if __name__ == "__main__":
    main()
