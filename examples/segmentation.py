"""Segmentation: logits for every pixel, trained by mutual transport and measured in a stream.

    python examples/segmentation.py

The made-up images show a disc and a square in noise; every label map is a little out of place, as people draw them, and
pixels at the border of the image are void (label 255). Segmentation networks return `[n, K, height, width]`; objectives
and metrics want the classes last, so a wrapper turns the axes. Prints, for cross-entropy and for mutual transport,
accuracy and calibration over the pixels of unseen images, whose label maps are as inexact.

Pixels of one image are not independent, while the intervals treat them so: they are too narrow, and are not shown.
"""

import torch
from torch import Tensor, nn

import counterpoise
from counterpoise.metrics import Estimate, Key, Performance, TopLabelCalibration

CLASSES, VOID = 3, 255


class ClassesLast(nn.Module):
    """A network from `[n, C, H, W]` to `[n, K, H, W]`, made to return `[n, H, W, K]`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Only the strides change: nothing is copied."""
        return self.network(images).permute(0, 2, 3, 1)


def network(width: int) -> nn.Module:
    """Three convolutions that see 13x13 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, width, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(width, width, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(width, CLASSES, 5, padding=2),
    )


def scenes(count: int, *, size: int = 32, seed: int) -> tuple[Tensor, Tensor]:
    """Images `[count, 1, size, size]` and label maps `[count, size, size]`: 0 is background, 1 a disc, 2 a square."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randint(6, size - 6, (2, 2, count, 1, 1), generator=generator)
    drawn = centres + torch.randint(-1, 2, centres.shape, generator=generator)

    def shapes(places: Tensor) -> Tensor:
        rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        (disc_row, disc_column), (square_row, square_column) = places
        disc = (rows - disc_row) ** 2 + (columns - disc_column) ** 2 <= 25
        square = torch.maximum((rows - square_row).abs(), (columns - square_column).abs()) <= 4
        return torch.where(square, 2, disc.long())

    images = (shapes(centres) > 0) + 0.5 * torch.randn(count, size, size, generator=generator)
    labels = shapes(drawn)
    labels[:, [0, -1], :] = labels[:, :, [0, -1]] = VOID
    return images[:, None], labels


def train(objective: counterpoise.MutualTransport, *, steps: int) -> None:
    """Train on 20 images."""
    optimizer = torch.optim.AdamW(objective.parameter_groups(lr=0.01, auxiliary_lr=0.003))
    images, labels = scenes(20, seed=0)
    for _ in range(steps):
        rows = torch.randint(len(images), (5,))
        loss = objective(images[rows], labels=labels[rows]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def measured(model: nn.Module, images: Tensor, labels: Tensor) -> dict[Key, Estimate]:
    """Batch by batch, in memory that does not grow with the number of pixels."""
    streams = [counterpoise.Stream(Performance()), counterpoise.Stream(TopLabelCalibration())]
    for batch, targets in zip(images.split(50), labels.split(50), strict=True):
        with torch.no_grad():
            logits = model(batch)
        for stream in streams:
            stream.update(logits=logits, labels=targets, valid=targets != VOID)
    return streams[0].compute() | streams[1].compute()


def main(*, steps: int = 150, seed: int = 0) -> dict[str, dict[Key, Estimate]]:
    """Train with and without an auxiliary, and return the estimates of both over pixels."""
    images, labels = scenes(200, seed=1)
    results = {}
    for name, auxiliary_widths in {"cross-entropy": [], "mutual transport": [8]}.items():
        torch.manual_seed(seed)
        primary = ClassesLast(network(16))
        auxiliaries = [ClassesLast(network(width)) for width in auxiliary_widths]
        train(counterpoise.MutualTransport(primary, auxiliaries, alpha=0.8, ignore_index=VOID), steps=steps)
        results[name] = measured(primary.eval(), images, labels)
        values = {key: estimate.value for key, estimate in results[name].items()}
        print(f"{name:16} accuracy {values[Key.ACCURACY]:.1%}  NLL {values[Key.NLL]:.3f}  ECE {values[Key.ECE]:.2%}")
    return results


if __name__ == "__main__":
    main()
