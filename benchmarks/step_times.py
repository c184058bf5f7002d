"""Steps of the engine and of a hand-written loop, timed in turn."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from counterpoise._extras import require
from counterpoise.data.images import Images
from counterpoise.data.memory import MemoryLoader
from counterpoise.recipes.config import OptimizerOptions, Recipe
from counterpoise.training.data import from_images
from counterpoise.training.devices import mixed_precision
from counterpoise.training.engine import device_type, fit
from counterpoise.training.folder import RunFolder
from counterpoise.training.networks import recipe_models
from counterpoise.training.progress import quiet

_BARE_BATCHES = 20
_PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class StepTimes:
    """Seconds a step of every block; of processor time where that is what trains."""

    engine: tuple[float, ...]
    bare: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Of the fastest blocks, which other programs disturbed least."""
        return min(self.engine) / min(self.bare)


def step_times(
    recipe: Recipe,
    images: Images,
    *,
    block: int,
    blocks: int,
    say: Callable[[str], None],
) -> StepTimes:
    """Steps of MTE-1 through the engine and in a bare loop, blocks in turn.

    Args:
        recipe: of the method `mte1`, in float32 or bfloat16; checkpoints inside an epoch are left out.
        images: to train on; one epoch of them must hold `block * (blocks + 1)` steps.
        block: steps in a row.
        blocks: how many are timed; one more comes before, and warms up.
        say: shows a line of progress.
    """
    if recipe.method != "mte1" or recipe.engine.precision not in _PRECISIONS:
        raise ValueError(f"the bare loop is of mte1 in {' or '.join(_PRECISIONS)}")
    recipe = replace(recipe, engine=replace(recipe.engine, checkpoint_steps=None))
    turns = TakeTurns(bare_loop(recipe, images), recipe, block=block, blocks=blocks, say=say)
    models = recipe_models(recipe, classes=len(images.classes), channels=images.pixels.shape[1])
    with tempfile.TemporaryDirectory() as folder, quiet():
        run = RunFolder(Path(folder))
        run.checkpoints.mkdir()
        objective = recipe.objective(models(recipe.seed))
        fit(recipe, run, objective, from_images(recipe, images), resume_from=None, callbacks=[turns])
    return StepTimes(tuple(turns.engine), tuple(turns.bare))


class TakeTurns(L.Callback):
    """After every block of the engine's steps, as many of the other loop's."""

    def __init__(
        self,
        other: Callable[[int], None],
        recipe: Recipe,
        *,
        block: int,
        blocks: int,
        say: Callable[[str], None],
    ) -> None:
        self.other, self.device = other, device_type(recipe.engine)
        self.block, self.blocks, self.say = block, blocks, say
        self.engine: list[float] = []
        self.bare: list[float] = []
        self._since = 0.0

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Measure whenever a block is full; the first, which warms up, does not count."""
        if trainer.should_stop or trainer.global_step % self.block:
            return
        now = self._clock()
        self.other(self.block)
        resumed = self._clock()
        if self._since:
            self.engine.append((now - self._since) / self.block)
            self.bare.append((resumed - now) / self.block)
            self.say(
                f"block {len(self.bare)} of {self.blocks}: "
                f"engine {1e3 * self.engine[-1]:.1f} ms, bare {1e3 * self.bare[-1]:.1f} ms a step"
            )
        trainer.should_stop = len(self.bare) >= self.blocks
        self._since = self._clock()

    def _clock(self) -> float:
        if self.device != "cpu":
            torch.accelerator.synchronize()
        return time.process_time() if self.device == "cpu" else time.perf_counter()


def bare_loop(recipe: Recipe, images: Images) -> Callable[[int], None]:
    """MTE-1 written by hand, on batches that are on the device already; a function that takes so many steps."""
    device, options, alpha = device_type(recipe.engine), recipe.optimizer_in_force, recipe.choice["alpha"]
    build = recipe_models(recipe, classes=len(images.classes), channels=images.pixels.shape[1])
    primary, auxiliary = _ready(build(recipe.seed + 1), device)
    loader = MemoryLoader(
        images, batch=recipe.batch, seed=0, augmentation=None, shuffle=True, drop_last=True, device=device
    )
    batches: Iterator[tuple[Tensor, Tensor]] = cycle(
        [(part.images, part.labels) for part in islice(loader, _BARE_BATCHES)]
    )
    optimizer = _bare_optimizer(options, {primary: options.lr, auxiliary: options.first_auxiliary_lr})

    def steps(number: int) -> None:
        for inputs, labels in islice(batches, number):
            optimizer.zero_grad()
            with mixed_precision(recipe.engine.precision, device=device):
                f, g = primary(inputs).float(), auxiliary(inputs).float()
            log_f, log_g = F.log_softmax(f, -1), F.log_softmax(g, -1)
            pull = F.kl_div(log_f, log_g.detach(), log_target=True, reduction="batchmean")
            follow = F.kl_div(log_g, log_f.detach(), log_target=True, reduction="batchmean")
            (F.nll_loss(log_f, labels) + alpha * pull + follow).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return steps


def _bare_optimizer(options: OptimizerOptions, rates: Mapping[nn.Module, float]) -> torch.optim.Optimizer:
    """AdamW as timm's scripts set it up, with learning rates by layer; or SGD."""
    if options.name == "adamw":
        optim = require("timm.optim", extra="train", purpose="parameter groups by layer")
        groups = [
            group | {"lr": rate * group["lr_scale"]}
            for model, rate in rates.items()
            for group in optim.param_groups_layer_decay(model, options.weight_decay, layer_decay=options.layer_decay)
        ]
        return torch.optim.AdamW(groups, weight_decay=options.weight_decay)
    return torch.optim.SGD(
        [{"params": model.parameters(), "lr": rate} for model, rate in rates.items()],
        lr=options.lr,
        momentum=options.momentum,
        nesterov=options.nesterov,
        weight_decay=options.weight_decay,
    )


def _ready(models: Sequence[nn.Module], device: str) -> list[nn.Module]:
    return [model.to(device, memory_format=torch.channels_last).train() for model in models]  # type: ignore[call-overload]
