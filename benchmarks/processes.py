"""The processes that a program has started, looked up in /proc: Linux alone."""

import os
import time
from pathlib import Path

PATIENCE = 30.0
"""Seconds in which the workers of a killed program must be gone; they hold what others wait for."""


def descendants(process: int) -> set[int]:
    """Ids of the processes that a process has started, and of those that they have."""
    parents = _parents()
    found, generation = set[int](), {process}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        found |= generation
    return found


def processor_time(process: int | None) -> float:
    """Seconds of processor time that a process has used; 0 where there is none."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def survivors(processes: set[int]) -> set[int]:
    """Those that are still there when patience ends."""
    end = time.monotonic() + PATIENCE
    while (left := processes & _parents().keys()) and time.monotonic() < end:
        time.sleep(1.0)
    return left


def _parents() -> dict[int, int]:
    """The parent of every process that has not ended."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in brackets, may hold anything.
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(folder.name)] = int(parent)
    return parents
