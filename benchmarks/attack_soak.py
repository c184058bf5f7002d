"""One process for a long time, of files that are evaluated or of a monitor: memory and open files stay as they are."""

import multiprocessing as mp
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.reporting import Check, progress
from counterpoise.predictions import Predictions, write_predictions

MOST_GROWTH = 0.02
"""Share by which memory may grow after the warm-up."""
HOURS_A_DAY = 24

_DISTINCT, _ROWS, _CLASSES = 20, 50, 10
_SAMPLES = 20

Steps = Callable[[Path, int], Iterator[None]]
"""Does so many steps in a folder, and yields after each."""


def soak(*, files: int, hours: int) -> tuple[dict[str, Any], list[Check]]:
    """Evaluate so many files, one after the other, and feed a monitor with so many hours of a stream."""
    figures: dict[str, Any] = {}
    checks: list[Check] = []
    for name, work, steps in (("files", evaluated, files), ("hours of a monitor", monitored, hours)):
        found = _soaked(work, steps)
        figures[name] = found
        progress(f"soak, {steps:,} {name}: {found}")
        growth = found["megabytes at the end"] / found["megabytes after the warm-up"] - 1
        opened = found["open files at the end"] / found["open files after the warm-up"] - 1
        checks += [
            Check(f"growth of memory over the soak, {name}", growth, at_most=MOST_GROWTH),
            Check(f"growth of open files over the soak, {name}", opened, at_most=MOST_GROWTH),
        ]
    return figures, checks


def evaluated(folder: Path, files: int) -> Iterator[None]:
    """Each file by itself, as `counterpoise evaluate` does."""
    from counterpoise.scoring import score_files

    for number in range(_DISTINCT):
        logits, labels = _drawn(number, _ROWS)
        write_predictions(folder / f"{number}.parquet", Predictions.of(logits=logits, labels=labels))
    for number in range(files):
        path = folder / f"{number}-of-many.parquet"
        template = folder / f"{number % _DISTINCT}.parquet"
        shutil.copy(template, path)
        shutil.copy(f"{template}.sha256", f"{path}.sha256")
        score_files([path], threads=1).to_json()
        path.unlink()
        Path(f"{path}.sha256").unlink()
        yield


def monitored(folder: Path, hours: int) -> Iterator[None]:
    """A file of predictions for each hour, labels a day late, and a look at the week's lines every day."""
    from counterpoise.monitoring import begin, show, update

    logits, labels = _drawn(0, 2_000)
    write_predictions(folder / "reference.parquet", Predictions.of(logits=logits, labels=labels))
    start, monitor, path = datetime(2026, 1, 1, tzinfo=UTC), folder / "monitor", folder / "hour.parquet"
    begin(monitor, folder / "reference.parquet", every="hour", start=start.isoformat())
    for hour in range(hours):
        for late in (0, HOURS_A_DAY):
            if hour >= late:
                pq.write_table(_hour(start, hour - late, labelled=late > 0), path)
                update(monitor, path)
        if hour % HOURS_A_DAY == HOURS_A_DAY - 1:
            show(monitor, every="week")
        yield


def _hour(start: datetime, hour: int, *, labelled: bool) -> pa.Table:
    logits, labels = _drawn(1 + hour, _ROWS)
    minutes = (timedelta(hours=hour, minutes=60 * row / _ROWS) for row in range(_ROWS))
    columns: dict[str, Any] = {
        "id": [f"{hour}-{row}" for row in range(_ROWS)],
        "time": [(start + each).isoformat() for each in minutes],
        "logits": logits.tolist(),
    }
    return pa.table(columns | ({"label": labels} if labelled else {}))


def _drawn(seed: int, rows: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    logits = generator.standard_normal((rows, _CLASSES)).astype(np.float32)
    return logits, generator.integers(0, _CLASSES, rows)


def _soaked(work: Steps, steps: int) -> dict[str, Any]:
    answers, asked = mp.get_context("fork").Pipe(duplex=False)
    child = mp.get_context("fork").Process(target=_child, args=(work, steps, asked))
    child.start()
    asked.close()
    sampled: list[tuple[int, float, int]] = answers.recv()
    child.join()
    # By the end of the first quarter, allocators and caches have taken what they keep.
    warm = [each for each in sampled if steps // 8 <= each[0] <= steps // 4]
    later = [each for each in sampled if each[0] > 3 * steps // 4]
    before, after = (median(megabytes for _, megabytes, _ in part) for part in (warm, later))
    open_before, open_after = (max(count for _, _, count in part) for part in (warm, later))
    return {
        "steps": steps,
        "megabytes after the warm-up": round(before, 1),
        "megabytes at the end": round(after, 1),
        "open files after the warm-up": open_before,
        "open files at the end": open_after,
    }


def _child(work: Steps, steps: int, asked: Connection) -> None:
    sampled = []
    with tempfile.TemporaryDirectory() as folder:
        for number, _ in enumerate(work(Path(folder), steps)):
            if number % max(1, steps // (4 * _SAMPLES)) == 0:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                megabytes = pages * resource.getpagesize() / 1e6
                sampled.append((number, megabytes, sum(1 for _ in Path("/proc/self/fd").iterdir())))
            if number % 500 == 499:
                progress(f"{number + 1} of {steps}: {sampled[-1][1]:.0f} MB")
    asked.send(sampled)
