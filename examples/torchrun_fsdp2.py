"""Mutual transport under torchrun with FSDP2: every model is sharded over the processes.

    torchrun --standalone --nproc-per-node 2 examples/torchrun_fsdp2.py

The losses that are printed are those of the whole batch of 128: they do not depend on the number of processes. At the
end the first process gathers the primary's weights, which are what ships. The data are random clusters. Runs on CPUs
over gloo.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
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
    """A small classifier; shard the blocks of a large one as well, before the model around them."""
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 5))


def main(*, epochs: int = 3) -> dict[str, float]:
    """Train, and return the last loss, the accuracy of the gathered primary and the last learning rates."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs, labels = clusters(1024)
    dataset = TensorDataset(inputs, labels)
    sampler = DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=GLOBAL_BATCH // dist.get_world_size(), sampler=sampler)

    # With the process group, every process returns the loss of the whole batch, even where shares are uneven.
    objective = counterpoise.MutualTransport(network(64), [network(16)], alpha=0.8, process_group=dist.group.WORLD)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for model in (objective.primary, *objective.auxiliaries):
        fully_shard(model, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    # After sharding, which replaces the parameters.
    optimizer = torch.optim.SGD(objective.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9)
    scheduler = LambdaLR(optimizer, [lambda step: 0.1 if step >= 12 else 1.0, lambda _: 1.0])

    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch, targets in loader:
            loss = objective(batch, labels=targets).loss
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.7f}")
            step += 1

    # A collective: every process calls it, the first one gets the weights.
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(objective.primary, options=options)
    lr, auxiliary_lr = (group["lr"] for group in optimizer.param_groups)
    result = {"loss": loss.item(), "lr": lr, "auxiliary_lr": auxiliary_lr}
    if dist.get_rank() == 0:
        shipped = network(64)
        shipped.load_state_dict(weights)
        result["accuracy"] = (shipped(inputs).argmax(-1) == labels).float().mean().item()
        print(f"accuracy {result['accuracy']:.3f}, learning rates {lr:.3f} and {auxiliary_lr:.3f}")
    # Caches of DTensor keep the group's threads: let them come to rest before the interpreter ends.
    dist.barrier()
    dist.destroy_process_group()
    return result


if __name__ == "__main__":
    main()
