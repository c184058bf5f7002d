"""The random state of every rank, saved and restored with the training state.

Order and augmentation do not depend on it; dropout, stochastic depth and whatever a user's model draws do.
"""

import random
from typing import Any

import lightning as L  # noqa: N812
import numpy as np
import torch
from torch import Tensor

from counterpoise.training.distributed import gathered, world_size


def random_state() -> dict[str, Any]:
    """The state of all generators of this process, as tensors and numbers."""
    version, internal, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        # Of this process' own device: others, that it never uses, may not be there when it goes on.
        "cuda": [torch.cuda.get_rng_state()] if _uses_cuda() else [],
        "mps": [torch.mps.get_rng_state()] if torch.backends.mps.is_available() else [],
        "numpy": [torch.from_numpy(np.asarray(keys, np.int64)), int(position), int(has_gauss), float(cached)],
        "python": [version, list(internal), gauss],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what `random_state` gave.

    >>> before = random_state()
    >>> first = torch.rand(1), random.random(), np.random.random()
    >>> set_random_state(before)
    >>> first == (torch.rand(1), random.random(), np.random.random())
    True
    """
    torch.set_rng_state(state["torch"])
    if state["cuda"] and _uses_cuda():
        torch.cuda.set_rng_state(state["cuda"][0])
    if torch.backends.mps.is_available() and state.get("mps"):
        torch.mps.set_rng_state(state["mps"][0])
    keys, position, has_gauss, cached = state["numpy"]
    words: Tensor = keys
    np.random.set_state(("MT19937", words.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class KeepRandomState(L.Callback):
    """Saves the generators of all ranks in checkpoints, and restores each rank's own when training goes on."""

    def __init__(self) -> None:
        self._restored: list[dict[str, Any]] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The generators of all ranks; a collective."""
        return {"ranks": gathered(random_state())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the states until training starts: setting up draws random numbers too."""
        self._restored = state_dict["ranks"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore this rank's generators."""
        if self._restored is not None and len(self._restored) == world_size():
            set_random_state(self._restored[trainer.global_rank])
        self._restored = None
