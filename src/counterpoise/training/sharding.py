"""Runs whose state is sharded over the ranks (FSDP2): each of them saves and loads its own part."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor import empty as empty_dtensor
from torch.optim import Optimizer

from counterpoise._files import Written, write_verified
from counterpoise.training.checkpoints import read_unsharded, remove_checkpoint
from counterpoise.training.distributed import is_first_rank
from counterpoise.training.part_files import PartReader, PartWriter, map_tensors
from counterpoise.training.parts import STATE
from counterpoise.training.saving import VerifiedCheckpointIO


class ShardedCheckpointIO(VerifiedCheckpointIO):
    """Writes a checkpoint as a folder, to which every rank adds its part while training goes on; all ranks call it."""

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None
        self._pending: Future[Any] | None = None

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: Callable[[Written], None] | None = None,
    ) -> None:
        """Write what is not sharded, copy what is, and leave the writing of that to a thread."""
        self.finish()
        folder, shards = Path(path), dict[str, Tensor]()

        def kept(place: str, tensor: Tensor) -> Tensor:
            if not isinstance(tensor, DTensor):
                return tensor
            shards[place] = tensor.detach()
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

        unsharded = map_tensors(checkpoint, kept)
        others = {}
        if is_first_rank():
            remove_checkpoint(folder)
            folder.mkdir()
            # Now and here, because callbacks and loops go on changing what it refers to. It is small.
            others[STATE] = write_verified(folder / STATE, lambda file: torch.save(unsharded, file))
        if self._group is None:
            # Of its own: in that of training, the thread's collectives would meet those of the next steps. Gloo,
            # because objects are sent, which are on the host.
            self._group = dist.new_group(backend="gloo")
        pending = async_save(
            shards,
            storage_writer=PartWriter(folder, others=others, whole=storage_options),
            process_group=self._group,
        )
        assert isinstance(pending, Future)
        self._pending = pending

    def finish(self) -> None:
        """Wait until all ranks have written, and the first has named the checkpoint."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except CheckpointException as error:
            rank, (cause, _) = min(error.failures.items())
            raise OSError(f"rank {rank} could not write its part of the checkpoint: {cause}") from cause

    def teardown(self) -> None:
        """Wait for the last checkpoint, and leave the group."""
        try:
            self.finish()
        finally:
            group, self._group = self._group, None
            if group is not None:
                dist.destroy_process_group(group)


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for FSDP2, with checkpoints that hold no pickle and can be resumed by any number of ranks.

    The states of module and optimizer are taken as torch gives them, in which sharded tensors are DTensors: names of
    parameters and positions in the optimizer are those of an unsharded run.
    """

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.lightning_module is not None
        return self.lightning_module.state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        own = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        return own.state_dict()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:  # noqa: FBT001
        """Of either form, saved by any number of ranks; each reads its own shards."""
        path = Path(self.broadcast(checkpoint_path))
        state = read_unsharded(path, mapped=True)
        module = self.lightning_module
        assert module is not None
        missing: dict[str, Tensor] = {}

        def placed(like: Tensor | None, place: str, saved: Tensor) -> Tensor:
            tensor = _placed(saved, like)
            if saved.is_meta:
                missing[place] = tensor
            return tensor

        own = module.state_dict()
        weights = {
            name: placed(own.get(name), f"state_dict/{name}", saved) for name, saved in state.pop("state_dict").items()
        }
        optimizers = state.pop("optimizer_states")
        for index, (optimizer, saved) in enumerate(zip(self.optimizers, optimizers, strict=True)):
            parameters = _by_key(saved, optimizer)
            for key, values in saved["state"].items():
                place = f"optimizer_states/{index}/state/{key}"
                saved["state"][key] = map_tensors(values, partial(placed, parameters.get(key)), place)
        if missing:
            load(missing, storage_reader=PartReader(path))
        module.load_state_dict(weights, strict=module.strict_loading)
        for optimizer, saved in zip(self.optimizers, optimizers, strict=True):
            optimizer.load_state_dict(saved)
        return state

    def teardown(self) -> None:
        """Wait for the last checkpoint, which Lightning's strategy does not."""
        self.checkpoint_io.teardown()
        super().teardown()


def _placed(saved: Tensor, like: Tensor | None) -> Tensor:
    """A saved tensor, sharded as the one whose place it takes; without data yet if it has none."""
    # What an optimizer keeps besides, such as a count of steps, every rank has.
    if not isinstance(like, DTensor) or not (saved.is_meta or saved.shape == like.shape):
        return torch.empty_like(saved, device="cpu") if saved.is_meta else saved
    if saved.is_meta:
        return empty_dtensor(
            *saved.shape, dtype=saved.dtype, device_mesh=like.device_mesh, placements=list(like.placements)
        )
    return distribute_tensor(saved, like.device_mesh, like.placements, src_data_rank=None)


def _by_key(saved: dict[str, Any], optimizer: Optimizer) -> dict[Any, Tensor]:
    """The optimizer's parameters by what its saved state calls them: as torch does it, by their order."""
    keys = chain.from_iterable(group["params"] for group in saved["param_groups"])
    return dict(zip(keys, chain.from_iterable(group["params"] for group in optimizer.param_groups), strict=False))
