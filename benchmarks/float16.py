"""What float16 storage changes: `python -m benchmarks.float16 FILE.parquet ...`.

Every measure of the clean, labelled samples of real predictions (`python -m tools.demonstration`), from values as
they are stored and from the same rounded to float16, for logits and for the probabilities of these logits.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import counterpoise
from benchmarks.reporting import Check, finish, progress
from counterpoise.metrics.estimates import KEY_INFO, Key
from counterpoise.predictions import MISSING_LABEL, read_predictions

Array = NDArray[Any]

MOST_OF_INTERVAL = 0.1
"""Rounding may move a measure by a tenth of the width of its interval."""

FRAGILE = (Key.MCE,)
"""Reported and not held to the limit: one sample that rounding moves out of a bin of five changes it by points."""


def main() -> None:
    """Score each file in both precisions, and check that rounding is small beside chance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    files = parser.parse_args().files
    figures: dict[str, Any] = {}
    for path in files:
        progress(f"{path.name}")
        logits, labels = clean_samples(path)
        figures[path.stem] = {"samples": len(labels), "logits": changes("logits", logits, labels)}
        probabilities = torch.softmax(torch.from_numpy(logits).double(), -1).float().numpy()
        figures[path.stem]["probabilities"] = changes("probabilities", probabilities, labels)
    worst = {
        kind: max(
            row["of_interval"] for file in figures.values() for key, row in file[kind].items() if key not in FRAGILE
        )
        for kind in ("logits", "probabilities")
    }
    checks = [
        Check(f"largest change by float16 {kind}, of an interval", change, at_most=MOST_OF_INTERVAL)
        for kind, change in worst.items()
    ]
    names = " ".join(path.name for path in files)
    finish(f"python -m benchmarks.float16 {names}", {"files": figures, "largest_of_interval": worst}, checks)


def clean_samples(path: Path) -> tuple[Array, Array]:
    """Logits and labels of the samples that a headline is about."""
    table = read_predictions(path)
    if table.kind != "logits" or table.values.ndim != 2:
        raise ValueError(f"{path}: this needs logits of one model")
    clean = table.labels != MISSING_LABEL
    if table.severity is not None:
        clean &= table.severity == 0
    return table.values[clean].astype(np.float32), table.labels[clean]


def changes(kind: str, values: Array, labels: Array) -> dict[str, dict[str, float]]:
    """Of every measure: its value, the change by rounding to float16, and that over the width of its interval."""
    rounded = values.astype(np.float16)
    exact, stored = (_scores(kind, array, labels) for array in (values, rounded))
    rows = {}
    for key, estimate in (exact.estimates | exact.misclassification.estimates).items():
        change, width = stored[key].value - estimate.value, estimate.high - estimate.low
        if math.isfinite(change) and width > 0:
            scale = KEY_INFO[key].scale
            rows[str(key)] = {
                "value": scale * estimate.value,
                "change": scale * change,
                "of_interval": abs(change) / width,
            }
        elif not math.isfinite(change):
            rows[str(key)] = {"value": estimate.value, "change": math.inf, "of_interval": math.inf}
    return rows


def _scores(kind: str, values: Array, labels: Array) -> counterpoise.Scores:
    if kind == "logits":
        return counterpoise.evaluate(logits=values, labels=labels)
    return counterpoise.evaluate(probabilities=values, labels=labels)


if __name__ == "__main__":
    main()
