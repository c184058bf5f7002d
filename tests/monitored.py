"""Streams of predictions for the tests of the monitor."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.monitoring import begin

START = 1_772_323_200  # 2026-03-01, a Sunday
CLASSES = 4


def stream(rows, *, seed=0, sharp=3.0, hours=12, ids=True, labelled=1.0, shift=0.0):
    """Predictions of a calibrated model, or of one whose labels are wrong more often by `shift`."""
    generator = np.random.default_rng(seed)
    logits = sharp * generator.normal(size=(rows, CLASSES))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = (p.cumsum(-1) > generator.random((rows, 1))).argmax(-1)
    wrong = generator.random(rows) < shift
    labels = np.where(wrong, (p.argmax(-1) + 1) % CLASSES, labels)
    known = generator.random(rows) < labelled
    columns = {"id": np.arange(rows) + 100_000 * seed} if ids else {}
    columns |= {f"p{k}": p[:, k] for k in range(CLASSES)}
    columns["label"] = pa.array([int(x) if k else None for x, k in zip(labels, known, strict=True)], pa.int64())
    columns["time"] = START + generator.integers(0, hours * 3600, rows)
    return pa.table(columns)


def written(path, table):
    pq.write_table(table, path)
    return path


def begun(folder):
    """A monitor by the hour, held against 2,000 predictions."""
    begin(folder / "monitor", written(folder / "reference.parquet", stream(2000, seed=9)), start="2026-03-01")
    return folder / "monitor"
