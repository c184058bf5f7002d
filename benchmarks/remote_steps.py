"""Steps of mutual transport in one process, and with its auxiliaries in other processes: what `remote.py` compares."""

import multiprocessing as mp
import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from counterpoise.objectives import MutualTransport, Role, assign_roles
from counterpoise.objectives.protocol import Objective, as_module

CLASSES, FEATURES = 7, 12

_LAUNCH = mp.get_context("forkserver")


@dataclass(frozen=True)
class Case:
    """How ranks share the work, and what they compute with.

    Attributes:
        primary: ranks of the primary.
        auxiliaries: ranks of each auxiliary network.
        batch: rows of a step; the ranks' shards may be uneven.
        steps: so many.
        dtype: of all parameters and logits.
        weighted: whether samples have weights, and some labels are ignored.
    """

    primary: int
    auxiliaries: tuple[int, ...]
    batch: int = 12
    steps: int = 50
    dtype: torch.dtype = torch.float32
    weighted: bool = False

    @property
    def ranks(self) -> list[range]:
        """Of the primary, then of each auxiliary network."""
        ends = [self.primary]
        for size in self.auxiliaries:
            ends.append(ends[-1] + size)
        return [range(end - size, end) for end, size in zip(ends, (self.primary, *self.auxiliaries), strict=True)]


@dataclass(frozen=True)
class Outcome:
    """Losses by step, and all parameters at the end by the name that they have in one process."""

    losses: Tensor
    parameters: dict[str, Tensor]

    def difference(self, other: "Outcome") -> float:
        """The largest of any loss or parameter."""
        if self.parameters.keys() != other.parameters.keys():
            raise ValueError("these are not of the same networks")
        pairs = [
            (self.losses, other.losses),
            *((self.parameters[name], other.parameters[name]) for name in self.parameters),
        ]
        return max(float((mine - theirs).abs().max()) for mine, theirs in pairs)


def objective_of(case: Case) -> MutualTransport:
    """The networks, the same in every process; without BatchNorm, whose statistics are those of a rank's shard."""
    torch.manual_seed(0)
    networks = [
        nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES)).to(case.dtype)
        for _ in range(1 + len(case.auxiliaries))
    ]
    return MutualTransport(networks[0], networks[1:], alpha=0.8)


def batch_of(case: Case, step: int) -> tuple[Tensor, dict[str, Tensor]]:
    """The whole batch of a step, which depends on nothing else."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(case.batch, FEATURES, generator=generator, dtype=case.dtype)
    told = {"labels": torch.randint(CLASSES, (case.batch,), generator=generator)}
    if case.weighted:
        told["sample_weight"] = torch.rand(case.batch, generator=generator, dtype=case.dtype)
        told["labels"][step % case.batch] = -100
    return inputs, told


def one_process(case: Case) -> Outcome:
    """The reference: every network here."""
    objective = objective_of(case)
    return Outcome(_trained(objective, case, rows=slice(None)), _parameters(objective))


def _trained(objective: Objective, case: Case, *, rows: slice, role: Role | None = None) -> Tensor:
    optimizer = torch.optim.SGD(objective.parameter_groups(lr=0.1, auxiliary_lr=0.05), momentum=0.9, weight_decay=1e-3)
    module: nn.Module = as_module(objective)
    if role is not None:
        module = DistributedDataParallel(module, process_group=role.group)
        for link in role.links:
            link.batch = case.batch
    losses = []
    for step in range(case.steps):
        inputs, told = batch_of(case, step)
        loss = module(inputs[rows], **{name: values[rows] for name, values in told.items()}).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def _parameters(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def other_processes(case: Case) -> Outcome:
    """The same, with every auxiliary in ranks of its own."""
    found = run_ranks(case.ranks[-1].stop, partial(_rank_steps, case))
    parameters = dict(found[0]["parameters"])
    for index, ranks in enumerate(case.ranks[1:]):
        theirs = found[ranks[0]]["parameters"]
        parameters |= {f"auxiliaries.{index}.{name.removeprefix('network.')}": value for name, value in theirs.items()}
    return Outcome(found[0]["losses"], parameters)


def _rank_steps(case: Case) -> dict[str, Any]:
    primary, *auxiliaries = case.ranks
    role = assign_roles(primary=primary, auxiliaries=auxiliaries)
    objective = objective_of(case).in_role(role)
    losses = _trained(objective, case, rows=slice(role.rank, None, role.world), role=role)
    return {"losses": losses, "parameters": _parameters(objective), "sent": sum(link.sent for link in role.links)}


def preload(*modules: str) -> None:
    """Have ranks begin with what they need, so that each of them imports nothing; before the first of them."""
    _LAUNCH.set_forkserver_preload([__name__, *modules])


def run_ranks(count: int, work: Callable[[], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Do some work on so many ranks of a job over gloo, with a thread each; what each of them found, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        processes = [_LAUNCH.Process(target=_rank, args=(rank, count, port, folder, work)) for rank in range(count)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if codes := [process.exitcode for process in processes if process.exitcode]:
            raise RuntimeError(f"ranks ended with exit codes {codes}")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(count)]


def free_port() -> int:
    """Of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _rank(rank: int, count: int, port: int, folder: str, work: Callable[[], Mapping[str, Any]]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
    torch.save(dict(work()), Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
