"""Thousands of files in one process: memory and open files stay as they are."""

import multiprocessing as mp
import resource
import shutil
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.reporting import Check, progress
from counterpoise.predictions import Predictions, write_predictions

MOST_GROWTH = 0.02
"""Share by which memory may grow after the warm-up."""

_DISTINCT, _ROWS = 20, 50
_SAMPLES = 20


def soak(*, files: int) -> tuple[dict[str, Any], list[Check]]:
    """Evaluate so many files, one after the other, as `counterpoise evaluate` does."""
    answers, asked = mp.get_context("fork").Pipe(duplex=False)
    child = mp.get_context("fork").Process(target=_child, args=(files, asked))
    child.start()
    asked.close()
    sampled: list[tuple[int, float, int]] = answers.recv()
    child.join()
    # By the end of the first quarter, allocators and caches have taken what they keep.
    warm = [each for each in sampled if files // 8 <= each[0] <= files // 4]
    later = [each for each in sampled if each[0] > 3 * files // 4]
    before, after = (median(megabytes for _, megabytes, _ in part) for part in (warm, later))
    open_before, open_after = (max(count for _, _, count in part) for part in (warm, later))
    figures = {
        "files": files,
        "megabytes after the warm-up": round(before, 1),
        "megabytes at the end": round(after, 1),
        "open files after the warm-up": open_before,
        "open files at the end": open_after,
    }
    progress(f"soak: {figures}")
    return figures, [
        Check("growth of memory over the soak", after / before - 1, at_most=MOST_GROWTH),
        Check("growth of open files over the soak", open_after / open_before - 1, at_most=MOST_GROWTH),
    ]


def _child(files: int, asked: Connection) -> None:
    from counterpoise.scoring import score_files

    sampled = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(_DISTINCT):
            generator = np.random.default_rng(number)
            logits = generator.standard_normal((_ROWS, 10)).astype(np.float32)
            table = Predictions.of(logits=logits, labels=generator.integers(0, 10, _ROWS))
            write_predictions(folder / f"{number}.parquet", table)
        for number in range(files):
            path = folder / f"{number}-of-many.parquet"
            template = folder / f"{number % _DISTINCT}.parquet"
            shutil.copy(template, path)
            shutil.copy(f"{template}.sha256", f"{path}.sha256")
            score_files([path], threads=1).to_json()
            path.unlink()
            Path(f"{path}.sha256").unlink()
            if number % max(1, files // (4 * _SAMPLES)) == 0:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                megabytes = pages * resource.getpagesize() / 1e6
                sampled.append((number, megabytes, sum(1 for _ in Path("/proc/self/fd").iterdir())))
            if number % 500 == 499:
                progress(f"{number + 1} of {files} files: {sampled[-1][1]:.0f} MB")
    asked.send(sampled)
