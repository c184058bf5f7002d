"""What starting to stream takes at internet scale: `python -m benchmarks.streams [--short]`.

A billion rows in 10,000 files (`--short`: 200) are links to one file, whose 100,000 images are all the same picture of
one pixel: Parquet with footers as large as those of any images, and tar shards with an index. A new process then does
what each process of `counterpoise train --data.pipeline stream` does before its first step: it finds the files, reads
all footers or indexes, chooses the validation rows, orders the epoch and reads a batch.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.reporting import Check, finish, progress
from counterpoise.data import index_shards
from counterpoise.recipes.config import DataOptions, Recipe
from counterpoise.training import named_data

FILES, SHORT = 10_000, 200
ROWS, ROW_GROUP = 100_000, 1_000
"""Of a file."""

KINDS = {"parquet": "Parquet", "webdataset": "WebDataset shards with an index"}
CLASSES = 1_000
VALIDATION, BATCH = 5_000, 100
MOST_MEGABYTES, MOST_SECONDS = 500, 60


def main() -> None:
    """Files of each kind, a process, checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=f"{SHORT} files instead of {FILES:,}")
    parser.add_argument("--process", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process is not None:
        print(json.dumps(started(options.process)))
        return
    files = SHORT if options.short else FILES
    rows, found, checks = files * ROWS, {}, []
    for kind, title in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            WRITERS[kind](Path(folder), files)
            progress(f"{title}: {files:,} files of {ROWS:,} rows")
            command = [sys.executable, "-m", "benchmarks.streams", "--process", folder]
            found[kind] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        added, seconds, trained = (
            found[kind][name] for name in ("megabytes_added", "processor_seconds", "training_rows")
        )
        checks += [
            Check(f"{title}: megabytes of a process beyond its libraries", added, at_most=MOST_MEGABYTES),
            Check(f"{title}: seconds of processor time, imports included", seconds, at_most=MOST_SECONDS),
            Check(f"{title}: rows that take part", trained, at_least=rows - VALIDATION, at_most=rows - VALIDATION),
        ]
    figures = {"files": files, "rows": rows, "row_groups": rows // ROW_GROUP, **found}
    finish("python -m benchmarks.streams", figures, checks)


def write_parquet(folder: Path, files: int) -> None:
    """So many names of one file for training."""
    names = {"info": {"features": {"label": {"names": class_names()}}}}
    table = pa.table(
        {
            "image": pa.array([picture()] * ROWS),
            "label": pa.array([row % CLASSES for row in range(ROWS)], pa.int16()),
        }
    ).replace_schema_metadata({"huggingface": json.dumps(names)})
    pq.write_table(table, folder / "one", row_group_size=ROW_GROUP)
    for number in range(files):
        os.link(folder / "one", folder / f"train-{number:05}-of-{files:05}.parquet")


def write_shards(folder: Path, files: int) -> None:
    """So many names of one shard and of its index."""
    image = picture()
    with tarfile.open(folder / "one.tar", "w", format=tarfile.USTAR_FORMAT) as shard:
        for row in range(ROWS):
            for extension, content in (("png", image), ("cls", b"%d" % (row % CLASSES))):
                member = tarfile.TarInfo(f"{row:06}.{extension}")
                member.size = len(content)
                shard.addfile(member, BytesIO(content))
            shard.members.clear()  # type: ignore[attr-defined]  # or it would keep them all
    (index,) = index_shards(folder / "one.tar")
    for number in range(files):
        name = folder / f"train-{number:05}-of-{files:05}.tar"
        os.link(folder / "one.tar", name)
        os.link(index, f"{name}.index")
    (folder / "classes.txt").write_text("\n".join(class_names()))


WRITERS = {"parquet": write_parquet, "webdataset": write_shards}


def picture() -> bytes:
    """One pixel."""
    buffer = BytesIO()
    Image.new("RGB", (1, 1)).save(buffer, "PNG")
    return buffer.getvalue()


def class_names() -> list[str]:
    """As many as ImageNet has."""
    return [f"class {index}" for index in range(CLASSES)]


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
