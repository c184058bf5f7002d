"""Mutual transport in a plain PyTorch loop, with the paper's schedule.

    python examples/plain_loop.py

The primary's learning rate is divided by 10 at the milestones; the auxiliary's stays. The data are scikit-learn's
digits. Prints the loss and both learning rates of every epoch, then the test accuracy of the primary, which ships.
"""

from bisect import bisect_right
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

import counterpoise


def network(width: int) -> nn.Module:
    """A small classifier; any model that returns logits will do."""
    return nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 10))


def main(
    *, epochs: int = 9, milestones: Sequence[int] = (5, 7), max_norm: float | None = None, seed: int = 0
) -> dict[str, float]:
    """Train, and return the test accuracy and the last learning rates.

    Args:
        epochs: passes over the training images.
        milestones: epochs after which the primary's learning rate is divided by 10.
        max_norm: clip the gradients of each group to this norm; None for no clipping, as in the paper.
        seed: of the networks and of the order of the images.
    """
    torch.manual_seed(seed)
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    loader = DataLoader(TensorDataset(images[500:], labels[500:]), batch_size=100, shuffle=True)
    test_images, test_labels = images[:500], labels[:500]

    objective = counterpoise.MutualTransport(network(64), auxiliaries=[network(16)], alpha=0.8)
    groups = objective.parameter_groups(lr=0.1, auxiliary_lr=0.01)
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4)
    # One function for each group: MultiStepLR would decay the auxiliary as well.
    scheduler = LambdaLR(optimizer, [lambda epoch: 0.1 ** bisect_right(milestones, epoch), lambda _: 1.0])

    for epoch in range(epochs):
        for images, labels in loader:
            loss = objective(images, labels=labels).loss
            loss.backward()
            if max_norm is not None:
                # Group by group: one joint norm would let the auxiliary's gradient shrink the primary's step.
                for group in optimizer.param_groups:
                    nn.utils.clip_grad_norm_(group["params"], max_norm)
            optimizer.step()
            optimizer.zero_grad()
        lr, auxiliary_lr = (group["lr"] for group in optimizer.param_groups)
        print(f"epoch {epoch}: loss {loss.item():.3f}, learning rates {lr:.3f} and {auxiliary_lr:.3f}")
        scheduler.step()

    objective.eval()
    with torch.no_grad():
        logits = objective.primary(test_images)
    accuracy = (logits.argmax(-1) == test_labels).float().mean().item()
    print(f"test accuracy {accuracy:.3f}")
    return {"accuracy": accuracy, "lr": lr, "auxiliary_lr": auxiliary_lr}


if __name__ == "__main__":
    main()
