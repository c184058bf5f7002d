"""How often `counterpoise monitor` alarms falsely, and how soon rightly: `python -m benchmarks.monitor [--short]`.

Many simulated streams, each held against a reference of its own that is drawn from the same population. Without a
change, at most 5% may ever alarm, looked at after every window. With a change of 2, 5 or 10 points in accuracy or in
confidence, what is measured is how many samples pass until the alarm. Then the folder: whatever files the rows are
divided into, and in whatever order they come, `show --json` has the same bytes; and writers that are killed lose
nothing and count nothing twice.
"""

import argparse
import math
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from benchmarks.reporting import Check, finish, progress
from counterpoise._choices import Every
from counterpoise.monitoring import begin, show, update
from counterpoise.monitoring.evidence import (
    LABELLED,
    PARTS,
    Bounds,
    Fortunes,
    Part,
    Tallies,
    alarm_threshold,
    bounds_of,
    log_products,
)
from counterpoise.monitoring.texts import as_json

LEVEL = 0.95
CLASSES, CELLS = 10, 40
REFERENCE = 10_000
POINTS = (0.02, 0.05, 0.10)
WINDOWS_AT_A_TIME = 20
STREAMS, LOOKS, SHORT_STREAMS, SHORT_LOOKS = 1000, 10_000, 100, 100
CHANGED_STREAMS, SHORT_CHANGED_STREAMS = 200, 20
BEFORE, AFTER, SHORT_AFTER = 200, 8000, 100
"""Windows before a change, and the most that are waited after it."""
IN_WINDOW, IN_CHANGED_WINDOW = 20, 50
"""Samples in a window."""
REPEATED, SHORT_REPEATED = 20, 3
"""Partitions, and kills."""


@dataclass(frozen=True)
class Population:
    """Confidences with their probabilities `[C]`, how often each is right, and predicted classes `[K]`."""

    values: Tensor
    share: Tensor
    right: Tensor
    classes: Tensor

    def drawn(self, shape: tuple[int, ...], samples: int, generator: torch.Generator, *, labelled: float) -> Tallies:
        """Counts of so many samples, `[*shape, C]` and `[*shape, K]`; the first of them have labels."""
        rows = math.prod(shape)
        outcomes = torch.cat([self.share * self.right, self.share * (1 - self.right)])
        drawn = _choices(outcomes, (rows, samples), generator)
        known = round(labelled * samples)
        with_labels = _counted(drawn[:, :known], 2 * CELLS)
        without = _counted(drawn[:, known:] % CELLS, CELLS)
        hits, misses = with_labels[:, :CELLS], with_labels[:, CELLS:]
        classes = _counted(_choices(self.classes, (rows, samples), generator), CLASSES)
        parts = (classes, hits + misses + without, hits, misses)
        return Tallies(*(part.reshape(*shape, -1) for part in parts))


def population() -> Population:
    """A calibrated model that is right in about 90%."""
    values = torch.linspace(0.3, 0.9995, CELLS, dtype=torch.float64)
    share = torch.exp(6 * values)
    classes = torch.linspace(1, 2, CLASSES, dtype=torch.float64)
    return Population(values, share / share.sum(), values, classes / classes.sum())


def less_accurate(before: Population, points: float) -> Population:
    """Each confidence is right less often: by a constant factor."""
    accuracy = float(before.share @ before.right)
    return replace(before, right=before.right * (1 - points / accuracy))


def less_confident(before: Population, points: float) -> Population:
    """Lower confidences are seen more often, and are as right as they were."""
    low, high = 0.0, 20.0
    for _ in range(60):
        tilt = (low + high) / 2
        share = before.share * torch.exp(-tilt * before.values)
        share = share / share.sum()
        moved = float((before.share - share) @ before.values)
        low, high = (tilt, high) if moved < points else (low, tilt)
    return replace(before, share=share)


def main() -> None:
    """Simulate, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer streams and looks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    streams, looks = (SHORT_STREAMS, SHORT_LOOKS) if options.short else (STREAMS, LOOKS)
    repeated = SHORT_REPEATED if options.short else REPEATED
    alarmed = false_alarms(streams, looks)
    figures = {
        "level": LEVEL,
        "reference_samples": REFERENCE,
        "accuracy": float(population().share @ population().right),
        "no_change": {
            "streams": streams,
            "looks": looks,
            "samples_in_window": IN_WINDOW,
            "ever_alarmed": alarmed["any"],
            "ever_alarmed_by_part": {part: alarmed[part] for part in PARTS},
        },
        "delays": (waited := delays(short=options.short)),
        "partitions": (divided := partitions(repeated)),
        "kills": (killed := kills(repeated)),
    }
    # Of so many streams, a share that is 5% in truth is seen above it as often as below.
    error = 2 * math.sqrt(0.05 * 0.95 / streams) if options.short else 0.0
    checks = [
        Check("streams without a change that ever alarm", alarmed["any"], at_most=1 - LEVEL + error),
        Check("partitions with the same bytes", divided["same"], at_least=repeated),
        Check("kills after which nothing is lost or counted twice", killed["same"], at_least=repeated),
    ]
    if not options.short:
        checks += [
            Check(f"found: {name}, {row['points']:g} points", row["found"] or 0.0, at_least=0.95)
            for name, rows in waited.items()
            for row in rows
        ]
    finish("python -m benchmarks.monitor" + (" --short" if options.short else ""), figures, checks)


class Streams:
    """Evidence of many streams at once, and when each part of each first alarmed."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.generator, self.windows = generator, 0
        before = population()
        reference = before.drawn((count,), REFERENCE, generator, labelled=1.0)
        self.bounds: Bounds = bounds_of(reference, before.values, level=LEVEL)
        self.fortunes: dict[Part, Fortunes] = {}
        self.first = {part: torch.full((count,), math.inf) for part in PARTS}

    def follow(self, source: Population, windows: int, samples: int, *, labelled: float) -> None:
        """Draw windows, and look after each."""
        count = len(self.bounds.misses)
        products = log_products(source.drawn((count, windows), samples, self.generator, labelled=labelled), self.bounds)
        threshold = math.log(alarm_threshold(LEVEL))
        for window in range(windows):
            for part, logs in products.items():
                product = logs[:, window]
                fortunes = self.fortunes.setdefault(part, Fortunes.none(tuple(product.shape)))
                fortunes.pass_window(self.windows, product)
                raised = (fortunes.log_evidence() >= threshold) & torch.isinf(self.first[part])
                self.first[part][raised] = self.windows
            self.windows += 1


def false_alarms(streams: int, looks: int) -> dict[str, float]:
    """Share of streams that ever alarm without a change, in any part and in each; half of the samples have labels."""
    followed = Streams(streams, torch.Generator().manual_seed(0))
    for done in range(0, looks, WINDOWS_AT_A_TIME):
        followed.follow(population(), WINDOWS_AT_A_TIME, IN_WINDOW, labelled=0.5)
        if done % 1000 == 0:
            progress(f"no change: {done:,} of {looks:,} looks")
    ever = {part: torch.isfinite(first) for part, first in followed.first.items()}
    some = torch.stack([*ever.values()]).any(0)
    return {"any": float(some.double().mean())} | {part: float(each.double().mean()) for part, each in ever.items()}


def delays(*, short: bool) -> dict[str, list[dict[str, float | None]]]:
    """Samples until the first alarm after a change, of which all have labels, by what is watched."""
    count, after = (SHORT_CHANGED_STREAMS, SHORT_AFTER) if short else (CHANGED_STREAMS, AFTER)
    found: dict[str, list[dict[str, float | None]]] = {}
    for name, changed, parts in (
        ("accuracy", less_accurate, LABELLED),
        ("confidence", less_confident, ("classes", "confidence")),
    ):
        for seed, points in enumerate(POINTS):
            progress(f"{name} lower by {points:g}")
            followed = Streams(count, torch.Generator().manual_seed(1 + seed))
            for _ in range(0, BEFORE, WINDOWS_AT_A_TIME):
                followed.follow(population(), WINDOWS_AT_A_TIME, IN_CHANGED_WINDOW, labelled=1.0)
            for _ in range(0, after, WINDOWS_AT_A_TIME):
                followed.follow(changed(population(), points), WINDOWS_AT_A_TIME, IN_CHANGED_WINDOW, labelled=1.0)
                first = torch.stack([followed.first[part] for part in parts]).amin(0)
                if bool(torch.isfinite(first).all()):
                    break
            waited = (first - BEFORE + 1)[first >= BEFORE]
            quantiles = [float(waited.quantile(share, interpolation="higher")) for share in (0.5, 0.9)]
            windows = [each if math.isfinite(each) else None for each in quantiles]
            found.setdefault(name, []).append(
                {
                    "points": 100 * points,
                    "streams": len(waited),
                    "found": float(torch.isfinite(waited).double().mean()),
                    "median_windows": windows[0],
                    "p90_windows": windows[1],
                    "median_samples": None if windows[0] is None else IN_CHANGED_WINDOW * windows[0],
                    "p90_samples": None if windows[1] is None else IN_CHANGED_WINDOW * windows[1],
                }
            )
    return found


def partitions(repeated: int) -> dict[str, int]:
    """How many of the ways to divide rows into files, and to order these, give the same bytes."""
    table, chance = rows_of_stream(4000), random.Random(0)  # noqa: S311 - a simulation
    wanted, same = None, 0
    for number in range(repeated):
        with tempfile.TemporaryDirectory() as folder:
            monitor = _begun(Path(folder), every="day")
            cuts = sorted(chance.sample(range(1, len(table)), number))
            order = np.random.default_rng(number).permutation(len(table))
            shuffled = table.take(order)
            parts = [shuffled.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(table)], strict=True)]
            for place, part in enumerate(parts):
                path = Path(folder) / f"{place}.parquet"
                pq.write_table(part, path)
                update(monitor, path)
            found = as_json(show(monitor))
        wanted = wanted or found
        same += found == wanted
    return {"partitions": repeated, "same": same}


def kills(repeated: int) -> dict[str, int]:
    """How many times a writer that was killed, and then run again, leaves what an undisturbed one does."""
    chance, same, lost = random.Random(0), 0, 0  # noqa: S311
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.parquet"
        pq.write_table(rows_of_stream(4000), path)
        monitor = _begun(Path(folder), "undisturbed")
        started = time.monotonic()
        update(monitor, path)
        took, wanted = time.monotonic() - started, as_json(show(monitor))
        for number in range(repeated):
            killed = _begun(Path(folder), f"killed-{number}")
            if (writer := os.fork()) == 0:
                update(killed, path)
                os._exit(0)
            time.sleep(chance.uniform(0.05, 0.95) * took)
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
            lost += as_json(show(killed)) != wanted
            update(killed, path)
            same += as_json(show(killed)) == wanted
    return {"kills": repeated, "before_the_end": lost, "same": same}


def rows_of_stream(rows: int) -> pa.Table:
    """Predictions of two days."""
    generator = np.random.default_rng(0)
    logits = 3 * generator.normal(size=(rows, CLASSES))
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = np.array([generator.choice(CLASSES, p=each) for each in probabilities])
    columns = {f"p{index}": probabilities[:, index] for index in range(CLASSES)}
    seconds = 1_772_323_200 + generator.uniform(0, 2 * 86_400, rows)
    return pa.table({"id": np.arange(rows), **columns, "label": labels, "time": seconds})


def _begun(folder: Path, name: str = "monitor", *, every: Every = "hour") -> Path:
    path = folder / "reference.parquet"
    pq.write_table(rows_of_stream(2000), path)
    begin(folder / name, path, start="2026-03-01", every=every)
    return folder / name


def _choices(weights: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Places drawn with these weights."""
    ends = weights.cumsum(0) / weights.sum()
    return torch.searchsorted(ends, torch.rand(shape, generator=generator, dtype=torch.float64)).clamp(
        max=len(weights) - 1
    )


def _counted(places: Tensor, size: int) -> Tensor:
    """How often each place is in each row, `[rows, size]`."""
    rows = torch.arange(len(places))[:, None] * size
    return torch.bincount((places + rows).reshape(-1), minlength=len(places) * size).reshape(-1, size).double()


if __name__ == "__main__":
    main()
