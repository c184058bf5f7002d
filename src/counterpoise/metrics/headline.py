"""The sums of some samples: what their scores and paired comparisons are computed from."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from counterpoise.metrics.inputs import PredictionBatch
from counterpoise.metrics.keys import Keys, jackknife_group
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.protocol import Metric, Sums, is_measurable
from counterpoise.metrics.ranks import LabelledColumns, Ranks
from counterpoise.metrics.standard import standard_metrics
from counterpoise.metrics.trial import TrialSample

OOD = "ood"
"""Name of a set of OOD samples that has none of its own."""


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
        self.sums: list[Sums] = []
        self.ranks = Ranks(score=options.score, exact_samples=options.exact_samples)
        self.trial = TrialSample(classes)

    def add(self, batch: PredictionBatch, keys: Keys, groups: Keys, *, options: ScoreOptions) -> None:
        """Add labelled samples, and the code of the group of each."""
        group = jackknife_group(keys, options.groups)
        found = list(_batch_sums(self.metrics, batch, group, options.groups))
        if self.sums:
            self.accumulate(found)
        else:
            self.sums = found
        confidence, hits = (column.cpu() for column in batch.top())
        scores = None if options.score == "max_softmax" else batch.score(options.score).cpu()
        self.ranks.add(LabelledColumns(confidence, hits, scores, group))
        if batch.log_label is not None and not options.clustered:
            self.trial.add(batch, keys, groups)

    def merge(self, other: "Headline") -> None:
        if other.sums and not self.sums:
            self.sums = [{name: value.clone() for name, value in sums.items()} for sums in other.sums]
        elif other.sums:
            self.accumulate(other.sums)
        self.ranks.merge(other.ranks)
        self.trial.merge(other.trial)

    def accumulate(self, found: list[Sums]) -> None:
        for sums, each in zip(self.sums, found, strict=True):
            accumulate(sums, each)

    def total(self, metric: int) -> Sums:
        return {name: value.sum(0) for name, value in self.sums[metric].items()}

    def grouped(self) -> Iterator[tuple[Metric, Sums]]:
        """The metrics whose sums are kept by jackknife group, with their sums `[G, ...]`."""
        for metric, sums in zip(self.metrics, self.sums, strict=True):
            if len(next(iter(sums.values()))) > 1:
                yield metric, sums


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
