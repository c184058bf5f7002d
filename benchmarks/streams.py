"""What starting to stream takes at internet scale: `python -m benchmarks.streams [--short]`.

A billion rows in 10,000 Parquet files of 100 row groups each (`--short`: 200 files) are links to one file, whose
images are all the same picture of one pixel: footers are as large as those of any images, and reading them is what is
measured. A new process then does what each process of `counterpoise train --data.pipeline stream` does before its
first step: it finds the files, reads all footers, chooses the validation rows, orders the epoch and reads a batch.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.reporting import Check, finish, progress
from counterpoise.recipes.config import DataOptions, Recipe
from counterpoise.training import named_data

FILES, SHORT = 10_000, 200
ROWS, ROW_GROUP = 100_000, 1_000
"""Of a file."""

CLASSES = 1_000
VALIDATION, BATCH = 5_000, 100
MOST_MEGABYTES, MOST_SECONDS = 500, 60


def main() -> None:
    """Files, a process, checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=f"{SHORT} files instead of {FILES:,}")
    parser.add_argument("--process", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process is not None:
        print(json.dumps(started(options.process)))
        return
    files = SHORT if options.short else FILES
    with tempfile.TemporaryDirectory() as folder:
        write_set(Path(folder), files)
        progress(f"{files:,} files of {ROWS:,} rows")
        command = [sys.executable, "-m", "benchmarks.streams", "--process", folder]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    rows = files * ROWS
    figures = {"files": files, "rows": rows, "row_groups": rows // ROW_GROUP, **found}
    checks = [
        Check("megabytes of a process beyond its libraries", found["megabytes_added"], at_most=MOST_MEGABYTES),
        Check("seconds of processor time, imports included", found["processor_seconds"], at_most=MOST_SECONDS),
        Check("rows that take part", found["training_rows"], at_least=rows - VALIDATION, at_most=rows - VALIDATION),
    ]
    finish("python -m benchmarks.streams", figures, checks)


def write_set(folder: Path, files: int) -> None:
    """So many names of one file for training, and one for testing."""
    picture = BytesIO()
    Image.new("RGB", (1, 1)).save(picture, "PNG")
    names = {"info": {"features": {"label": {"names": [f"class {index}" for index in range(CLASSES)]}}}}
    table = pa.table(
        {
            "image": pa.array([picture.getvalue()] * ROWS),
            "label": pa.array([row % CLASSES for row in range(ROWS)], pa.int16()),
        }
    ).replace_schema_metadata({"huggingface": json.dumps(names)})
    pq.write_table(table, folder / "one", row_group_size=ROW_GROUP)
    for number in range(files):
        os.link(folder / "one", folder / f"train-{number:05}-of-{files:05}.parquet")
    os.link(folder / "one", folder / "test.parquet")


def started(folder: Path) -> dict[str, float]:
    """What a process needs until it has its first batch, and the rows of its epoch."""
    imported, begin = time.process_time(), _megabytes()
    data = DataOptions(name=str(folder), pipeline="stream", workers=0, window=100, validation=VALIDATION)
    loader = named_data(Recipe(method="ce", batch=BATCH, data=data)).training(0, 0, 1)
    assert len(next(iter(loader)).labels) == BATCH
    rows = BATCH * len(loader)
    return {
        "training_rows": rows,
        "megabytes_added": _megabytes() - begin,
        "megabytes_of_imports": begin,
        "processor_seconds": time.process_time(),
        "processor_seconds_of_imports": imported,
    }


def _megabytes() -> float:
    """The most that this process had so far."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    main()
