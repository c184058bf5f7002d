"""Scoring large files: `python -m benchmarks.evaluate [--short] [--folder FOLDER]`.

- 10,000,000 rows x 10 classes of Parquet: peak memory, and time over that of a bare scan with pyarrow that computes
  only the softmax of the same file; both in new processes, in turn, best of several. What is timed is
  `counterpoise evaluate` without its imports.
- 50,000 rows x 1,000 classes: peak memory.

Files are made anew in a temporary folder, or kept in the folder that is given.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import Check, finish, progress
from counterpoise.predictions import Predictions, PredictionWriter

LONG_ROWS, LONG_CLASSES, LONG_MEGABYTES = 10_000_000, 10, 1500
WIDE_ROWS, WIDE_CLASSES, WIDE_MEGABYTES = 50_000, 1_000, 1200
MOST_SCANS = 3.0
REPETITIONS = 3

_SCAN = """
import pyarrow.parquet as pq, torch
for batch in pq.ParquetFile(path).iter_batches(1 << 17, columns=["logits"]):
    values = batch.column(0).flatten().to_numpy()
    torch.softmax(torch.from_numpy(values.copy().reshape(batch.num_rows, -1)), -1)
"""
_SCORE = """
import contextlib, io
from counterpoise.cli.evaluate import Evaluate
with contextlib.redirect_stdout(io.StringIO()):
    Evaluate(predictions=(path,)).run()
"""
_MEASURE = """
import json, resource, sys, time
import numpy, pyarrow, pyarrow.parquet, torch, counterpoise.cli, counterpoise.scoring, counterpoise.report.terminal
pyarrow.array([1.0]).to_numpy()  # the first call imports pandas, where it is installed
path = {path!r}
started = time.perf_counter()
{body}
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({{"seconds": seconds, "megabytes": peak}}))
"""


def main() -> None:
    """Make the files, measure, and check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a tenth of the rows of the long file, once, for CI")
    parser.add_argument("--folder", type=Path, help="keep the files here")
    options = parser.parse_args()
    # Times are not compared in the short run.
    rows, repetitions = (LONG_ROWS // 10, 1) if options.short else (LONG_ROWS, REPETITIONS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        long = made(folder / f"long-{rows}.parquet", rows=rows, classes=LONG_CLASSES)
        wide = made(folder / f"wide-{WIDE_ROWS}.parquet", rows=WIDE_ROWS, classes=WIDE_CLASSES)
        scans, scores = [], []
        for repetition in range(repetitions):
            progress(f"{rows:,} x {LONG_CLASSES}: repetition {repetition + 1} of {repetitions}")
            scans.append(measured(_SCAN, long))
            scores.append(measured(_SCORE, long))
        progress(f"{WIDE_ROWS:,} x {WIDE_CLASSES}")
        wide_scan = measured(_SCAN, wide)
        # How far Arrow reads ahead is chance, up to 100 MB of it: the least is what scoring itself holds.
        wide_score = min((measured(_SCORE, wide) for _ in range(REPETITIONS)), key=lambda run: run["megabytes"])
    scan, score = (min(run["seconds"] for run in runs) for runs in (scans, scores))
    peak = max(run["megabytes"] for run in scores)
    figures = {
        "rows": rows,
        "scan_seconds": scan,
        "score_seconds": score,
        "score_over_scan": score / scan,
        "megabytes_long": peak,
        "megabytes_scan": max(run["megabytes"] for run in scans),
        "megabytes_wide": wide_score["megabytes"],
        "wide_score_over_scan": wide_score["seconds"] / wide_scan["seconds"],
    }
    checks = [
        Check("megabytes, long file", peak, at_most=LONG_MEGABYTES),
        Check("megabytes, wide file", wide_score["megabytes"], at_most=WIDE_MEGABYTES),
    ]
    if not options.short:  # a tenth of the rows is scored exactly, by sorting, which is not what the limit is about
        checks.append(Check("time over a bare softmax scan, long file", score / scan, at_most=MOST_SCANS))
    finish("python -m benchmarks.evaluate" + (" --short" if options.short else ""), figures, checks)


def made(path: Path, *, rows: int, classes: int) -> Path:
    """A file of overconfident predictions, written piece by piece."""
    if path.exists():
        return path
    progress(f"writing {path.name}")
    random = np.random.default_rng(0)
    step = max(1, 4_000_000 // classes)
    with PredictionWriter(path) as writer:
        for start in range(0, rows, step):
            count = min(step, rows - start)
            logits = 2.5 * random.standard_normal((count, classes), dtype=np.float32)
            noise = random.gumbel(size=(count, classes)).astype(np.float32)
            labels = (0.8 * logits + noise).argmax(-1)
            writer.append(Predictions.of(logits=logits, labels=labels, ids=np.arange(start, start + count)))
    return path


def measured(body: str, path: Path) -> dict[str, Any]:
    """Seconds and peak megabytes of some code in a new process, imports not counted in the time."""
    code = _MEASURE.format(path=str(path), body=body)
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    result: dict[str, Any] = json.loads(printed)
    return result


if __name__ == "__main__":
    main()
