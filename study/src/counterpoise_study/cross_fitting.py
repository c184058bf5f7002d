"""Temperature scaling of the validation images themselves: each is scaled by what was fitted on others."""

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoise.calibrators.temperature import TemperatureScaling
from counterpoise.metrics import Scores
from counterpoise.predictions import Predictions, PredictionWriter, read_predictions
from counterpoise.scoring import score_files
from counterpoise.scoring.batches import checked_rows, clean_rows


def score_cross_fitted(path: Path) -> Scores:
    """Scores of the labelled predictions in a file, each half at the temperature of the other."""
    table = read_predictions(path)
    batch = checked_rows(table, clean_rows(table), labelled=True, first_row=0)
    labels = batch.required_labels()
    logits = cross_fitted(batch.as_logits(), labels, first=in_first_half(table.ids))
    with tempfile.TemporaryDirectory(prefix="counterpoise-") as folder:
        scaled = Path(folder) / path.name
        with PredictionWriter(scaled) as writer:
            writer.append(Predictions.of(logits=logits, labels=labels, ids=table.ids, header=table.header))
        (scores,) = score_files([scaled]).models
    return scores


def cross_fitted(logits: Tensor, labels: Tensor, *, first: Tensor) -> Tensor:
    """Log-probabilities `[n, K]`: of the rows where `first` holds at the temperature of the others, and conversely."""
    likely = logits.gather(1, labels[:, None]).squeeze(1) > -torch.inf  # no temperature changes a probability of 0
    scaled = torch.empty_like(logits)
    for half in (first, ~first):
        others = ~half & likely
        scaled[half] = TemperatureScaling().fit(logits[others], labels[others])(logits[half]).to(logits.dtype)
    return scaled


def in_first_half(ids: Iterable[Any]) -> Tensor:
    """Of every id whether its SHA-256 is even: the same for every run, whichever images it was given.

    >>> in_first_half([0, 1, 2, 3])
    tensor([False, False, False,  True])
    """
    return torch.tensor([hashlib.sha256(str(each).encode()).digest()[-1] % 2 == 0 for each in ids])
