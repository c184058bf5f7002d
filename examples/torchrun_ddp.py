"""Mutual transport under torchrun with DistributedDataParallel.

    torchrun --standalone --nproc-per-node 2 examples/torchrun_ddp.py

Every process takes its share of each batch of 128, and the losses that are printed are those of the whole batch: they
do not depend on the number of processes. The data are random clusters. Runs on CPUs over gloo.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group is made, or defaults of its functions keep the group's threads alive
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import counterpoise

GLOBAL_BATCH = 128


def clusters(samples: int, *, classes: int = 5, features: int = 20) -> tuple[Tensor, Tensor]:
    """Points around one random centre for each class; the same on every process."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, features, generator=generator)
    labels = torch.randint(classes, (samples,), generator=generator)
    return centres[labels] + torch.randn(samples, features, generator=generator), labels


def network(width: int) -> nn.Module:
    """A small classifier. With BatchNorm, use nn.SyncBatchNorm.convert_sync_batchnorm, which needs GPUs."""
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 5))


def train(*, epochs: int) -> dict[str, float]:
    """Train, and return the last loss, the accuracy and the last learning rates."""
    torch.manual_seed(0)
    inputs, labels = clusters(1024)
    dataset = TensorDataset(inputs, labels)
    sampler = DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=GLOBAL_BATCH // dist.get_world_size(), sampler=sampler)

    # With the process group, every process returns the loss of the whole batch, even where shares are uneven.
    objective = counterpoise.MutualTransport(network(64), [network(16)], alpha=0.8, process_group=dist.group.WORLD)
    model = DistributedDataParallel(objective)
    optimizer = torch.optim.SGD(objective.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9)
    scheduler = LambdaLR(optimizer, [lambda step: 0.1 if step >= 12 else 1.0, lambda _: 1.0])

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

    with torch.no_grad():
        accuracy = (objective.primary(inputs).argmax(-1) == labels).float().mean().item()
    lr, auxiliary_lr = (group["lr"] for group in optimizer.param_groups)
    if dist.get_rank() == 0:
        print(f"accuracy {accuracy:.3f}, learning rates {lr:.3f} and {auxiliary_lr:.3f}")
    return {"loss": loss.item(), "accuracy": accuracy, "lr": lr, "auxiliary_lr": auxiliary_lr}


def main(*, epochs: int = 3) -> dict[str, float]:
    """Train within a process group that outlives the model: a model that is the last to hold it can hang at its end."""
    dist.init_process_group("gloo")
    result = train(epochs=epochs)
    dist.destroy_process_group()
    return result


if __name__ == "__main__":
    main()
