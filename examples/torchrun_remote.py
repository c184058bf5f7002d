"""Mutual transport under torchrun, with the auxiliary in processes of its own.

    torchrun --standalone --nproc-per-node 3 examples/torchrun_remote.py

All processes but the last train the primary, and the last trains the auxiliary. Each side makes the same batches of 128
and divides them among its processes; between the sides go logits alone. The losses that are printed are those of
`torchrun_ddp.py`, with any number of processes. The data are random clusters. Runs on CPUs over gloo.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group is made, or defaults of its functions keep the group's threads alive
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from counterpoise.objectives import MutualTransport, Remote, RemoteAuxiliary, assign_roles

GLOBAL_BATCH = 128


def clusters(samples: int, *, classes: int = 5, features: int = 20) -> tuple[Tensor, Tensor]:
    """Points around one random centre for each class; the same on every process."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, features, generator=generator)
    labels = torch.randint(classes, (samples,), generator=generator)
    return centres[labels] + torch.randn(samples, features, generator=generator), labels


def network(width: int) -> nn.Module:
    """A small classifier; any model that returns logits will do."""
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 5))


def train(*, epochs: int) -> dict[str, float]:
    """Train, and return the last loss, and on processes of the primary its accuracy."""
    torch.manual_seed(0)
    primary, auxiliary = network(64), network(16)

    world = dist.get_world_size()
    role = assign_roles(primary=range(world - 1), auxiliaries=[[world - 1]])
    if role.auxiliary is None:
        objective = MutualTransport(primary, [Remote(role.links[0])], alpha=0.8, process_group=role.group)
    else:
        objective = RemoteAuxiliary(auxiliary, role.links[0], process_group=role.group)
    model = DistributedDataParallel(objective, process_group=role.group)
    optimizer = torch.optim.SGD(objective.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9)
    # The primary's learning rate decays; the auxiliary's stays.
    scheduler = LambdaLR(optimizer, lambda step: 0.1 if role.auxiliary is None and step >= 12 else 1.0)

    # Both sides shuffle alike, and the processes of a side take turns: of each batch, every `role.world`-th row.
    inputs, labels = clusters(1024)
    dataset = TensorDataset(inputs, labels)
    sampler = DistributedSampler(dataset, num_replicas=role.world, rank=role.rank, seed=0)
    loader = DataLoader(dataset, batch_size=GLOBAL_BATCH // role.world, sampler=sampler)

    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch, targets in loader:
            loss = model(batch, labels=targets).loss
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.7f}")
            step += 1

    result = {"loss": loss.item()}
    if role.auxiliary is None:
        with torch.no_grad():
            result["accuracy"] = (primary(inputs).argmax(-1) == labels).float().mean().item()
    if dist.get_rank() == 0:
        print(f"accuracy {result['accuracy']:.3f}, learning rate {scheduler.get_last_lr()[0]:.3f}")
    return result


def main(*, epochs: int = 3) -> dict[str, float]:
    """Train within a process group that outlives the model: a model that is the last to hold it can hang at its end."""
    dist.init_process_group("gloo")
    result = train(epochs=epochs)
    dist.destroy_process_group()
    return result


if __name__ == "__main__":
    main()
