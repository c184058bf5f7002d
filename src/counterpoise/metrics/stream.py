"""`Stream`: one small stateful shell around one metric.

Because sums only ever add up, batches, workers and ranks may come in any grouping.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoise._choices import require_level
from counterpoise._files import read_safetensors, write_safetensors
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics.batch import PredictionBatch
from counterpoise.metrics.inputs import prediction_table
from counterpoise.metrics.protocol import Estimates, Metric, Sums, require_metric

STATE_VERSION = 1


class Stream:
    """Feeds batches to a metric; `sums` holds what has been seen.

    >>> from counterpoise.metrics import Performance
    >>> stream = Stream(Performance())
    >>> stream.update(probabilities=[[0.9, 0.1], [0.4, 0.6]], labels=[0, 0])
    >>> stream.compute()["accuracy"].value
    0.5
    """

    def __init__(self, metric: Metric) -> None:
        require_metric(metric)
        self.metric = metric
        self.sums = metric.zeros()

    def __repr__(self) -> str:
        return f"Stream({self.metric})"

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
        """Add a batch; arguments as in `counterpoise.metrics.inputs.prediction_table`.

        `valid` marks the samples that count: False for those that a distributed sampler repeated to fill its last
        batch (`unpadded`).
        """
        table = prediction_table(
            logits=logits,
            probabilities=probabilities,
            confidence=confidence,
            labels=labels,
            correct=correct,
            valid=valid,
            in_distribution=in_distribution,
        )
        self.update_checked(table.checked_rows())

    def update_checked(self, batch: PredictionBatch) -> None:
        """Add a batch that has been checked."""
        self.add_sums(self.metric.sums(batch))

    def compute(self, *, level: float = DEFAULT_LEVEL) -> Estimates:
        """The result of all samples so far, with intervals of this level."""
        require_level(level)
        return self.metric.compute(self.sums, level=level)

    def merge(self, other: "Stream") -> None:
        """Add what another stream of the same metric has seen."""
        if not isinstance(other, Stream):
            raise TypeError(f"a Stream merges with another Stream, got {type(other).__name__}")
        self._require_same_metric(repr(other.metric))
        self.add_sums(other.sums)

    def reset(self) -> None:
        """Forget all samples."""
        self.sums = self.metric.zeros()

    def sync(self, group: dist.ProcessGroup | None = None) -> "Stream":
        """A stream of what all ranks of the group (by default all) have seen. This one keeps its own part."""
        synced = Stream(self.metric)
        # A rank that has seen nothing has its zeros on the host, where NCCL does not look.
        device = collective_device(group)
        for name, value in self.sums.items():
            total = value.to(device, copy=True)
            dist.all_reduce(total, group=group)
            synced.sums[name] = total
        return synced

    def state_dict(self) -> dict[str, Any]:
        """Everything that has been seen, as tensors, with the metric that it belongs to."""
        return {"version": STATE_VERSION, "metric": repr(self.metric), "sums": dict(self.sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace what has been seen by a state of the same metric."""
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"state has version {state.get('version')!r}, this release reads {STATE_VERSION}")
        self._require_same_metric(
            state.get("metric") or state.get("measure", "an unnamed metric")
        )  # as it was once called
        zeros, loaded = self.metric.zeros(), state.get("sums", {})
        if set(loaded) != set(zeros):
            raise ValueError(f"state has the sums {sorted(loaded)}, {self.metric!r} needs {sorted(zeros)}")
        for name, zero in zeros.items():
            if loaded[name].shape != zero.shape or loaded[name].dtype != zero.dtype:
                raise ValueError(
                    f"sum {name!r} has shape {list(loaded[name].shape)} and dtype {loaded[name].dtype}, "
                    f"expected {list(zero.shape)} and {zero.dtype}"
                )
        self.sums = {name: loaded[name].clone() for name in zeros}

    def save(self, path: str | Path) -> None:
        """Write the sums as safetensors, atomically: a worker's part, to be merged elsewhere."""
        tensors = {name: value.cpu().contiguous() for name, value in self.sums.items()}
        write_safetensors(path, tensors, {"version": str(STATE_VERSION), "metric": repr(self.metric)})

    def load(self, path: str | Path) -> None:
        """Replace what has been seen by the sums in a file that `save` wrote for the same metric."""
        metadata, sums = read_safetensors(path)
        version = metadata.get("version", "")
        self.load_state_dict(
            {
                "version": int(version) if version.isdecimal() else version,
                "metric": metadata.get("metric") or metadata.get("measure", ""),
                "sums": sums,
            }
        )

    def add_sums(self, sums: Sums) -> None:
        """Add what `metric.sums` gave for a batch, computed wherever."""
        # The state follows the predictions to their device.
        self.sums = {name: value.to(sums[name].device) + sums[name] for name, value in self.sums.items()}

    def _require_same_metric(self, other: str) -> None:
        if other != repr(self.metric):
            raise ValueError(f"cannot combine {self.metric!r} with {other}: their settings differ")


def collective_device(group: dist.ProcessGroup | None) -> torch.device:
    """Where the group's backend looks for tensors."""
    on_gpu = dist.get_backend(group) == dist.Backend.NCCL
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def unpadded(*, dataset_size: int, rank: int, world_size: int, first: int, length: int) -> Tensor:
    """Which of a rank's samples `first .. first + length - 1` are real, under `torch.utils.data.DistributedSampler`.

    The sampler deals positions out in turn and repeats samples to give every rank as many; the repeats are the
    positions from `dataset_size` on.

    >>> unpadded(dataset_size=5, rank=1, world_size=2, first=0, length=3)
    tensor([ True,  True, False])
    """
    return torch.arange(first, first + length) * world_size + rank < dataset_size
