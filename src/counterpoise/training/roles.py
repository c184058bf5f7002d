"""Runs whose auxiliaries train in processes of their own: DDP within each role, and one checkpoint of all.

A checkpoint is that of a run without roles: names of weights and positions in the optimizer are those of one objective
with all its networks, so that either kind of run goes on from the other's. The first rank of each auxiliary network
sends its state to the first of all, which writes the file; every rank reads it, and takes its own network.
"""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree

from counterpoise.objectives import Role, assign_roles
from counterpoise.training.distributed import gathered, is_first_rank

_OWN, _AUXILIARIES = "objective.network.", "objective.auxiliaries."


class RoleStrategy(DDPStrategy):
    """Lightning's strategy for DDP, in which the ranks of each network are a group.

    Args:
        devices: processes of each machine that train the primary, the first ones.
        auxiliary_devices: those after them, which train the auxiliaries.
        networks: how many auxiliaries there are.
        buffer_option: what DDP calls the broadcast of buffers in each forward pass, which is off.
    """

    role: Role

    def __init__(self, *, devices: int, auxiliary_devices: int, networks: int, buffer_option: str) -> None:
        options: dict[str, Any] = {"gradient_as_bucket_view": True, buffer_option: False}
        super().__init__(**options)
        self._devices, self._on_machine, self._networks = devices, devices + auxiliary_devices, networks

    def setup_environment(self) -> None:
        super().setup_environment()
        everybody = range(dist.get_world_size())
        primary = [rank for rank in everybody if rank % self._on_machine < self._devices]
        others = [rank for rank in everybody if rank not in primary]
        each = len(others) // self._networks
        auxiliaries = [others[index * each : (index + 1) * each] for index in range(self._networks)]
        self.role = assign_roles(primary=primary, auxiliaries=auxiliaries)
        self._firsts = [primary[0], *(ranks[0] for ranks in auxiliaries)]
        # Gloo, because states are sent from the host.
        self._states = dist.new_group(self._firsts, backend="gloo")
        self._ddp_kwargs["process_group"] = self.role.group

    def lightning_module_state_dict(self) -> dict[str, Any]:
        state = super().lightning_module_state_dict()
        for index, theirs in enumerate(self._sent(state)):
            state |= {
                f"{_AUXILIARIES}{index}.{name.removeprefix(_OWN)}": value
                for name, value in theirs.items()
                if name.startswith(_OWN)
            }
        return state

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:  # noqa: FBT001
        """The network of this rank alone."""
        state, own = checkpoint["state_dict"], self.role.auxiliary
        if own is None:
            mine = {name: value for name, value in state.items() if not name.startswith(_AUXILIARIES)}
        else:
            prefix = f"{_AUXILIARIES}{own}."
            mine = {
                f"{_OWN}{name.removeprefix(prefix)}": value for name, value in state.items() if name.startswith(prefix)
            }
        super().load_model_state_dict({"state_dict": mine}, strict=strict)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        state = super().optimizer_state(optimizer)
        for theirs in self._sent(state):
            state = joined(state, theirs)
        return state

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        (optimizer,), (state,) = self.optimizers, checkpoint["optimizer_states"]
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        counts = gathered(sum(sizes))
        own = 0 if self.role.auxiliary is None else 1 + self.role.auxiliary
        first = sum(counts[rank] for rank in self._firsts[:own])
        super().load_optimizer_state_dict({"optimizer_states": [taken(state, first, sizes)]})

    def _sent(self, state: Mapping[str, Any]) -> list[dict[str, Any]]:
        """On the first rank, what the first rank of each auxiliary network has; elsewhere nothing."""
        if self.role.rank:
            return []
        if not is_first_rank():
            dist.gather_object(_pytree.tree_map_only(Tensor, Tensor.cpu, dict(state)), dst=0, group=self._states)
            return []
        found: list[Any] = [None] * len(self._firsts)
        dist.gather_object(None, found, dst=0, group=self._states)
        return found[1:]


def joined(state: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """One optimizer's state of two, the parameters of the second after those of the first.

    Groups that differ in nothing but their parameters are one, where one follows the other.
    """
    groups = [dict(group) for group in state["param_groups"]]
    count = sum(len(group["params"]) for group in groups)
    for group in further["param_groups"]:
        shifted = group | {"params": [count + index for index in group["params"]]}
        if _options(shifted) == _options(groups[-1]):
            groups[-1]["params"] = [*groups[-1]["params"], *shifted["params"]]
        else:
            groups.append(shifted)
    values = {count + index: values for index, values in further["state"].items()}
    return {"state": {**state["state"], **values}, "param_groups": groups}


def taken(state: Mapping[str, Any], first: int, sizes: list[int]) -> dict[str, Any]:
    """The state of parameters from number `first` on, in groups of these sizes: what `joined` put together."""
    order = [index for group in state["param_groups"] for index in group["params"]]
    options = [_options(group) for group in state["param_groups"] for _ in group["params"]]
    groups, begin = [], first
    for size in sizes:
        groups.append(options[begin] | {"params": list(range(begin - first, begin - first + size))})
        begin += size
    mine = {number: order[first + number] for number in range(sum(sizes))}
    values = {number: state["state"][index] for number, index in mine.items() if index in state["state"]}
    return {"state": values, "param_groups": groups}


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
