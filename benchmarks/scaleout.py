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
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.object_store import ObjectStore, object_store
from benchmarks.reporting import Check, finish, progress
from counterpoise.predictions import Predictions, PredictionWriter, write_manifest

SHARDS, KILLS = 64, 5
MOST_CPU, MOST_BYTES, WORKER_MEGABYTES, DRIVER_MEGABYTES = 1.15, 1.05, 1300, 1000
STATES, STATE_CLASSES, MERGE_SECONDS, MERGE_MEGABYTES = 1000, 1000, 60, 1000

_PAUSE, _CHANCE = 0.05, 0.05
"""Seconds between two looks at a run, and the chance that one kills a worker."""
_TICKS = os.sysconf("SC_CLK_TCK")
_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
_EVALUATE = (sys.executable, "-m", "counterpoise.cli", "evaluate", "--json")


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


@dataclass
class Run:
    """What a command printed, and what it took."""

    printed: bytes = b""
    seconds: float = 0.0
    processor: dict[str, float] = field(default_factory=dict)
    megabytes: dict[str, float] = field(default_factory=dict)
    sent: int = 0
    killed: int = 0

    def figures(self, size: int) -> dict[str, Any]:
        """For the JSON."""
        return {
            "seconds": round(self.seconds, 1),
            "processor seconds": {name: round(value, 1) for name, value in self.processor.items()},
            "megabytes": {name: round(value) for name, value in self.megabytes.items()},
            "bytes sent over size": round(self.sent / size, 4),
            "killed": self.killed,
        }


def _write(folder: Path, rows: int, classes: int, shards: int, *, seed: int) -> int:
    folder.mkdir()
    each = rows // shards
    for shard in range(shards):
        rng = np.random.default_rng([seed, shard])
        with PredictionWriter(folder / f"part-{shard:05}.parquet") as writer:
            for start in range(0, each, 50_000):
                count = min(50_000, each - start)
                logits = (2 * rng.standard_normal((count, classes))).astype(np.float32)
                labels = (logits + 2 * rng.standard_normal((count, classes))).argmax(1)
                ids = np.arange(count) + shard * each + start
                writer.append(Predictions.of(logits=logits, labels=labels, ids=ids))
    write_manifest(folder)
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))


def _scored(store: ObjectStore, name: str, size: int, *, kills: int, short: bool) -> dict[str, Any]:
    """One set in one process and on clusters, here and in the store."""
    local, remote = str(store.root / "bucket" / name), f"s3://bucket/{name}"
    runs: dict[str, Run] = {}
    progress(f"{name}: one process")
    runs["one process"] = _run([*_EVALUATE, local], store)
    runs["one process, S3"] = _run([*_EVALUATE, remote], store)
    for workers in (2,) if short else (1, 2):
        progress(f"{name}: Ray, {workers} workers")
        with _cluster(workers, store) as (address, head):
            if not short:
                runs[f"Ray, {workers}"] = _run([*_EVALUATE, local, "--ray", address], store, head=head)
            runs[f"Ray, {workers}, S3"] = _run([*_EVALUATE, remote, "--ray", address], store, head=head)
            if workers == 2:
                progress(f"{name}: {kills} killed workers")
                command = [*_EVALUATE, remote, "--ray", "auto" if not short else address]
                runs["Ray, 2, S3, killed"] = _run(command, store, head=head, address=address, kills=kills)
    same = {which: _estimates(run.printed) == _estimates(runs["one process"].printed) for which, run in runs.items()}
    whole = {
        which: run.printed == runs["one process, S3" if "S3" in which else "one process"].printed
        for which, run in runs.items()
    }
    return {
        "bytes": size,
        "runs": {which: run.figures(size) for which, run in runs.items()},
        "the same bytes": whole,
        "the same scores as from local files": same,
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
    alone = {False: runs["one process"], True: runs["one process, S3"]}
    for which, run in runs.items():
        if "S3" in which and "killed" not in which:
            yield Check(f"{name}, {which}: bytes sent over size", run["bytes sent over size"], at_most=MOST_BYTES)
        yield Check(f"{name}, {which}: megabytes of the driver", run["megabytes"]["driver"], at_most=DRIVER_MEGABYTES)
        if "Ray" not in which:
            continue
        yield Check(f"{name}, {which}: megabytes of a worker", run["megabytes"]["worker"], at_most=WORKER_MEGABYTES)
        if "killed" not in which:
            one = alone["S3" in which]["processor seconds"]["driver"]
            used = run["processor seconds"]
            ratio = (used["driver"] + used["workers"]) / one
            yield Check(f"{name}, {which}: processor time over one process", round(ratio, 3), at_most=MOST_CPU)


def _estimates(printed: bytes) -> Any:
    document = json.loads(printed)
    for model in document["models"]:
        model["source"] = None
    return document


@contextmanager
def _cluster(workers: int, store: ObjectStore) -> Iterator[tuple[str, int]]:
    """A Ray cluster of so many cores, in a session of its own; its address and its first process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    head = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}",
            f"--num-cpus={workers}", "--include-dashboard=false", "--disable-usage-stats",
            "--object-store-memory=400000000", "--node-ip-address=127.0.0.1",
        ],
        env=os.environ | store.environment | _RAY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        time.sleep(3)
        yield f"127.0.0.1:{port}", head.pid
    finally:
        ours = [head.pid, *_descendants(head.pid)]
        for pid in ours:
            _kill(pid, signal.SIGTERM)
        time.sleep(2)
        for pid in ours:
            _kill(pid, signal.SIGKILL)
        head.wait()


def _run(
    command: Sequence[str],
    store: ObjectStore,
    *,
    head: int | None = None,
    address: str | None = None,
    kills: int = 0,
) -> Run:
    """A command, watched: processor time and peak memory of it and of the workers of a cluster."""
    found, sent, started = Run(), store.bytes_sent(), time.monotonic()
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | _RAY
    environment |= {} if address is None else {"RAY_ADDRESS": address}
    before = _workers(head)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        watch = _Watch(process.pid, head, before, kills)
        while process.poll() is None:
            watch.look()
            time.sleep(_PAUSE)
        watch.look()
        output.seek(0)
        errors.seek(0)
        found.printed = output.read()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {errors.read().decode()[-2000:]}")
    found.seconds = time.monotonic() - started
    found.processor, found.megabytes, found.killed = watch.processor(), watch.megabytes(), watch.killed
    found.sent = store.bytes_sent() - sent
    return found


class _Watch:
    """The processes of a run, looked at now and then: the kernel keeps what they used."""

    def __init__(self, driver: int, head: int | None, before: dict[int, float], kills: int) -> None:
        self._driver, self._head, self._before = driver, head, before
        self._seconds: dict[int, float] = {}
        self._peak: dict[int, float] = {}
        self._is_worker: dict[int, bool] = {}
        self.kills, self._to_kill, self.killed = kills, kills, 0
        self._random = random.Random(0)  # noqa: S311

    def look(self) -> None:
        for pid in (
            self._driver,
            *_descendants(self._driver),
            *([] if self._head is None else _descendants(self._head)),
        ):
            seconds, peak = _used(pid)
            if seconds:
                self._seconds[pid], self._peak[pid] = seconds, max(peak, self._peak.get(pid, 0))
                self._is_worker[pid] = self._is_worker.get(pid, False) or _title(pid).startswith("ray::")
        busy = [pid for pid in self._is_worker if _title(pid).startswith("ray::score_remotely")]
        # One at the first chance; several are spread over the run.
        if self._to_kill and busy and (self.kills == 1 or self._random.random() < _CHANCE):
            _kill(self._random.choice(busy), signal.SIGKILL)
            self._to_kill -= 1
            self.killed += 1

    def processor(self) -> dict[str, float]:
        used = {pid: seconds - self._before.get(pid, 0.0) for pid, seconds in self._seconds.items()}
        workers = sum(used[pid] for pid, is_worker in self._is_worker.items() if is_worker)
        driver = used.get(self._driver, 0.0)
        return {"driver": driver, "workers": workers, "Ray's services": sum(used.values()) - workers - driver}

    def megabytes(self) -> dict[str, float]:
        workers = [self._peak[pid] for pid, is_worker in self._is_worker.items() if is_worker]
        return {"driver": self._peak.get(self._driver, 0.0), "worker": max(workers, default=0.0)}


def _workers(head: int | None) -> dict[int, float]:
    return {} if head is None else {pid: _used(pid)[0] for pid in _descendants(head)}


def _descendants(pid: int) -> list[int]:
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [*found, *(each for child in found for each in _descendants(child))]


def _used(pid: int) -> tuple[float, float]:
    """Seconds of processor time, and most megabytes that were resident."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    peak = next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)
    return (int(fields[11]) + int(fields[12])) / _TICKS, peak


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _compared(root: Path, shards: int, *, rows: int) -> dict[str, Any]:
    """Two models in shards on Ray, and as single files in one process."""
    for seed, name in enumerate(("first", "second"), start=1):
        folder = root / "bucket" / name
        _write(folder, rows, 10, shards, seed=seed)
        with PredictionWriter(root / f"{name}.parquet") as writer:
            for path in sorted(folder.glob("*.parquet")):
                from counterpoise.predictions import read_predictions

                writer.append(read_predictions(path))
    single = json.loads(subprocess.check_output([*_EVALUATE, root / "first.parquet", root / "second.parquet"]))
    sharded = json.loads(
        subprocess.check_output([*_EVALUATE, "s3://bucket/first", "s3://bucket/second", "--ray", "local"])
    )
    one, many = ({**_numbers(each["comparison"]), **_numbers(each["models"])} for each in (single, sharded))
    if one.keys() != many.keys():
        raise RuntimeError(f"other values: {sorted(one.keys() ^ many.keys())[:5]}")
    return {"rows": rows, "values": len(one), "difference": max(abs(one[key] - many[key]) for key in one)}


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
