"""A random sample of the predictions themselves, for what cannot be computed from sums: trying a temperature."""

import numpy as np
import torch
from torch import Tensor

from counterpoise.metrics.inputs import PredictionBatch
from counterpoise.metrics.keys import Keys, sampling_priority

FEWEST_SAMPLES = 200
"""Below this, half the samples say nothing about a temperature."""
MOST_SAMPLES = 100_000
MOST_VALUES = 1 << 23
_TOO_MANY_VALUES = 1 << 26
"""With so many classes that even the fewest samples would take more than this, nothing is kept."""


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
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._held = 0

    def add(self, batch: PredictionBatch, keys: Keys) -> None:
        """Consider labelled samples."""
        self._consider(sampling_priority(keys), batch.as_logits(), batch.required_labels())

    def merge(self, other: "TrialSample") -> None:
        """Consider what another has kept."""
        for priority, logits, labels in zip(other._priority, other._logits, other._labels, strict=True):
            self._consider(priority, logits, labels)

    def samples(self) -> tuple[Tensor, Tensor]:
        """Logits `[n, K]` and labels `[n]` in random order."""
        self._prune()
        return self._logits[0], self._labels[0]

    def __len__(self) -> int:
        return min(self._held, self._most)

    def settle(self) -> None:
        """Drop what is held beyond the sample."""
        if self._priority:
            self._prune()

    def tensors(self) -> dict[str, Tensor]:
        """All that is kept."""
        if not self._priority:
            return {}
        self.settle()
        priority = torch.from_numpy(self._priority[0].view(np.int64))
        return {"priority": priority, "logits": self._logits[0], "labels": self._labels[0]}

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor], *, classes: int) -> "TrialSample":
        """What `tensors` gave."""
        sample = cls(classes)
        if tensors:
            sample._consider(tensors["priority"].numpy().view(np.uint64), tensors["logits"], tensors["labels"])
        return sample

    def _consider(self, priority: Keys, logits: Tensor, labels: Tensor) -> None:
        kept = np.flatnonzero(priority <= self._highest)
        if not len(kept) or not self._most:
            return
        if len(kept) < len(priority):
            rows = torch.from_numpy(kept)
            priority, logits, labels = priority[kept], logits[rows], labels[rows]
        self._priority.append(priority)
        self._logits.append(logits.cpu())
        self._labels.append(labels.cpu())
        self._held += len(priority)
        if self._held > 2 * self._most:
            self._prune()

    def _prune(self) -> None:
        """Keep the smallest priorities, in ascending order."""
        priority = np.concatenate(self._priority)
        order = np.argsort(priority, kind="stable")[: self._most]
        rows = torch.from_numpy(order)
        self._priority = [priority[order]]
        self._logits, self._labels = [torch.cat(self._logits)[rows]], [torch.cat(self._labels)[rows]]
        self._held = len(order)
        if self._held == self._most:
            self._highest = self._priority[0][-1]
