"""How a process leaves its Gloo group; for scripts that tests start."""

import gc
from functools import partial
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def group_threads() -> list[str]:
    """The names of this process' threads that belong to Gloo."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return [name for name in names if "gloo" in name]


def watch_models() -> list[int]:
    """A list that gets, whenever the group is destroyed, how many models still hold it."""
    holders: list[int] = []
    dist.destroy_process_group = partial(_destroy, dist.destroy_process_group, holders)
    return holders


def _destroy(really, holders: list[int], group: dist.ProcessGroup | None = None) -> None:
    if group is None:  # all of them
        holders.append(sum(isinstance(each, DistributedDataParallel) for each in gc.get_objects()))
    really(group)
