"""Every study at smoke scale, from nothing to the page: `python -m benchmarks.studies [--short] [--store FOLDER]`.

Two processes share one store as two shards of a job array would, each with one thread. Then every cell must be
committed once, the page must have every study, and drawing it again must give the same bytes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.grid import commits_of, events_of
from benchmarks.reporting import Check, finish, progress
from counterpoise_study.grid import remaining
from counterpoise_study.report import write_report
from counterpoise_study.store import Store
from counterpoise_study.studies import STUDIES

SHARDS = 2
SEEDS = 2
MOST_SECONDS = 240
SHORT_METHODS, SHORT_SEEDS = ("ce", "de3", "mte1"), 1
"""Nothing to choose, an ensemble, and something to choose, which every study has."""


def main() -> None:
    """Run all studies, print JSON, compare with the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few methods and one seed; the time is not compared")
    parser.add_argument("--store", type=Path, help="keep the store in this folder, for somebody to look at the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        store = Store(options.store or Path(temporary) / "store")
        started = time.monotonic()
        seeds = SHORT_SEEDS if options.short else SEEDS
        run(store.path, seeds=seeds, only=SHORT_METHODS if options.short else ())
        seconds = time.monotonic() - started
        page = store.path / "report.html"
        progress(f"{page} after {seconds:.0f} s")
        figures = {"studies": len(STUDIES), "seeds": seeds, "processes": SHARDS, "seconds": seconds} | counted(store)
        content = page.read_bytes()
        assert write_report(store)[0].read_bytes() == content, "the same store gave another page in another process"
        assert all(study.title in content.decode() for study in STUDIES.values()), "the page lacks a study"
    finish(
        "python -m benchmarks.studies" + (" --short" if options.short else ""),
        figures,
        [
            *([] if options.short else [Check("seconds from nothing to the page", seconds, at_most=MOST_SECONDS)]),
            Check("tasks that are left", figures["left"], at_most=0),
            Check("commits of a task that were not the only one", figures["repeated"], at_most=0),
        ],
    )


def run(store: Path, *, seeds: int, only: Sequence[str]) -> None:
    """Both shards at a time, as two commands; what they say goes to standard error."""
    command = [sys.executable, "-m", "counterpoise_study", "run", "all"]
    command += ["--scale", "smoke", "--seeds", str(seeds)]
    command += ["--only", *only] if only else []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    shards = [
        subprocess.Popen(
            [*command, "--store", str(store), "--shard", f"{index}/{SHARDS}"], env=environment, stdout=sys.stderr
        )
        for index in range(SHARDS)
    ]
    for shard in shards:
        assert shard.wait() == 0, "a shard failed"


def counted(store: Store) -> dict[str, int]:
    """Commits in all, those of a task that has more than one, failures, and what is left."""
    commits = commits_of(store)
    left = remaining(store, store.contents.requests)
    return {
        "cells": len({cell for cell, _ in commits}),
        "commits": commits.total(),
        "repeated": commits.total() - len(commits),
        "failures": sum(event["kind"] == "failed" for event in events_of(store)),
        "left": len(left.ready) + left.undecided,
    }


if __name__ == "__main__":
    main()
