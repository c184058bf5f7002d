"""The sums of some samples: what their scores and paired comparisons are computed from."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from counterpoise.metrics.batch import PredictionBatch
from counterpoise.metrics.keys import Keys, jackknife_group
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.protocol import Metric, Sums, is_measurable
from counterpoise.metrics.ranks import LabelledColumns, Ranks
from counterpoise.metrics.standard import standard_metrics
from counterpoise.metrics.trial import TrialSample

OOD = "ood"
"""Name of a set of OOD samples that has none of its own."""

_MOST_WAITING, _MOST_VALUES_WAITING = 1 << 13, 1 << 22
"""Samples, and probabilities of theirs: sums of 100 groups take as long for a hundred samples as for thousands, so that
small batches wait for others."""
_LARGEST_GROUPED_SUMS = 1 << 21
"""Sums are kept by jackknife group up to this many numbers each: 1,398 classes in 15 bins, 84 MB a model."""


def measurable(options: ScoreOptions, *, classes: int) -> list[Metric]:
    """Of the metrics in addition to the standard ones, those that can be measured."""
    return [metric for metric in options.metrics if is_measurable(metric, classes=classes)]


class Headline:
    """Everything about labelled samples, and the OOD samples beside them."""

    def __init__(self, *, classes: int, options: ScoreOptions) -> None:
        self.standard = standard_metrics(options, classes=classes)
        own = [metric for metric in self.standard if metric is not None]
        self.metrics = (*own, *measurable(options, classes=classes))
        self._groups, self._sums = options.groups, list[Sums]()
        self._waiting: list[tuple[PredictionBatch, Tensor]] = []
        self._rows = 0
        self.ranks = Ranks(score=options.score, exact_samples=options.exact_samples)
        self.trial = TrialSample(classes)

    def add(self, batch: PredictionBatch, keys: Keys, groups: Keys, *, options: ScoreOptions) -> None:
        """Add labelled samples, and the code of the group of each."""
        group = jackknife_group(keys, self._groups)
        if self._groups == 1 or len(batch) >= _MOST_WAITING:
            self._measure_waiting()
            self._measure(batch, group)
        else:
            self._wait(batch, group)
        confidence, hits = (column.cpu() for column in batch.top())
        scores = None if options.score == "max_softmax" else batch.score(options.score).cpu()
        self.ranks.add(LabelledColumns(confidence, hits, scores, group))
        if batch.log_label is not None and not options.clustered:
            self.trial.add(batch, keys, groups)

    def merge(self, other: "Headline") -> None:
        if other.sums and not self.sums:
            self._sums = [{name: value.clone() for name, value in sums.items()} for sums in other.sums]
        elif other.sums:
            self._accumulate(other.sums)
        self.ranks.merge(other.ranks)
        self.trial.merge(other.trial)

    @property
    def sums(self) -> list[Sums]:
        """Of each metric, by jackknife group; none before the first sample."""
        self._measure_waiting()
        return self._sums

    def settle(self) -> None:
        """Measure what waits; sums of floats depend on when that is."""
        self._measure_waiting()
        self.ranks.settle()
        self.trial.settle()

    def _wait(self, batch: PredictionBatch, group: Tensor) -> None:
        if self._waiting and _known(self._waiting[0][0]) != _known(batch):
            self._measure_waiting()
        own = batch.take(torch.arange(len(batch), device=batch.probabilities.device))  # the caller may reuse its memory
        self._waiting.append((own, group))
        self._rows += len(batch)
        if self._rows >= _MOST_WAITING or self._rows * batch.probabilities.shape[-1] >= _MOST_VALUES_WAITING:
            self._measure_waiting()

    def _measure_waiting(self) -> None:
        if self._waiting:
            (batches, groups), self._waiting, self._rows = zip(*self._waiting, strict=True), [], 0
            self._measure(PredictionBatch.joined(batches), torch.cat(groups))

    def _measure(self, batch: PredictionBatch, group: Tensor) -> None:
        found = list(_batch_sums(self.metrics, batch, group, self._groups))
        if self._sums:
            self._accumulate(found)
        else:
            self._sums = found

    def _accumulate(self, found: list[Sums]) -> None:
        for sums, each in zip(self._sums, found, strict=True):
            accumulate(sums, each)

    def total(self, metric: int) -> Sums:
        return {name: value.sum(0) for name, value in self.sums[metric].items()}

    def grouped(self) -> Iterator[tuple[Metric, Sums]]:
        """The metrics whose sums are kept by jackknife group, with their sums `[G, ...]`."""
        for metric, sums in zip(self.metrics, self.sums, strict=True):
            if len(next(iter(sums.values()))) > 1:
                yield metric, sums


def _known(batch: PredictionBatch) -> tuple[Any, ...]:
    """What batches must have in common to be joined."""
    own = batch.probabilities
    return own.dtype, own.device, batch.logits is None, batch.log_label is None


def _batch_sums(metrics: Sequence[Metric], batch: PredictionBatch, group: Tensor, groups: int) -> Iterator[Sums]:
    """Sums of one batch, `[groups, ...]` each; of one group alone where many would be too large."""
    parts: list[PredictionBatch | None] = []
    for metric in metrics:
        if groups == 1 or not fits(metric.zeros(), groups):
            yield {name: value.cpu().unsqueeze(0) for name, value in metric.sums(batch).items()}
            continue
        if not parts:
            order, sizes = torch.argsort(group, stable=True), torch.bincount(group, minlength=groups).tolist()
            rows = torch.split(order.to(batch.probabilities.device), sizes)
            parts = [batch.take(each) if len(each) else None for each in rows]
        empty = metric.zeros()
        each = [empty if part is None else metric.sums(part) for part in parts]
        yield {name: torch.stack([found[name].cpu() for found in each]) for name in empty}


def fits(zeros: Sums, groups: int) -> bool:
    """Whether sums may be kept for each of so many groups."""
    return groups * max(value.numel() for value in zeros.values()) <= _LARGEST_GROUPED_SUMS


def accumulate(sums: Sums, found: Sums) -> None:
    """Add sums to others."""
    for name, value in sums.items():
        value += found[name].to(value.device)
