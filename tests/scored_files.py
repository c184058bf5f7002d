"""Files of predictions that tests score, and what two scores have in common."""

import numpy as np
import pytest
import torch

from counterpoise.predictions import Predictions, write_predictions

N, K = 1200, 4


def drawn(seed: int, *, n: int = N, sharpness: float = 1.5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, K, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator).squeeze(-1)
    return sharpness * logits, labels


def write(path, **columns):
    write_predictions(path, Predictions.of(**columns))
    return path


def write_shards(folder, *, rows=97, **columns):
    folder.mkdir()
    for start in range(0, len(next(iter(columns.values()))), rows):
        part = {name: values[start : start + rows] for name, values in columns.items()}
        ids = np.arange(start, start + len(next(iter(part.values()))))
        write(folder / f"part-{start // rows}.parquet", ids=ids, **part)
    return folder


def same_estimates(one, other, *, rel=1e-9):
    assert one.keys() == other.keys()
    for key, estimate in one.items():
        for part in ("value", "low", "high"):
            assert getattr(estimate, part) == pytest.approx(getattr(other[key], part), rel=rel, abs=1e-12, nan_ok=True)
