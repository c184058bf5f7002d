"""Auxiliaries in other processes: exactness, traffic, time. `python -m benchmarks.remote [--short]`.

- Exactness: 50 steps of networks in one process and in several, with even and uneven shards, weights and ignored
  labels; the largest difference of any loss and any parameter, in float32 and float64.
- Traffic: what a rank sends in a step of two ResNet18 of width 64 with 100 classes, counted where it is sent, and by
  the kernel for all connections of the process (`tcp_info`), against the bytes of the logits, and against a step of
  `DistributedDataParallel` over both networks, counted the same way.
- Time: a step of each role with the other; of both at once, with constants in the place of each other's logits; and of
  each while the other waits. Two processes of one thread, in turn, the least of many steps. Beside the time by the
  clock stands processor time, which does not count waiting. On a machine that others use, both processes are seldom
  left alone for a whole step. So there is a model too: the slower forward pass, the exchange, the slower rest.

Killed processes are the matter of `python -m benchmarks.interruptions --remote`.
"""

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.remote_steps import Case, one_process, other_processes, preload, run_ranks
from benchmarks.reporting import Check, finish, progress
from benchmarks.scaling_machine import bytes_sent
from counterpoise.models import Backbone, build_model
from counterpoise.objectives import Link, MutualTransport, Objective, Remote, RemoteAuxiliary, assign_roles
from counterpoise.objectives.protocol import as_module

CLASSES, PIXELS, ALPHA = 100, 32, 0.8
EXACT = {torch.float32: 1e-6, torch.float64: 1e-12}
KINDS = ("together", "at once", "alone")
OVER_LOGITS, OF_DDP, OVER_ALONE = 1.1, 0.01, 1.10


@dataclass(frozen=True)
class Sent:
    """Bytes that one rank sends in a step."""

    logits: int
    counted: float
    by_kernel: float
    ddp: int
    gradients: int


@dataclass(frozen=True)
class Seconds:
    """Of a step, the least of several: by the clock, and of the processor."""

    wall: float
    processor: float


def main() -> None:
    """All of them, or the short form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer cases and smaller batches, and no times")
    options = parser.parse_args()
    preload("benchmarks.scaling_machine")
    figures, checks = exactness(short=options.short)
    traffic_figures, traffic_checks = traffic(batch=8 if options.short else 64)
    figures, checks = figures | traffic_figures, checks + traffic_checks
    if not options.short:
        time_figures, time_checks = times(batch=16, rounds=12, steps=10)
        figures, checks = figures | time_figures, checks + time_checks
    finish(f"python -m benchmarks.remote{' --short' * options.short}", figures, checks)


def exactness(*, short: bool) -> tuple[dict[str, Any], list[Check]]:
    """Several processes against one."""
    shapes = [(1, (1,), 12), (2, (1,), 12), (2, (2,), 12), (1, (2,), 12), (2, (1,), 13), (2, (3,), 13), (1, (1, 1), 12)]
    cases = [(shape, dtype) for shape in shapes for dtype in EXACT]
    if short:
        cases = [((1, (1,), 12), torch.float32), ((2, (1,), 13), torch.float64)]
    found, checks = {}, []
    for (primary, auxiliaries, batch), dtype in cases:
        case = Case(primary, auxiliaries, batch=batch, dtype=dtype, weighted=batch % 2 == 1)
        name = f"{'+'.join(map(str, (primary, *auxiliaries)))} processes, batch of {batch}, {dtype}"
        progress(f"50 steps: {name}")
        found[name] = one_process(case).difference(other_processes(case))
        checks.append(Check(f"largest difference: {name}", found[name], at_most=EXACT[dtype]))
    return {"largest difference from one process": found}, checks


def traffic(*, batch: int) -> tuple[dict[str, Any], list[Check]]:
    """Bytes of a step."""
    progress(f"bytes of a step: two ResNet18, {batch} images")
    ranks = [Sent(**found) for found in run_ranks(2, partial(_traffic_of_rank, batch))]
    checks = []
    for role, sent in zip(("primary", "auxiliary"), ranks, strict=True):
        checks += [
            Check(f"{role}: bytes by the kernel over logits", sent.by_kernel / sent.logits, at_most=OVER_LOGITS),
            Check(f"{role}: bytes where sent over logits", sent.counted / sent.logits, at_most=1.0),
            Check(f"{role}: bytes by the kernel over DDP's", sent.by_kernel / sent.ddp, at_most=OF_DDP),
        ]
    return {"bytes of a step": {"primary": asdict(ranks[0]), "auxiliary": asdict(ranks[1])}}, checks


def _traffic_of_rank(batch: int) -> dict[str, Any]:
    role = assign_roles(primary=[0], auxiliaries=[[1]])
    networks = _networks(64)
    whole = MutualTransport(networks[0], networks[1:], ALPHA)
    run, (link,) = _stepper(whole.in_role(role), batch), role.links
    run()
    steps, before, counted = 3, _sent_when_still(), link.sent
    for _ in range(steps):
        run()
    by_kernel = _sent_when_still() - before
    # Two images are enough for gradients, which are as large for any number.
    ddp = _stepper(whole, 2, wrap=DistributedDataParallel)
    ddp()
    before = _sent_when_still()
    ddp()
    return {
        "logits": batch * CLASSES * 4,
        "counted": (link.sent - counted) / steps,
        "by_kernel": by_kernel / steps,
        "ddp": _sent_when_still() - before,
        "gradients": sum(parameter.nbytes for parameter in whole.parameters()),
    }


def _sent_when_still() -> int:
    """What this rank has sent, while nobody sends; a barrier is some bytes."""
    dist.barrier()
    return bytes_sent()


def times(*, batch: int, rounds: int, steps: int) -> tuple[dict[str, Any], list[Check]]:
    """Seconds of a step, of both roles together and of each alone."""
    progress(f"seconds of a step: two ResNet18 of width 16, {batch} images")
    primary, auxiliary = run_ranks(2, partial(_times_of_rank, batch, rounds, steps))
    found = {
        f"{name}, {kind}": Seconds(*each[kind])
        for name, each in (("primary", primary), ("auxiliary", auxiliary))
        for kind in KINDS
    }
    slower = max(found["primary, alone"].wall, found["auxiliary, alone"].wall)
    together, at_once = (
        max(found[f"primary, {kind}"].wall, found[f"auxiliary, {kind}"].wall) for kind in ("together", "at once")
    )
    before, after = (max(parts) for parts in zip(primary["parts"], auxiliary["parts"], strict=True))
    modelled = (before + primary["exchange"] + after) / max(sum(primary["parts"]), sum(auxiliary["parts"]))
    processor = max(
        found[f"{name}, together"].processor / found[f"{name}, alone"].processor for name in ("primary", "auxiliary")
    )
    figures = {
        "seconds of a step": {name: asdict(each) for name, each in found.items()},
        "seconds of an exchange": primary["exchange"],
        "processor time before and after the exchange": {"primary": primary["parts"], "auxiliary": auxiliary["parts"]},
        "processes that wanted a core": os.getloadavg()[0],
        "step over that of both at once without an exchange, by the clock": together / at_once,
    }
    return figures, [
        Check("step over that of the slower role alone, by the clock", together / slower, at_most=OVER_ALONE),
        Check("step over that of the same role alone, processor time", processor, at_most=OVER_ALONE),
        Check("step over that of the slower role alone, by the model", modelled, at_most=OVER_ALONE),
    ]


def _times_of_rank(batch: int, rounds: int, steps: int) -> dict[str, Any]:
    role = assign_roles(primary=[0], auxiliaries=[[1]])
    (link,) = role.links
    networks = _networks(16)
    whole = MutualTransport(networks[0], networks[1:], ALPHA)
    together = _stepper(whole.in_role(role), batch)
    stand_in = _Still(torch.randn(batch, CLASSES))
    still = cast("Link", stand_in)
    alone = _stepper(
        MutualTransport(networks[0], [Remote(still)], ALPHA)
        if role.auxiliary is None
        else RemoteAuxiliary(networks[1], still),
        batch,
    )
    best = {kind: [math.inf] * 2 for kind in KINDS}
    parts = [math.inf] * 2

    def measure(kind: str, run: Callable[[], object]) -> None:
        for _ in range(steps):
            wall, processor = time.perf_counter(), time.process_time()
            run()
            ended = time.process_time()
            best[kind] = _least(best[kind], (time.perf_counter() - wall, ended - processor))
            if kind == "alone":
                parts[:] = _least(parts, (stand_in.asked - processor, ended - stand_in.asked))

    for _ in range(rounds):
        dist.barrier()
        measure("together", together)
        dist.barrier()
        measure("at once", alone)
        for rank in range(2):  # the other one waits, and leaves its core alone
            dist.barrier()
            if rank == dist.get_rank():
                measure("alone", alone)
    dist.barrier()
    logits, exchanges = torch.randn(batch, CLASSES), []
    for _ in range(200):
        begun = time.perf_counter()
        link.exchange(logits)
        exchanges.append(time.perf_counter() - begun)
    return {**best, "parts": parts, "exchange": min(exchanges)}


def _least(some: Sequence[float], others: Sequence[float]) -> list[float]:
    return [min(pair) for pair in zip(some, others, strict=True)]


@dataclass
class _Still:
    """In the place of a link: the other side has always the same to say, and notes when it was asked."""

    logits: Tensor
    asked: float = 0.0

    def exchange(self, logits: Tensor) -> Tensor:
        """The same, whatever is sent."""
        assert logits.shape == self.logits.shape
        self.asked = time.process_time()
        return self.logits


def _networks(width: int) -> list[nn.Module]:
    backbone = Backbone(name="resnet18", width=width)
    return [build_model(backbone, classes=CLASSES, channels=3) for _ in range(2)]


def _stepper(
    objective: Objective, batch: int, *, wrap: Callable[[nn.Module], nn.Module] | None = None
) -> Callable[[], None]:
    """A training step on noise; with `wrap`, of what it makes of the objective."""
    module = as_module(objective).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(objective.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9)
    run = module if wrap is None else wrap(module)
    images = torch.randn(batch, 3, PIXELS, PIXELS).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (batch,))

    def step() -> None:
        run(images, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
