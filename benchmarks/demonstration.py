"""Real predictions to try everything on: `python -m benchmarks.demonstration --out FOLDER [--epochs 14]`.

Trains two small residual networks of width 16 on CIFAR-10, one with cross-entropy and one with mutual transport (one
auxiliary of the same shape), each in a plain loop, and writes what they say about

- the whole test set, and 2,000 of its images under five simple corruptions at five severities
  (`ce.parquet`, `mte.parquet`),
- foreign images: the part of SVHN that is at hand (`ce_svhn.parquet`, `mte_svhn.parquet`) and the textures of DTD
  (`ce_dtd.parquet`, `mte_dtd.parquet`).

The data are found by the environment variable COUNTERPOISE_DATA. Weights are kept beside the predictions, so that a
second call only predicts. The corruptions are this file's own, not those of CIFAR-10-C.
"""

import argparse
import hashlib
import io
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F  # noqa: N812
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import counterpoise
from benchmarks.reporting import progress
from counterpoise.functional.losses import cross_entropy
from counterpoise.predictions import Header, Predictions, PredictionWriter, write_predictions

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, DEVIATION = (torch.tensor(v).view(1, 3, 1, 1) for v in ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]))
METHODS = ("ce", "mte")
BATCH, HELD_OUT, CORRUPTED_IMAGES = 100, 5000, 2000


def main() -> None:
    """Train what is not there yet, then predict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for weights and predictions")
    parser.add_argument("--epochs", type=int, default=14)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for method in METHODS:
        weights = options.out / f"{method}.safetensors"
        if not weights.exists():
            train(method, weights, epochs=options.epochs)
        predict(method, weights, options.out, epochs=options.epochs)


def train(method: str, weights: Path, *, epochs: int) -> None:
    """A plain loop: SGD, warm-up, then a linear decay of the primary's learning rate; the auxiliary's stays."""
    images, labels = read_images("cifar10/train", column="img")
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[HELD_OUT:]
    torch.manual_seed(1)
    primary: nn.Module = small_resnet().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if method == "ce":
        plain = counterpoise.SupervisedObjective(primary, cross_entropy)
        objective: nn.Module = plain
        groups: list[dict[str, Any]] = [{"params": list(plain.parameters()), "lr": 0.1}]
    else:
        auxiliary = small_resnet().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        transport = counterpoise.MutualTransport(primary, auxiliaries=[auxiliary], alpha=0.8)
        objective, groups = transport, transport.parameter_groups(lr=0.1, auxiliary_lr=0.01)
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps, step, started = epochs * (len(chosen) // BATCH), 0, time.monotonic()
    for epoch in range(epochs):
        for batch in torch.split(chosen[torch.randperm(len(chosen))], BATCH):
            optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, step / 200) * max(0.0, 1 - step / steps)
            inputs = normalised(augmented(images[batch]).float() / 255)
            with torch.autocast("cpu", torch.bfloat16):
                loss = objective(inputs, labels=labels[batch]).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        progress(f"{method}: epoch {epoch + 1} of {epochs}, {time.monotonic() - started:.0f} s, loss {loss.item():.3f}")
    save_file({name: value.contiguous() for name, value in primary.state_dict().items()}, weights)


def predict(method: str, weights: Path, folder: Path, *, epochs: int) -> None:
    """Write the predictions of one network."""
    network = small_resnet()
    network.load_state_dict(load_file(weights))
    network.eval()
    header = Header(
        class_names=CLASSES,
        model="resnet18-w16",
        method=method,
        seed=1,
        config_digest=hashlib.sha256(f"{method} {epochs} epochs".encode()).hexdigest(),
        versions={
            "counterpoise": counterpoise.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    )
    images, labels = read_images("cifar10/test", column="img")
    with PredictionWriter(folder / f"{method}.parquet") as writer:
        for number, (corruption, severity, corrupted) in enumerate(variants(images)):
            progress(f"{method}: {corruption or 'clean'} {severity or ''}")
            rows = len(corrupted)
            writer.append(
                Predictions.of(
                    logits=logits_of(network, corrupted),
                    labels=labels[:rows],
                    ids=torch.arange(rows) + number * len(images),
                    data_set="cifar10",
                    split="test",
                    corruption=[corruption] * rows,
                    severity=severity,
                    header=header,
                )
            )
    for name in ("svhn", "dtd"):
        foreign, _ = read_images({"svhn": "svhn_partial/test", "dtd": "dtd_32/test"}[name], column="image")
        table = Predictions.of(
            logits=logits_of(network, foreign.float() / 255), data_set=name, in_distribution=False, header=header
        )
        write_predictions(folder / f"{method}_{name}.parquet", table)


def read_images(name: str, *, column: str) -> tuple[Tensor, Tensor]:
    """Images `[n, 3, 32, 32]` as bytes, and labels `[n]`."""
    path = Path(os.environ["COUNTERPOISE_DATA"]) / f"{name}.parquet"
    table = pq.read_table(path)
    pixels = [np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")) for cell in table[column].to_pylist()]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), torch.tensor(table["label"].to_pylist())


def variants(images: Tensor) -> Iterator[tuple[str | None, int, Tensor]]:
    """The clean images, then each corruption at each severity, as floats in [0, 1]."""
    clean = images.float() / 255
    yield None, 0, clean
    torch.manual_seed(0)
    for name, corrupt in CORRUPTIONS.items():
        for severity in range(1, 6):
            yield name, severity, corrupt(clean[:CORRUPTED_IMAGES], severity).clamp(0, 1)


def _blurred(images: Tensor, severity: int) -> Tensor:
    place = torch.arange(-4, 5).float()
    line = torch.softmax(-(place**2) / (2 * (0.25 + 0.25 * severity) ** 2), 0)
    kernel = (line[:, None] * line[None, :]).expand(3, 1, 9, 9)
    return F.conv2d(F.pad(images, (4, 4, 4, 4), mode="reflect"), kernel, groups=3)


def _pixelated(images: Tensor, severity: int) -> Tensor:
    small = F.interpolate(images, size=(32 - 4 * severity,) * 2, mode="area")
    return F.interpolate(small, size=(32, 32), mode="nearest")


CORRUPTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "noise": lambda images, severity: images + 0.025 * severity * torch.randn_like(images),
    "blur": _blurred,
    "brightness": lambda images, severity: images + 0.08 * severity,
    "contrast": lambda images, severity: 0.5 + (images - 0.5) * (1 - 0.16 * severity),
    "pixelation": _pixelated,
}


@torch.no_grad()
def logits_of(network: nn.Module, images: Tensor) -> Tensor:
    """Logits `[n, 10]` of images as floats in [0, 1], or bytes, computed in float32."""
    return torch.cat([network(normalised(part)) for part in torch.split(images, 500)])


def normalised(images: Tensor) -> Tensor:
    """Zero mean and unit deviation for each channel."""
    return ((images - MEAN) / DEVIATION).contiguous(memory_format=torch.channels_last)


def augmented(images: Tensor) -> Tensor:
    """Random crop with padding 4, and horizontal flip."""
    rows = len(images)
    padded = F.pad(images, (4, 4, 4, 4))
    down, right = (torch.randint(0, 9, (rows, 1)) + torch.arange(32) for _ in range(2))
    samples, channels = torch.arange(rows).view(-1, 1, 1, 1), torch.arange(3).view(1, -1, 1, 1)
    crops = padded[samples, channels, down[:, None, :, None], right[:, None, None, :]]
    return torch.where(torch.rand(rows, 1, 1, 1) < 0.5, crops.flip(-1), crops)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, features: Tensor) -> Tensor:
        """`relu(body(x) + skip(x))`."""
        return F.relu(self.body(features) + self.skip(features))


def small_resnet(width: int = 16) -> nn.Module:
    """ResNet18 in the small-image form, with `width` channels in its first stage."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [Block(inputs, outputs, 2 if stage else 1), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, len(CLASSES)))


if __name__ == "__main__":
    main()
