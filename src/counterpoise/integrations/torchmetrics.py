"""Any metric as a `torchmetrics.Metric`, for Lightning's `self.log` and for `MetricCollection`."""

import re
from math import nan
from typing import Any

from torch import Tensor, float64, tensor

from counterpoise._choices import require_level
from counterpoise._extras import require
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics import Metric
from counterpoise.metrics.inputs import prediction_table
from counterpoise.metrics.protocol import Estimates, NoSamplesError

_torchmetrics = require("torchmetrics", extra="torchmetrics", purpose="the torchmetrics adapter")


class StreamedMetric(_torchmetrics.Metric):  # type: ignore[misc, name-defined]
    """A metric with torchmetrics' life cycle: its sums are states that are reduced by addition.

    `compute` returns the values alone, as tensors, because that is what loggers take; `estimates` returns them with
    their intervals. Both are over all ranks, so every rank must call them. `process_group` and `sync_on_compute` are
    torchmetrics' own.

    >>> from counterpoise.metrics import TopLabelCalibration
    >>> metric = StreamedMetric(TopLabelCalibration(bins=15))
    >>> metric.update(probabilities=tensor([[0.95, 0.05], [1.0, 0.0]]), labels=tensor([0, 1]))
    >>> metric.compute()["ece"]
    tensor(0.4750, dtype=torch.float64)
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = None

    def __init__(self, metric: Metric, *, process_group: Any = None, sync_on_compute: bool = True) -> None:
        super().__init__(process_group=process_group, sync_on_compute=sync_on_compute)
        self.metric = metric
        # A MetricCollection shares the states of metrics that are named alike and equal after the first batch: errors
        # and OOD images are, as long as there were none. So each has the metric, with its options, in its name.
        own = re.sub(r"\W+", "_", repr(metric))
        self._names = {name: f"{own}{name}" for name in metric.zeros()}
        for name, zero in metric.zeros().items():
            self.add_state(self._names[name], default=zero, dist_reduce_fx="sum")

    def update(
        self,
        *,
        logits: Any = None,
        probabilities: Any = None,
        confidence: Any = None,
        labels: Any = None,
        correct: Any = None,
        valid: Any = None,
        in_distribution: Any = None,
    ) -> None:
        """Add a batch; arguments as in `counterpoise.Stream.update`."""
        table = prediction_table(
            logits=logits,
            probabilities=probabilities,
            confidence=confidence,
            labels=labels,
            correct=correct,
            valid=valid,
            in_distribution=in_distribution,
        )
        sums = self.metric.sums(table.checked_rows())
        for name, own in self._names.items():
            state = getattr(self, own)
            setattr(self, own, state + sums[name].to(state.device))

    def estimates(self, *, level: float = DEFAULT_LEVEL) -> Estimates:
        """All values with their intervals of this level, over all ranks."""
        require_level(level)
        # What torchmetrics does around `compute`, and there alone.
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
        ):
            return self._estimates(level)

    def compute(self) -> dict[str, Tensor]:
        """All values as float64 scalars, by name; NaN of no samples, such as of a batch that is padding alone."""
        try:
            found = {str(key): estimate.value for key, estimate in self._estimates(DEFAULT_LEVEL).items()}
        except NoSamplesError:
            found = {str(key): nan for key in self.metric.info}
        return {key: tensor(value, dtype=float64) for key, value in found.items()}

    def _estimates(self, level: float) -> Estimates:
        """Of the states as they are, of one rank or of all."""
        return self.metric.compute({name: getattr(self, own) for name, own in self._names.items()}, level=level)
