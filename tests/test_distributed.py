"""Data parallelism over gloo: gradients and metrics of uneven shards equal those of one process on the whole batch."""

import math
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from counterpoise import DeepMutualLearning, MutualTransport, Stream, SupervisedObjective
from counterpoise.metrics import (
    ClasswiseCalibration,
    ConfidenceRanking,
    OodDetection,
    Performance,
    ScoreOptions,
    ScoreState,
    TopLabelCalibration,
    unpadded,
)
from counterpoise.metrics.comparison import compare
from loss_table import LOSSES

pytestmark = pytest.mark.slow

SHARDS = {2: [5, 12], 3: [3, 11, 7]}
CLASSES = 4
METRICS = [
    Performance(),
    TopLabelCalibration(),
    ClasswiseCalibration(num_classes=CLASSES),
    ConfidenceRanking(),
    OodDetection(score="energy"),
]


def linear(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(6, CLASSES).double()


def objectives(group: dist.ProcessGroup | None) -> dict[str, nn.Module]:
    built = {name: SupervisedObjective(linear(0), row.loss, process_group=group) for name, row in LOSSES.items()}
    built["mte_1"] = MutualTransport(linear(0), [linear(1)], 0.8, process_group=group)
    built["mte_2"] = MutualTransport(linear(0), [linear(1), linear(2)], 0.8, process_group=group)
    built["dml"] = DeepMutualLearning([linear(0), linear(1)], 0.8, process_group=group)
    return built


def whole_batch(samples: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(CLASSES, (samples,), generator=generator)
    y[1] = y[-1] = -100
    return x, y, torch.rand(samples, generator=generator, dtype=torch.float64)


def gradients(objective: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in objective.parameters()])


def check_losses(rank: int, world: int) -> None:
    sizes = SHARDS[world]
    x, y, weight = whole_batch(sum(sizes))
    mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    for weighted in (False, True):
        expected, sharded = objectives(None), objectives(dist.group.WORLD)
        for name, objective in expected.items():
            whole = objective(x, labels=y, sample_weight=weight if weighted else None).loss
            whole.backward()
            parallel = DistributedDataParallel(sharded[name])
            part = parallel(x[mine], labels=y[mine], sample_weight=weight[mine] if weighted else None).loss
            part.backward()
            difference = (gradients(sharded[name]) - gradients(objective)).abs().max().item()
            assert difference < 1e-12, f"{name}, weighted {weighted}, rank {rank}: gradients differ by {difference}"
            assert math.isclose(part.item(), whole.item(), rel_tol=1e-12, abs_tol=1e-14), (
                f"{name}: value on rank {rank}"
            )


def check_fsdp(rank: int, world: int) -> None:
    """Five steps with parameters sharded by FSDP2 are those of one process."""
    mesh = init_device_mesh("cpu", (world,))
    sharded, whole = objectives(None)["mte_2"], objectives(None)["mte_2"]
    for model in (sharded.primary, *sharded.auxiliaries):
        fully_shard(model, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    optimizers = [
        torch.optim.SGD(each.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9) for each in (sharded, whole)
    ]
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(12, 6, generator=generator, dtype=torch.float64)
        y = torch.randint(CLASSES, (12,), generator=generator)
        sharded(x.chunk(world)[rank], labels=y.chunk(world)[rank]).loss.backward()
        whole(x, labels=y).loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for ours, expected in zip(sharded.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), expected.detach(), rtol=0, atol=1e-12)


def check_metrics(rank: int, world: int) -> None:
    """The shards that `DistributedSampler` deals out, in batches, its repeated samples left out."""
    samples = 1000 + world - 1
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(samples, CLASSES, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    inside = torch.rand(samples, generator=generator) < 0.7
    sampler = DistributedSampler(range(samples), num_replicas=world, rank=rank, shuffle=True)
    order = torch.tensor(list(sampler))
    for metric in METRICS:
        whole, part = Stream(metric), Stream(metric)
        whole.update(logits=logits, labels=labels, in_distribution=inside)
        for first in range(0, len(order), 300):
            rows = order[first : first + 300]
            real = unpadded(dataset_size=samples, rank=rank, world_size=world, first=first, length=len(rows))
            part.update(logits=logits[rows], labels=labels[rows], in_distribution=inside[rows], valid=real)
        synced = part.sync()
        for name, value in whole.sums.items():
            if value.dtype == torch.int64:
                assert torch.equal(synced.sums[name], value), f"{metric}: {name}"
            else:
                torch.testing.assert_close(synced.sums[name], value, rtol=1e-12, atol=1e-10)
        computed = synced.compute()
        for key, estimate in whole.compute().items():
            other = computed[key]
            assert abs(other.value - estimate.value) < 1e-10, f"{metric}: {key} is {other.value}, not {estimate.value}"
        again = part.sync()
        assert all(torch.equal(again.sums[name], value) for name, value in synced.sums.items()), "sync counted twice"


def check_state(rank: int, world: int) -> None:
    """Ranks, comparisons and groups of a score state over all ranks are those of one process."""
    samples = 400
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(samples, CLASSES, generator=generator)
    labels, ids = torch.randint(CLASSES, (samples,), generator=generator), torch.arange(samples)
    for exact in (None, 100):
        options = ScoreOptions(paired=True, exact_samples=exact)
        whole, part = (ScoreState(classes=CLASSES, options=options) for _ in range(2))
        for state, rows in ((whole, ids), (part, ids[ids % world == rank])):
            columns = {"site": [f"site {row % 5}" for row in rows.tolist()]}
            state.update(logits=logits[rows], labels=labels[rows], ids=rows, columns=columns)
            state.update(logits=logits[rows] / 2, ids=rows, ood="far")
        synced, expected = part.sync(), whole.compute()
        found = synced.compute()
        assert [g.samples for g in found.groups] == [g.samples for g in expected.groups]
        for own, theirs in (
            (found.estimates, expected.estimates),
            (found.misclassification.estimates, expected.misclassification.estimates),
            (found.ood["far"].estimates, expected.ood["far"].estimates),
            *((g.estimates, e.estimates) for g, e in zip(found.groups, expected.groups, strict=True)),
        ):
            for key, estimate in theirs.items():
                for name in ("value", "low", "high"):
                    assert abs(getattr(own[key], name) - getattr(estimate, name)) < 1e-12, f"rank {rank}: {key} {name}"
        ours, theirs = (compare([s.compute()] * 2, [s.headline] * 2, level=0.95) for s in (synced, whole))
        assert ours.samples == theirs.samples == samples
        assert synced.to_bytes() == part.sync().to_bytes()


def check_rank_without_samples(rank: int) -> None:
    stream = Stream(Performance())
    if rank == 0:
        stream.update(probabilities=[[0.9, 0.1], [0.4, 0.6]], labels=[0, 0])
    assert stream.sync().compute()["accuracy"].value == 0.5


def worker(rank: int, world: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    try:
        check_losses(rank, world)
        check_fsdp(rank, world)
        check_metrics(rank, world)
        check_state(rank, world)
        check_rank_without_samples(rank)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.long), 3])
def test_shards_equal_the_whole(world: int, tmp_path: Path) -> None:
    mp.start_processes(worker, (world, str(tmp_path / "rendezvous")), nprocs=world, start_method="forkserver")
