"""What temperature scaling would change, tried on a random part of the predictions."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.calibrators import TemperatureScaling
from counterpoise.metrics import ClasswiseCalibration, Performance, Stream, TopLabelCalibration
from counterpoise.metrics.accumulate import bin_table
from counterpoise.metrics.estimates import Estimate, Key
from counterpoise.metrics.inputs import PredictionBatch, prediction_table
from counterpoise.metrics.measures import bin_sums_of
from counterpoise.metrics.scores import BinTable, Recalibration
from counterpoise.predictions import read_predictions
from counterpoise.scoring.rows import RowKinds, checked
from counterpoise.scoring.sampling import mixed

MOST_SAMPLES = 100_000
MOST_ELEMENTS = 1 << 23
FEWEST_SAMPLES = 200
"""Below this, half the samples say nothing about a temperature."""

_SALT = 1


class Reservoir:
    """A random part of all samples: those with the smallest mixed numbers, at most as many as memory allows."""

    def __init__(self, classes: int) -> None:
        self._most = min(MOST_SAMPLES, max(FEWEST_SAMPLES, MOST_ELEMENTS // classes))
        self._highest = np.uint64(2**64 - 1)
        self._priority: list[NDArray[np.uint64]] = []
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._held = 0

    def add(self, batch: PredictionBatch, numbers: NDArray[np.int64]) -> None:
        """Consider samples, each with its own number."""
        priority = mixed(numbers, salt=_SALT)
        kept = np.flatnonzero(priority <= self._highest)
        if not len(kept):
            return
        rows = torch.from_numpy(kept)
        source = batch.probabilities.log() if batch.logits is None else batch.logits
        self._priority.append(priority[kept])
        self._logits.append(source[rows].cpu())
        self._labels.append(batch.required_labels()[rows].cpu())
        self._held += len(kept)
        if self._held > 2 * self._most:
            self._prune()

    def samples(self) -> tuple[Tensor, Tensor]:
        """Logits `[n, K]` and labels `[n]` in random order."""
        self._prune()
        order = torch.from_numpy(np.argsort(self._priority[0], kind="stable"))
        return self._logits[0][order], self._labels[0][order]

    def __len__(self) -> int:
        return min(self._held, self._most)

    def _prune(self) -> None:
        priority = np.concatenate(self._priority)
        if len(priority) > self._most:
            self._highest = np.partition(priority, self._most - 1)[self._most - 1]
        kept = torch.from_numpy(np.flatnonzero(priority <= self._highest))
        self._priority = [priority[kept.numpy()]]
        self._logits, self._labels = [torch.cat(self._logits)[kept]], [torch.cat(self._labels)[kept]]
        self._held = len(kept)


def fit_temperature(path: str | Path) -> TemperatureScaling:
    """Temperature scaling fitted on the labelled, clean samples of a file, such as those of held-out images.

    Samples whose label has the probability 0, which no temperature changes, are left out.
    """
    table = read_predictions(path)
    clean = RowKinds.of(table).clean
    if not clean.any():
        raise ValueError(f"{path}: it holds no labelled, clean sample to fit a temperature to")
    try:
        batch = checked(table, clean, labelled=True, first_row=0)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    logits, labels = batch.probabilities.log() if batch.logits is None else batch.logits, batch.required_labels()
    possible = _is_possible(logits, labels)
    if not bool(possible.any()):
        raise ValueError(f"{path}: every label has the probability 0, which no temperature changes")
    return TemperatureScaling().fit(logits[possible], labels[possible])


def try_temperature(reservoir: Reservoir, *, bins: int, level: float) -> Recalibration | None:
    """Fit a temperature on one half of the samples and measure it on the other; None where there are too few.

    Samples whose label has the probability 0, which no temperature changes, are left out of the fit alone.
    """
    if len(reservoir) < FEWEST_SAMPLES:
        return None
    logits, labels = reservoir.samples()
    half = len(labels) // 2
    possible = _is_possible(logits[:half], labels[:half])
    if int(possible.sum()) < FEWEST_SAMPLES // 2:
        return None
    scaling = TemperatureScaling().fit(logits[:half][possible], labels[:half][possible])
    before, bins_before = _measured(logits[half:], labels[half:], bins=bins, level=level)
    after, bins_after = _measured(scaling(logits[half:]), labels[half:], bins=bins, level=level)
    return Recalibration(
        temperature=scaling.temperature,
        state=str(scaling.state),
        fitted_on=int(possible.sum()),
        measured_on=len(labels) - half,
        before=before,
        after=after,
        bins_before=bins_before,
        bins_after=bins_after,
    )


def _is_possible(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether the label of each row has a probability above 0, `[n]`."""
    return torch.isfinite(logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1))


def _measured(logits: Tensor, labels: Tensor, *, bins: int, level: float) -> tuple[dict[Key, Estimate], BinTable]:
    batch = prediction_table(logits=logits, labels=labels).checked_rows()
    performance = Stream(Performance(level=level))
    top_label = Stream(TopLabelCalibration(bins=bins, level=level))
    classwise = Stream(ClasswiseCalibration(num_classes=logits.shape[-1], bins=bins, level=level))
    for stream in (performance, top_label, classwise):
        stream.update_checked(batch)
    estimates = performance.compute() | top_label.compute() | classwise.compute()
    wanted = (Key.NLL, Key.BRIER, Key.MEAN_GAP, Key.ECE, Key.CLASSWISE_ECE)
    return {key: estimates[key] for key in wanted}, bin_table(bin_sums_of(top_label.sums))
