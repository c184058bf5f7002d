"""Mutual transport in a loop with accelerate, on one process or several.

    python examples/accelerate_loop.py
    torchrun --standalone --nproc-per-node 2 examples/accelerate_loop.py

The scheduler is not prepared: a prepared one steps once for each process at every optimizer step, so that with two
processes the learning rate falls after half the steps. The data are random clusters. Prints the accuracy of the
primary and both learning rates.
"""

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

import counterpoise


def clusters(samples: int, *, classes: int = 5, features: int = 20) -> tuple[Tensor, Tensor]:
    """Points around one random centre for each class; the same on every process."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, features, generator=generator)
    labels = torch.randint(classes, (samples,), generator=generator)
    return centres[labels] + torch.randn(samples, features, generator=generator), labels


def network(width: int) -> nn.Module:
    """A small classifier; any model that returns logits will do."""
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 5))


def main(*, epochs: int = 3, accumulation: int = 1) -> dict[str, float]:
    """Train, and return the accuracy and the last learning rates.

    Args:
        epochs: passes over the data.
        accumulation: batches whose gradients are averaged for one optimizer step.
    """
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    torch.manual_seed(0)
    inputs, labels = clusters(1024)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)

    objective = counterpoise.MutualTransport(network(64), auxiliaries=[network(16)], alpha=0.8)
    optimizer = torch.optim.SGD(objective.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9)
    model, optimizer, loader = accelerator.prepare(objective, optimizer, loader)
    decay_at = 2 * epochs * len(loader) // accumulation // 3
    scheduler = LambdaLR(optimizer, [lambda step: 0.1 if step >= decay_at else 1.0, lambda _: 1.0])
    accelerator.register_for_checkpointing(scheduler)  # save_state would otherwise leave out what is not prepared

    for _ in range(epochs):
        for batch, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch, labels=targets).loss)
                # To clip, loop over optimizer.param_groups: accelerator.clip_grad_norm_(group["params"], max_norm).
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    scheduler.step()

    primary = accelerator.unwrap_model(model).primary
    with torch.no_grad():
        accuracy = (primary(inputs).argmax(-1) == labels).float().mean().item()
    lr, auxiliary_lr = scheduler.get_last_lr()
    accelerator.print(f"accuracy {accuracy:.3f}, learning rates {lr:.3f} and {auxiliary_lr:.3f}")
    return {"accuracy": accuracy, "lr": lr, "auxiliary_lr": auxiliary_lr}


if __name__ == "__main__":
    main()
