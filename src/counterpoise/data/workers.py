"""Processes that prepare batches, and deliver them in order."""

import multiprocessing
import multiprocessing.connection
import os
import threading
from typing import Any

import torch
from torch.utils.data import DataLoader


def in_workers(dataset: Any, *, workers: int, device: torch.device) -> "DataLoader[Any]":
    """What a dataset of whole batches gives, in its order, from so many processes; 0 for this one."""
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # or starting workers would draw from the global one
        worker_init_fn=_end_with_parent,
    )


def _end_with_parent(_: int) -> None:
    """Let a worker end when the process that reads from it is killed; one that a fork server started would stay."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            multiprocessing.connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
