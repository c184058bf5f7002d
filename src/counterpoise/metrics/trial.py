"""A random sample of the predictions themselves, for what cannot be computed from sums: what is fitted and tried."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.metrics.batch import PredictionBatch
from counterpoise.metrics.keys import Keys, sampling_priority

FEWEST_SAMPLES = 200
"""Below this, half the samples say nothing about what is fitted to the other half."""
MOST_SAMPLES = 100_000
MOST_VALUES = 1 << 23
_TOO_MANY_VALUES = 1 << 26
"""With so many classes that even the fewest samples would take more than this, nothing is kept."""


class TrialRows(NamedTuple):
    """Samples of a trial: logits `[n, K]`, labels `[n]`, and the group of each `[n]` (`columns.group_code`)."""

    logits: Tensor
    labels: Tensor
    groups: Keys


class TrialSample:
    """The samples with the smallest priorities, at most as many as memory allows.

    The priority of a sample is a function of its id, so that this is the same sample of the same predictions, however
    they are divided and merged.
    """

    def __init__(self, classes: int) -> None:
        most = min(MOST_SAMPLES, max(FEWEST_SAMPLES, MOST_VALUES // classes))
        self._most = most if most * classes <= _TOO_MANY_VALUES else 0
        self._highest = np.uint64(2**64 - 1)
        self._priority: list[Keys] = []
        self._rows: list[TrialRows] = []
        self._held = 0

    def add(self, batch: PredictionBatch, keys: Keys, groups: Keys) -> None:
        """Consider labelled samples, and the group that each belongs to."""
        self._consider(sampling_priority(keys), TrialRows(batch.as_logits(), batch.required_labels(), groups))

    def merge(self, other: "TrialSample") -> None:
        for priority, rows in zip(other._priority, other._rows, strict=True):
            self._consider(priority, rows)

    def samples(self) -> TrialRows:
        self._prune()
        return self._rows[0]

    def __len__(self) -> int:
        return min(self._held, self._most)

    def settle(self) -> None:
        if self._priority:
            self._prune()

    def tensors(self) -> dict[str, Tensor]:
        if not self._priority:
            return {}
        logits, labels, groups = self.samples()
        found = {"priority": _as_tensor(self._priority[0]), "logits": logits, "labels": labels}
        return found | ({"groups": _as_tensor(groups)} if groups.any() else {})

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor], *, classes: int) -> "TrialSample":
        sample = cls(classes)
        if tensors:
            priority = tensors["priority"]
            groups = tensors.get("groups", torch.zeros_like(priority))
            if not len(priority) == len(tensors["logits"]) == len(tensors["labels"]) == len(groups):
                raise ValueError("its samples have more of one column than of another")
            rows = TrialRows(tensors["logits"], tensors["labels"], _as_keys(groups))
            sample._consider(_as_keys(priority), rows)
        return sample

    def _consider(self, priority: Keys, rows: TrialRows) -> None:
        kept = np.flatnonzero(priority <= self._highest)
        if not len(kept) or not self._most:
            return
        if len(kept) < len(priority):
            priority, rows = priority[kept], _taken(rows, kept)
        else:  # whose memory somebody may fill with the next batch
            rows = TrialRows(rows.logits.clone(), rows.labels.clone(), rows.groups)
        self._priority.append(priority)
        self._rows.append(TrialRows(rows.logits.cpu(), rows.labels.cpu(), rows.groups))
        self._held += len(priority)
        if self._held > 2 * self._most:
            self._prune()

    def _prune(self) -> None:
        """Keep the smallest priorities, in ascending order."""
        priority = np.concatenate(self._priority)
        order = np.argsort(priority, kind="stable")[: self._most]
        logits, labels, groups = zip(*self._rows, strict=True)
        whole = TrialRows(torch.cat(logits), torch.cat(labels), np.concatenate(groups))
        self._priority, self._rows = [priority[order]], [_taken(whole, order)]
        self._held = len(order)
        if self._held == self._most:
            self._highest = self._priority[0][-1]


def _taken(rows: TrialRows, kept: NDArray[np.int64]) -> TrialRows:
    index = torch.from_numpy(kept).to(rows.labels.device)
    return TrialRows(rows.logits[index], rows.labels[index], rows.groups[kept])


def _as_tensor(keys: Keys) -> Tensor:
    return torch.from_numpy(keys.view(np.int64))


def _as_keys(tensor: Tensor) -> Keys:
    return tensor.numpy().view(np.uint64)
