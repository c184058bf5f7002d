"""bfloat16 on this CPU: `python -m benchmarks.arithmetic`.

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
from counterpoise.training.arithmetic import float32_kernels, kernels_of

BATCH = 100
CONVOLUTIONS = ((3, 16, 32, 1), (16, 16, 32, 1), (16, 32, 32, 2), (32, 64, 16, 2), (64, 128, 8, 2), (128, 128, 4, 1))
"""Channels in and out, pixels, stride."""

BFLOAT16 = ("autocast", "float32_kernels")
KINDS = ("float32", *BFLOAT16)
ROUNDS = 20


def main() -> None:
    """Measure, print JSON, compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    torch.set_num_threads(1)
    seconds, inexact = fastest_steps(), shares_not_exact()
    chosen = kernels_of("bfloat16", device="cpu")
    figures = {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "chosen": chosen,
        "images_per_second": {kind: BATCH / each for kind, each in seconds.items()},
        "share_not_exact": inexact,
    }
    slower, faster = BFLOAT16 if chosen == "float32" else reversed(BFLOAT16)
    checks = [
        Check("speed of what is chosen over the other", seconds[slower] / seconds[faster], at_least=1.0),
        Check("share of values that are not exact, rounded once", max(inexact.values()), at_most=1e-3),
    ]
    finish("python -m benchmarks.arithmetic", figures, checks)


def fastest_steps() -> dict[str, float]:
    """Seconds of the fastest step of each kind; one more comes before, and warms up."""
    models = {kind: _network() for kind in KINDS}
    optimizers = {kind: torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9) for kind, model in models.items()}
    images = _images()
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(ROUNDS + 1):
        for kind, model in models.items():
            started = time.perf_counter()
            _backward(model, images, kind)
            optimizers[kind].step()
            optimizers[kind].zero_grad()
            times[kind].append(time.perf_counter() - started)
        progress(f"{number} of {ROUNDS}: " + ", ".join(f"{kind} {1e3 * times[kind][-1]:.0f} ms" for kind in KINDS))
    return {kind: min(each[1:]) for kind, each in times.items()}


def shares_not_exact() -> dict[str, float]:
    """Over outputs, gradients of inputs and of weights, of every shape of convolution in the network."""
    generator = torch.Generator().manual_seed(0)
    wrong, values = dict.fromkeys(BFLOAT16, 0), 0
    for inputs, outputs, pixels, stride in CONVOLUTIONS:
        images = torch.randn(BATCH, inputs, pixels, pixels, generator=generator).relu()
        kernel = torch.randn(outputs, inputs, 3, 3, generator=generator)
        upstream = torch.randn(BATCH, outputs, pixels // stride, pixels // stride, generator=generator).bfloat16()
        exact = _through(images.bfloat16().double(), kernel.bfloat16().double(), upstream.double(), stride=stride)
        values += sum(right.numel() for right in exact)
        for kind in BFLOAT16:
            with _arithmetic(kind):
                found = _through(images, kernel, upstream, stride=stride)
            differs = [value.bfloat16() != right.bfloat16() for value, right in zip(found, exact, strict=True)]
            wrong[kind] += sum(int(each.sum()) for each in differs)
    return {kind: number / values for kind, number in wrong.items()}


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
