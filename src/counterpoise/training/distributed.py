"""Several processes: who is who, equal buffers, sharded parameters."""

import atexit
import gc
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import lightning as L  # noqa: N812
import torch
import torch.distributed as dist

# DistributedDataParallel imports this, and its functions' defaults are the default group at that moment: imported after
# the group was made, they keep the group and its threads alive beyond destroy_process_group.
import torch.distributed.nn
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from counterpoise.objectives import Role


def world_size() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first_rank() -> bool:
    """Whether this process writes what is written once."""
    return world_size() == 1 or dist.get_rank() == 0


def is_first_process() -> bool:
    """The same before the ranks have found each other: by what a launcher said."""
    rank: int = rank_zero_only.rank  # type: ignore[attr-defined]
    return rank == 0


def settle_rank(processes: int) -> None:
    """Be the first process of a run for one, whatever rank the environment names: it may be that of a job array."""
    if processes == 1:
        rank_zero_only.rank = 0  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Place:
    """Where a process stands among those that share its batches.

    Attributes:
        rank: among them.
        world: how many they are.
        group: of them, or None where this process is alone.
        role: what it does where auxiliaries train in other processes; None where all do the same.
    """

    rank: int
    world: int
    group: dist.ProcessGroup | None
    role: Role | None = None

    @property
    def has_primary(self) -> bool:
        return self.role is None or self.role.auxiliary is None


def place_in(trainer: L.Trainer) -> Place:
    """That of this process, once the ranks have found each other."""
    role: Role | None = getattr(trainer.strategy, "role", None)
    if role is not None:
        return Place(role.rank, role.world, role.group, role)
    return Place(trainer.global_rank, trainer.world_size, dist.group.WORLD if world_size() > 1 else None)


@cache
def leave_group_at_exit() -> None:
    """Destroy the process group when the interpreter ends, though whoever made it does not.

    A thread of Gloo that drops a tensor while the interpreter is taken down aborts the process. Lightning sees to NCCL
    alone.
    """
    atexit.register(_leave_group)


def _leave_group() -> None:
    if dist.is_initialized():
        # The engine's objects hold the group in cycles, and it ends its threads when nobody holds it. They must not be
        # the last to hold it: what DistributedDataParallel has in C++ waits for those threads without letting go of the
        # interpreter's lock, which a thread that has just ended a collective waits for.
        gc.collect()
        dist.destroy_process_group()


def gathered(value: Any) -> list[Any]:
    """What every rank holds, by rank; a collective."""
    if world_size() == 1:
        return [value]
    everything: list[Any] = [None] * world_size()
    dist.all_gather_object(everything, value)
    return everything


@torch.no_grad()
def average_buffers(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give every rank of a group the mean of their floating-point buffers, such as BatchNorm's running statistics.

    Ranks see different shares of each batch, so their statistics differ. They are exponential averages, which are
    linear: that they are averaged now changes nothing about what an average at a later time would give.
    """
    if group is None:
        return
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([buffer.reshape(-1).float() for buffer in buffers])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    means = torch.split(flat, [buffer.numel() for buffer in buffers])
    for buffer, mean in zip(buffers, means, strict=True):
        buffer.copy_(mean.view_as(buffer))


def shard(models: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Shard models over the ranks, one FSDP2 unit for each child that has parameters."""
    from torch.distributed.fsdp import fully_shard

    data_parallel = mesh["data_parallel"]
    for model in models:
        for child in model.children():
            if any(parameter.requires_grad for parameter in child.parameters()):
                fully_shard(child, mesh=data_parallel)
        fully_shard(model, mesh=data_parallel)
