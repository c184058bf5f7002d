"""A metric as somebody else would write it: nothing of it is in the package."""

from dataclasses import dataclass

import torch

from counterpoise.functional.intervals import wilson_interval
from counterpoise.metrics import Estimate, MetricInfo


@dataclass(frozen=True)
class TopTwoAccuracy:
    """How often the label is one of the two most probable classes."""

    info = {"top2_accuracy": MetricInfo("Top-2 accuracy", 100, "%", higher_is_better=True)}  # noqa: RUF012

    def zeros(self):
        return {name: torch.zeros((), dtype=torch.int64) for name in ("count", "hits")}

    def sums(self, batch):
        labels = batch.required_labels()
        found = (batch.probabilities.topk(2, dim=-1).indices == labels.unsqueeze(-1)).any(-1)
        return {"count": torch.tensor(len(labels)), "hits": found.sum()}

    def compute(self, sums, *, level):
        count, hits = int(sums["count"]), int(sums["hits"])
        if not count:
            raise ValueError("there are no samples")
        return {"top2_accuracy": Estimate.of(hits / count, wilson_interval(hits, count, level=level))}
