"""Streaming: one small stateful shell around measures that are plain data and pure functions.

A measure says which sums it needs, how a batch adds to them, and what they mean; counts are int64 and sums float64.
Because states only ever add up, batches, workers and ranks may come in any grouping.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import save as to_safetensors
from torch import Tensor

from counterpoise._files import read_safetensors, replacing
from counterpoise.metrics.inputs import PredictionBatch, prediction_table

Sums = dict[str, Tensor]
STATE_VERSION = 1

Result_co = TypeVar("Result_co", covariant=True)


class Measure(Protocol[Result_co]):
    """What can be streamed: a frozen dataclass whose fields are its configuration."""

    def zeros(self) -> Sums:
        """The sums of no samples."""

    def sums(self, batch: PredictionBatch) -> Sums:
        """The sums of one batch."""

    def compute(self, sums: Sums) -> Result_co:
        """The result from the sums of everything; `ValueError` where there were no samples."""


class Stream(Generic[Result_co]):
    """Feeds batches to a measure; `sums` holds what has been seen.

    >>> from counterpoise.metrics import Performance
    >>> stream = Stream(Performance())
    >>> stream.update(probabilities=[[0.9, 0.1], [0.4, 0.6]], labels=[0, 0])
    >>> stream.compute()["accuracy"].value
    0.5
    """

    def __init__(self, measure: Measure[Result_co]) -> None:
        self.measure = measure
        self.sums = measure.zeros()

    def update(
        self,
        *,
        logits: Any = None,
        probabilities: Any = None,
        labels: Any = None,
        valid: Any = None,
        in_distribution: Any = None,
    ) -> None:
        """Add a batch; arguments as in `counterpoise.metrics.inputs.prediction_table`.

        `valid` marks the samples that count: False for those that a distributed sampler repeated to fill its last
        batch (`unpadded`).
        """
        table = prediction_table(
            logits=logits, probabilities=probabilities, labels=labels, valid=valid, in_distribution=in_distribution
        )
        self.update_checked(table.checked_rows())

    def update_checked(self, batch: PredictionBatch) -> None:
        """Add a batch that has been checked."""
        self.add_sums(self.measure.sums(batch))

    def compute(self) -> Result_co:
        """The result of all samples so far."""
        return self.measure.compute(self.sums)

    def merge(self, other: "Stream[Any]") -> None:
        """Add what another stream of the same measure has seen."""
        self._require_same_measure(repr(other.measure))
        self.add_sums(other.sums)

    def reset(self) -> None:
        """Forget all samples."""
        self.sums = self.measure.zeros()

    def sync(self, group: dist.ProcessGroup | None = None) -> "Stream[Result_co]":
        """A stream of what all ranks of the group (by default all) have seen. This one keeps its own part."""
        synced = Stream(self.measure)
        # A rank that has seen nothing has its zeros on the host, where NCCL does not look.
        on_gpu = dist.get_backend(group) == dist.Backend.NCCL
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        for name, value in self.sums.items():
            total = value.to(device, copy=True)
            dist.all_reduce(total, group=group)
            synced.sums[name] = total
        return synced

    def state_dict(self) -> dict[str, Any]:
        """Everything that has been seen, as tensors, with the measure that it belongs to."""
        return {"version": STATE_VERSION, "measure": repr(self.measure), "sums": dict(self.sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace what has been seen by a state of the same measure."""
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"state has version {state.get('version')!r}, this release reads {STATE_VERSION}")
        self._require_same_measure(state.get("measure", "an unnamed measure"))
        zeros, loaded = self.measure.zeros(), state.get("sums", {})
        if set(loaded) != set(zeros):
            raise ValueError(f"state has the sums {sorted(loaded)}, {self.measure!r} needs {sorted(zeros)}")
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
        data = to_safetensors(tensors, metadata={"version": str(STATE_VERSION), "measure": repr(self.measure)})
        with replacing(path) as temporary:
            temporary.write_bytes(data)

    def load(self, path: str | Path) -> None:
        """Replace what has been seen by the sums in a file that `save` wrote for the same measure."""
        metadata, sums = read_safetensors(path)
        version = metadata.get("version", "")
        self.load_state_dict(
            {
                "version": int(version) if version.isdecimal() else version,
                "measure": metadata.get("measure", ""),
                "sums": sums,
            }
        )

    def add_sums(self, sums: Sums) -> None:
        """Add what `measure.sums` gave for a batch, computed wherever."""
        # The state follows the predictions to their device.
        self.sums = {name: value.to(sums[name].device) + sums[name] for name, value in self.sums.items()}

    def _require_same_measure(self, other: str) -> None:
        if other != repr(self.measure):
            raise ValueError(f"cannot combine {self.measure!r} with {other}: their settings differ")


def unpadded(*, dataset_size: int, rank: int, world_size: int, first: int, length: int) -> Tensor:
    """Which of a rank's samples `first .. first + length - 1` are real, under `torch.utils.data.DistributedSampler`.

    The sampler deals positions out in turn and repeats samples to give every rank as many; the repeats are the
    positions from `dataset_size` on.

    >>> unpadded(dataset_size=5, rank=1, world_size=2, first=0, length=3)
    tensor([ True,  True, False])
    """
    return torch.arange(first, first + length) * world_size + rank < dataset_size
