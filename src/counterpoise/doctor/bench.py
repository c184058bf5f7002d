"""What every check is given, and what it gives back."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from counterpoise.data.images import Images
from counterpoise.models import Backbone
from counterpoise.recipes.config import DataOptions, EngineOptions, OptimizerOptions, Precision, Recipe

CLASSES = 10

ACCELERATORS = {"cpu": "cpu", "cuda": "gpu", "mps": "mps"}
"""Kinds of device that can be checked, with the recipe's name for each."""


class Skipped(Exception):  # noqa: N818
    """A check does not apply here; its text says why."""


@dataclass(frozen=True)
class Finding:
    """What a check came to.

    Attributes:
        name: of the check.
        measured: the figure; NaN where there is none.
        limit: which it should not exceed.
        unit: of both.
        passed: None where the check was skipped.
        detail: what else is worth knowing, or why it was skipped, or what went wrong.
        seconds: that the check took.
    """

    name: str
    measured: float
    limit: float
    unit: str
    passed: bool | None
    detail: str
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """In a word; a warning passes, but is above its limit.

        >>> Finding("speed", 1.1, 1.05, "", passed=True, detail="").status
        'warning'
        """
        if self.passed is None:
            return "skipped"
        if not self.passed:
            return "WRONG"
        return "warning" if self.measured > self.limit else "ok"


@dataclass(frozen=True)
class Setting:
    """A small training: two networks of one kind, images of so many pixels, two epochs of so many steps."""

    network: Backbone
    pixels: int
    batch: int
    steps: int


@dataclass(frozen=True)
class Scale:
    """How large the work is.

    Attributes:
        training: for determinism, resuming and the data pipeline, and what a timed step is.
        mixed: for mixed precision.
        block: timed steps in a row.
        blocks: how many such blocks are timed.
    """

    training: Setting
    mixed: Setting
    block: int
    blocks: int


CUDA = Scale(
    training=Setting(Backbone("resnet18", width=64), pixels=32, batch=128, steps=8),
    mixed=Setting(Backbone("resnet18", width=64), pixels=32, batch=128, steps=8),
    block=10,
    blocks=15,
)
# Convolutions in float16 on a CPU are tens of times slower than in float32, so that only a small network will do.
CPU = Scale(
    training=Setting(Backbone("resnet18", width=16), pixels=32, batch=50, steps=4),
    mixed=Setting(Backbone("cnn", width=16), pixels=8, batch=50, steps=4),
    block=4,
    blocks=6,
)
TINY = Scale(
    training=Setting(Backbone("cnn", width=4), pixels=8, batch=20, steps=3),
    mixed=Setting(Backbone("cnn", width=4), pixels=8, batch=20, steps=3),
    block=4,
    blocks=4,
)


@dataclass(frozen=True)
class Bench:
    """Where a check works, and until when.

    Attributes:
        name: of the check.
        device: such as `cpu` or `cuda`.
        scale: how large the work is.
        deadline: by `time.monotonic`, after which a check gives up.
        say: shows a line of progress.
    """

    name: str
    device: str
    scale: Scale
    deadline: float
    say: Callable[[str], None]

    def seconds_left(self) -> float:
        """What is left of the time; `Skipped` where nothing is."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise Skipped("the time was up")
        return seconds

    def finding(
        self, measured: float, limit: float, unit: str, *, detail: str = "", passed: bool | None = None
    ) -> Finding:
        """The result; it passes within the limit, unless the check knows better."""
        if passed is None:
            passed = math.isfinite(measured) and measured <= limit
        return Finding(self.name, measured, limit, unit, passed, detail)


def recipe_for(
    setting: Setting, *, device: str, precision: Precision = "float32", deterministic: bool = False
) -> Recipe:
    """MTE-1 over two epochs with a checkpoint inside each."""
    return Recipe(
        method="mte1",
        primary=setting.network,
        auxiliary=setting.network,
        epochs=2,
        batch=setting.batch,
        data=DataOptions(name="gratings", validation=setting.batch, padding=setting.pixels // 8),
        optimizer=OptimizerOptions(lr=0.01, schedule="cosine"),
        engine=EngineOptions(
            precision=precision,
            accelerator=ACCELERATORS[device],  # type: ignore[arg-type]
            deterministic=deterministic,
            checkpoint_steps=2,
        ),
    )


def gratings(count: int, *, pixels: int, seed: int = 0) -> Images:
    """Images that a network can learn in a few steps: waves whose direction is the class, in noise.

    >>> gratings(20, pixels=8).pixels.shape
    torch.Size([20, 3, 8, 8])
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    angle = labels * (math.pi / CLASSES)
    across = torch.arange(pixels) * (4 * math.pi / pixels)
    phase = angle.cos()[:, None, None] * across + angle.sin()[:, None, None] * across[:, None]
    wave = torch.sin(phase + 2 * math.pi * torch.rand(count, 1, 1, generator=generator))
    noise = torch.randn(count, pixels, pixels, 3, generator=generator)
    values = (128 + 50 * wave[..., None] + 25 * noise).clamp(0, 255).to(torch.uint8)
    return Images.of(values, labels, name="gratings", flip=False)


def images_for(setting: Setting) -> Images:
    """As many as an epoch needs, and a batch to validate on."""
    return gratings((setting.steps + 1) * setting.batch, pixels=setting.pixels)
