"""Predicting many shards in an object store with kills: `python -m benchmarks.scaleout_predict`.

CIFAR-10 images in shards on an S3 server (`rclone serve s3`) are predicted by two workers of a local Ray cluster.
SIGKILL ends a worker and then the program that gives out the work; the same command is given again. Every shard must be
written once, with the probabilities of a single process, and the scores without files must be those of the files.
Then four shards and all of them are predicted undisturbed: the memory of a worker must not grow with their number.

Linux alone: processes are looked up in /proc.
"""

import argparse
import io
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from benchmarks.object_store import object_store
from benchmarks.processes import descendants, survivors
from benchmarks.reporting import Check, finish, progress
from counterpoise._engines import Engine, Processes, Ray, in_order
from counterpoise._files import write_text
from counterpoise.data.images import Images
from counterpoise.data.sets import SETS
from counterpoise.export import export_safetensors
from counterpoise.models import Backbone, build_model
from counterpoise.predictions import read_predictions
from counterpoise.recipes.config import Recipe
from counterpoise.scoring import score_files
from counterpoise.training.folder import RunFolder
from counterpoise.training.networks import metadata_of
from counterpoise.training.predicting import predicted_shards, score_shards, write_shards

WORKERS = 2
BUCKET = "s3://bucket"
GROWTH = 1.05
"""Of a worker's peak with all shards, over that with four."""
FEW = 4
"""Shards that the memory of a worker is first measured with."""
_LOOK = 0.02


@dataclass(frozen=True)
class Size:
    """Of the measurement."""

    images: int
    shards: int
    engine: str
    width: int


SIZE = Size(20_000, 16, "ray", width=32)


@dataclass(frozen=True)
class Outcome:
    """What came of predicting with kills.

    Attributes:
        shards: that are whole.
        written_twice: of those that were whole at a kill, how many were written again afterwards.
        other_predictions: shards whose values, labels or ids are not bit for bit those of a single process.
        killed_workers: number of them.
        killed_drivers: number of programs that gave out the work and were killed.
        left_behind: workers of killed drivers that stayed.
        score_difference: largest between an estimate of `score_shards` and of `score_files`.
        seconds: of all of it.
    """

    shards: int
    written_twice: int
    other_predictions: int
    killed_workers: int
    killed_drivers: int
    left_behind: int
    score_difference: float
    seconds: float

    def checks(self, size: Size) -> list[Check]:
        """What must hold."""
        return [
            Check("shards that are whole", self.shards, at_least=size.shards, at_most=size.shards),
            Check("shards written again after a kill", self.written_twice, at_most=0),
            Check("shards with other predictions than of one process", self.other_predictions, at_most=0),
            Check("workers killed", self.killed_workers, at_least=1),
            Check("drivers killed", self.killed_drivers, at_least=1),
            Check("workers left behind", self.left_behind, at_most=0),
            Check("difference of scores without files", self.score_difference, at_most=1e-12),
        ]


def main() -> None:
    """Measure, print JSON, compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drive", nargs=4, metavar=("ENGINE", "RUN", "DATA", "OUT"), help="be what may be killed")
    parser.add_argument("--hold", action="store_true", help="wait before the manifest, for the kill that must come")
    options = parser.parse_args()
    if options.drive is not None:
        drive(*options.drive, hold=options.hold)
        return
    figures, checks = measured(SIZE)
    finish("python -m benchmarks.scaleout_predict", figures, checks)


def measured(size: Size) -> tuple[dict[str, Any], list[Check]]:
    """Figures and checks."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        run, bucket = untrained_run(root / "run", width=size.width), root / "store" / "bucket"
        cifar_shards(bucket / "images", size.images, size.shards)
        cifar_shards(bucket / "few", size.images * FEW // size.shards, FEW)
        with object_store(root / "store"):
            outcome = faults(run, size, behind=bucket)
            progress(f"faults: {outcome}")
            figures, checks = {"size": asdict(size), "faults": asdict(outcome)}, outcome.checks(size)
            peaks = [peak_memory(run, name, size.engine) for name in ("few", "images")]
            ratio = peaks[1] / peaks[0]
            figures["memory"] = {"shards": [FEW, size.shards], "peak_bytes_of_a_worker": peaks, "ratio": ratio}
            checks.append(Check(f"memory of a worker, {size.shards} shards over {FEW}", ratio, at_most=GROWTH))
    return figures, checks


def faults(run: Path, size: Size, *, behind: Path) -> Outcome:
    """Predict in one process, and with kills, and compare; the bucket is looked at in the folder behind it."""
    started = time.monotonic()
    data, alone, out = (f"{BUCKET}/{name}" for name in ("images", "alone", "disturbed"))
    write_shards(predicted_shards(run, data), alone)
    progress(f"alone: {time.monotonic() - started:.0f} s")
    killed = disturbed(run, data, out, behind / "disturbed", engine=size.engine, shards=size.shards)
    expected, found = whole(behind / "alone"), whole(behind / "disturbed")
    twice = sum(found.get(name) != identity for name, identity in killed.whole.items())
    without_files = score_shards(predicted_shards(run, data))
    return Outcome(
        shards=len(found),
        written_twice=twice,
        other_predictions=sum(not _same(behind / "alone" / name, behind / "disturbed" / name) for name in expected),
        killed_workers=killed.workers,
        killed_drivers=killed.drivers,
        left_behind=len(survivors(killed.orphans)),
        score_difference=largest_difference(score_files([out]).to_json(), without_files.to_json()),
        seconds=time.monotonic() - started,
    )


@dataclass
class Killed:
    """Processes that were, and what was whole when they were."""

    workers: int
    drivers: int
    orphans: set[int]
    whole: dict[str, tuple[int, int]]


def disturbed(run: Path, data: str, out: str, behind: Path, *, engine: str, shards: int) -> Killed:
    """Predict, kill a worker after the first shard and the driver after the second or later one, and go on."""
    killed = Killed(0, 0, set(), {})
    driver = _start(engine, run, data, out, "--hold")
    try:
        _wait(driver, behind, 1)
        if workers := _workers(driver):
            killed.whole |= whole(behind)
            os.kill(workers[0], signal.SIGKILL)
            killed.workers += 1
            progress(f"{len(killed.whole)} shards whole, a worker killed")
        _wait(driver, behind, min(len(killed.whole) + 1, shards))
        if driver.poll() is None:
            killed.orphans |= descendants(driver.pid)
            driver.kill()
            driver.wait()
            killed.whole |= whole(behind)
            killed.drivers += 1
            progress(f"{len(killed.whole)} shards whole, the driver killed")
            driver = _start(engine, run, data, out)
        if driver.wait() != 0:
            raise RuntimeError(f"the last driver ended with exit code {driver.returncode}")
    finally:
        driver.kill()
    return killed


def drive(engine: str, run: str, data: str, out: str, *, hold: bool) -> None:
    """Predict with two workers, or go on with it."""

    def held(_: str, rows: int, total: int | None) -> None:
        if hold and rows == total:
            time.sleep(3600)

    running = engine_of(engine)
    try:
        write_shards(predicted_shards(run, data), out, engine=running, progress=held)
    finally:
        running.close()


def engine_of(name: str) -> Engine:
    """Two workers."""
    return Ray("local", cpus=(os.cpu_count() or WORKERS) / WORKERS) if name == "ray" else Processes(WORKERS)


def peak_memory(run: Path, name: str, engine: str) -> int:
    """Bytes of the largest worker that has predicted all shards of a folder of the bucket."""
    running = engine_of(engine)
    try:
        write_shards(predicted_shards(run, f"{BUCKET}/{name}"), f"{BUCKET}/again-{name}", engine=running)
        peaks: list[int] = [peak for _, peak in in_order(running, _peak, [()] * (4 * WORKERS))]
        return max(peaks)
    finally:
        running.close()


def _peak() -> tuple[None, int]:
    """What the largest of this process was, a moment later, so that each worker is asked."""
    time.sleep(0.2)
    lines = Path("/proc/self/status").read_text().splitlines()
    return None, 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def untrained_run(folder: Path, *, width: int = 8) -> Path:
    """The folder of a run of CIFAR-10 whose weights are random."""
    info, run = SETS["cifar10"], RunFolder(folder)
    recipe = Recipe(method="ce", primary=Backbone(name="cnn", width=width))
    images = Images.of(
        np.zeros((1, 32, 32, 3), np.uint8), [0], classes=info.classes, mean=info.mean, std=info.std, name=info.name
    )
    folder.mkdir(parents=True)
    write_text(run.config, recipe.to_json())
    model = build_model(recipe.primary, classes=len(info.classes), channels=3, seed=1)
    export_safetensors(model, run.primary, metadata=metadata_of(recipe, images, own=None))
    return folder


def cifar_shards(folder: Path, images: int, shards: int) -> Path:
    """The first training images of CIFAR-10, as PNG, which loads no torchvision, in files of as many each."""
    folder.mkdir(parents=True)
    stored = pq.ParquetFile(Path(os.environ["COUNTERPOISE_DATA"]) / "cifar10" / "train.parquet")
    rows, each = next(stored.iter_batches(images)), images // shards
    for place in range(shards):
        own = rows.slice(place * each, each)
        pictures = [{"bytes": _as_png(image["bytes"]), "path": None} for image in own["img"].to_pylist()]
        table = pa.table({"img": pa.array(pictures, own.schema.field("img").type), "label": own["label"]})
        path = folder / f"part-{place:05}.parquet"
        pq.write_table(table.replace_schema_metadata(own.schema.metadata), path, row_group_size=500)
    return folder


def _as_png(data: bytes) -> bytes:
    target = io.BytesIO()
    with Image.open(io.BytesIO(data)) as picture:
        picture.save(target, "png")
    return target.getvalue()


def whole(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each shard of predictions that has its digest beside it."""
    found = (path.with_suffix("") for path in folder.glob("*.sha256"))
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def largest_difference(one: str, other: str) -> float:
    """Between the numbers of two documents of scores, of what was measured; NaN equals NaN."""
    documents = (json.loads(each)["models"] for each in (one, other))
    ours, theirs = (dict(_numbers({**model[0], "source": {}}, "")) for model in documents)
    if ours.keys() != theirs.keys():
        return math.inf
    return max(abs(ours[key] - theirs[key]) for key in ours)


def _numbers(value: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(item, f"{place}/{key}")
    elif isinstance(value, int | float):
        yield place, float(value)


def _same(one: Path, other: Path) -> bool:
    ours, theirs = read_predictions(one), read_predictions(other)
    return all(np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in ("values", "labels", "ids"))


def _workers(driver: subprocess.Popen[bytes]) -> list[int]:
    """Processes of a driver that compute, of a pool or of Ray; those of Ray that are at work first."""
    commands = {}
    for process in descendants(driver.pid):
        with suppress(OSError):
            commands[process] = Path(f"/proc/{process}/cmdline").read_bytes()
    found = [process for process, command in commands.items() if b"spawn_main" in command or command[:5] == b"ray::"]
    return sorted(found, key=lambda process: commands[process].startswith(b"ray::IDLE"))


def _wait(driver: subprocess.Popen[bytes], folder: Path, shards: int) -> None:
    while driver.poll() is None and len(whole(folder)) < shards:
        time.sleep(_LOOK)


def _start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.scaleout_predict", "--drive", *map(str, arguments)]
    return subprocess.Popen(command, stdout=sys.stderr)


if __name__ == "__main__":
    main()
