"""What a metric is: a frozen dataclass of its configuration, with three pure functions.

It says which sums it needs, how a batch adds to them, and what they mean; counts are int64 and sums float64. Because
sums only ever add up, batches, files, workers and ranks may come in any grouping.
"""

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics.batch import PredictionBatch
from counterpoise.metrics.estimates import Estimate, MetricInfo

Sums = dict[str, Tensor]
Estimates = dict[str, Estimate]


class NoSamplesError(ValueError):
    """A metric of nothing was asked for."""

    def __init__(self) -> None:
        super().__init__("there are no samples: call update() before compute()")


class Metric(Protocol):
    """What `evaluate`, `Stream` and `ScoreState` take.

    A metric may also have `needs`: "probabilities", the default, of all classes, or "confidence", of the predicted
    class. Where predictions lack what it needs, it is left out and named in `Scores.missing`.

    It may also have `contrasts(sums)`, which returns a `Contrast` for each of its names from sums with any
    leading axes. Models are compared by it where it is there; otherwise `compute` is called once for each jackknife
    group, and its values are taken.
    """

    @property
    def info(self) -> Mapping[str, MetricInfo]:
        """Title, unit and better direction of every estimate that `compute` returns."""

    def zeros(self) -> Sums:
        """The sums of no samples."""

    def sums(self, batch: PredictionBatch) -> Sums:
        """The sums of one batch."""

    def compute(self, sums: Sums, *, level: float) -> Estimates:
        """Estimates from the sums of all samples, with intervals that cover with probability `level`.

        `ValueError` if there were no samples, or if the metric is not defined on them.
        """


def require_metric(metric: Metric) -> None:
    """Reject what has no functions of a metric, before any sample is measured."""
    if not all(callable(getattr(metric, name, None)) for name in ("zeros", "sums", "compute")):
        raise TypeError(f"expected a metric, such as Performance(), got {metric!r:.80}")
    parameters = signature(metric.compute).parameters.values()
    if not any(each.name == "level" or each.kind is Parameter.VAR_KEYWORD for each in parameters):
        raise TypeError(f"compute of {metric!r:.80} has no level; write `def compute(self, sums, *, level):`")


def is_measurable(metric: Metric, *, classes: int) -> bool:
    """Whether predictions of so many classes have what the metric needs; 1 stands for a confidence alone."""
    return classes > 1 or getattr(metric, "needs", "probabilities") == "confidence"


class Contrast(NamedTuple):
    """What two models are compared by, `[...]` each.

    Attributes:
        value: of the metric, without the bias that a plug-in value may have.
        bias: bound of how far it may still lie too low on average.
    """

    value: Tensor
    bias: Tensor


def contrasts_of(metric: Metric, sums: Sums) -> dict[str, Contrast]:
    """The contrasts `[G]` of each of `[G, ...]` sums."""
    vectorised = getattr(metric, "contrasts", None)
    if vectorised is not None:
        found: dict[str, Contrast] = vectorised(sums)
        return found
    groups = len(next(iter(sums.values())))
    each = [_values(metric, {name: value[group] for name, value in sums.items()}) for group in range(groups)]
    values = {key: torch.tensor([part[key] for part in each], dtype=torch.float64) for key in metric.info}
    return {key: Contrast(value, torch.zeros_like(value)) for key, value in values.items()}


def _values(metric: Metric, sums: Sums) -> dict[str, float]:
    try:
        return {key: estimate.value for key, estimate in metric.compute(sums, level=DEFAULT_LEVEL).items()}
    except ValueError:  # all samples that define it are in the group that is left out
        return dict.fromkeys(metric.info, float("nan"))
