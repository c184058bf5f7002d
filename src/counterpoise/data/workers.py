"""Processes that prepare batches, and deliver them in order."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader


def in_workers(
    dataset: Any, *, workers: int, device: torch.device, indices: Sequence[Any] | None = None
) -> "DataLoader[Any]":
    """What a dataset of whole batches gives, in its order, from so many processes; 0 for this one.

    With `indices` it gives what the dataset has for each of them, and the processes stay for the next iteration: where
    none is forked, starting one takes as long as importing torch. Indices may change between iterations.
    """
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=indices,
        persistent_workers=indices is not None and workers > 0,
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

    # A signal to the whole process group is for the reader to obey: it may need batches to finish its step.
    if sys.platform == "linux" and parent is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_when_told_by, args=(parent.pid,), daemon=True).start()
    threading.Thread(target=watch, daemon=True).start()


def _end_when_told_by(reader: int | None) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != reader:
        pass
    os._exit(1)
