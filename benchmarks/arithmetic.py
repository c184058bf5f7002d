"""bfloat16 on this CPU: `python -m benchmarks.arithmetic [--short]`.

Training steps of a ResNet18 of width 16 on 100 images of 32 pixels, one thread: in float32, in bfloat16 by torch's
autocast, and in bfloat16 by float32 kernels (`counterpoise.training.arithmetic`). Steps are taken in turn, and the
fastest of each counts. Then the convolutions of that network, forwards and backwards, against exact sums that are
rounded once: the share of values that are another bfloat16 number, with either kind.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.reporting import Check, finish, progress
from counterpoise.models import Backbone, build_model
from counterpoise.training.arithmetic import bfloat16_kernels, float32_kernels

BATCH = 100
CONVOLUTIONS = ((3, 16, 32, 1), (16, 16, 32, 1), (16, 32, 32, 2), (32, 64, 16, 2), (64, 128, 8, 2), (128, 128, 4, 1))
"""Channels in and out, pixels, stride."""

KINDS = ("float32", "autocast", "float32_kernels")


def main() -> None:
    """Measure, print JSON, compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer steps and no comparison with the limits")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds = fastest_steps(3 if options.short else 20)
    inexact = {kind: share_not_exact(kind) for kind in KINDS[1:]}
    chosen = bfloat16_kernels("cpu")
    figures = {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "chosen": chosen,
        "images_per_second": {kind: BATCH / each for kind, each in seconds.items()},
        "over_autocast": seconds["autocast"] / seconds["float32_kernels"],
        "share_not_exact": inexact,
    }
    faster = "float32_kernels" if chosen == "float32" else "autocast"
    slower = "autocast" if chosen == "float32" else "float32_kernels"
    checks = [
        Check("speed of what is chosen over the other", seconds[slower] / seconds[faster], at_least=1.0),
        Check("share of values that are not exact, rounded once", max(inexact.values()), at_most=1e-3),
    ]
    finish("python -m benchmarks.arithmetic", figures, [] if options.short else checks)


def fastest_steps(rounds: int) -> dict[str, float]:
    """Seconds of the fastest step of each kind; one more comes before, and warms up."""
    models = {kind: _network() for kind in KINDS}
    optimizers = {kind: torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9) for kind, model in models.items()}
    images = _images()
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        for kind, model in models.items():
            started = time.perf_counter()
            _backward(model, images, kind)
            optimizers[kind].step()
            optimizers[kind].zero_grad()
            times[kind].append(time.perf_counter() - started)
        progress(f"{number} of {rounds}: " + ", ".join(f"{kind} {1e3 * times[kind][-1]:.0f} ms" for kind in KINDS))
    return {kind: min(each[1:]) for kind, each in times.items()}


def share_not_exact(kind: str) -> float:
    """Over outputs, gradients of inputs and of weights, of every shape of convolution in the network."""
    generator = torch.Generator().manual_seed(0)
    wrong = values = 0
    for inputs, outputs, pixels, stride in CONVOLUTIONS:
        images = torch.randn(BATCH, inputs, pixels, pixels, generator=generator).relu()
        kernel = torch.randn(outputs, inputs, 3, 3, generator=generator)
        upstream = torch.randn(BATCH, outputs, pixels // stride, pixels // stride, generator=generator).bfloat16()
        exact = _through(images.bfloat16().double(), kernel.bfloat16().double(), upstream.double(), stride=stride)
        with _arithmetic(kind):
            found = _through(images, kernel, upstream, stride=stride)
        for value, right in zip(found, exact, strict=True):
            wrong += int((value.bfloat16() != right.bfloat16()).sum())
            values += right.numel()
    return wrong / values


def _through(images: Tensor, kernel: Tensor, upstream: Tensor, *, stride: int) -> list[Tensor]:
    """A convolution and its two gradients."""
    images, kernel = images.requires_grad_(), kernel.requires_grad_()
    result = functional.conv2d(images, kernel, stride=stride, padding=1)
    return [result.detach(), *torch.autograd.grad(result, [images, kernel], upstream)]


def _backward(model: nn.Module, images: Tensor, kind: str) -> None:
    with _arithmetic(kind):
        logits = model(images)
    functional.cross_entropy(logits.float(), torch.arange(BATCH) % logits.shape[1]).backward()  # type: ignore[no-untyped-call]


def _network() -> nn.Module:
    return build_model(Backbone("resnet18", width=16), classes=10, seed=0).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _images() -> Tensor:
    images = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return images.contiguous(memory_format=torch.channels_last)


@contextmanager
def _arithmetic(kind: str) -> Iterator[None]:
    half = nullcontext() if kind == "float32" else torch.autocast("cpu", torch.bfloat16)
    with half, float32_kernels() if kind == "float32_kernels" else nullcontext():
        yield


if __name__ == "__main__":
    main()
