"""What the engine and the data pipeline cost: `python -m benchmarks.training [--short]`.

- One MTE-1 step (100 CIFAR-10 images, two ResNet18 of width 16, bfloat16) through the engine, with shuffling,
  augmentation, logs and checks as in any run, against the same two networks in a hand-written loop on batches that are
  in memory already. Both run in one process, blocks of steps in turn, and the ratio is that of the fastest blocks.
- Images per second of the in-memory pipeline against `torchvision.datasets` with v2 transforms and a DataLoader of two
  workers.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from benchmarks.reporting import Check, finish, progress
from counterpoise.data.augment import Augmentation
from counterpoise.data.images import Images, load_images
from counterpoise.data.memory import MemoryLoader
from counterpoise.recipes.config import Recipe
from counterpoise.recipes.methods import METHODS
from counterpoise.recipes.table import RECIPES
from counterpoise.training.data import from_images
from counterpoise.training.engine import fit
from counterpoise.training.folder import RunFolder
from counterpoise.training.networks import recipe_models

BLOCK = 10
ALPHA = 0.8


def main() -> None:
    """Measure both, print JSON, compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer steps and no comparison with the limits")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = load_images("cifar10", "test" if options.short else "train")
    blocks = 4 if options.short else 20
    engine, bare = step_times(images, blocks=blocks)
    ratio = min(engine) / min(bare)
    progress(f"a step through the engine takes {ratio:.3f} of a bare one")
    ours, theirs = pipeline_rates(images, seconds=2.0 if options.short else 8.0)
    progress(f"{ours:,.0f} images/s from memory, {theirs:,.0f} from torchvision")
    figures = {
        "threads": options.threads,
        "engine_over_bare": ratio,
        "engine_over_bare_median": statistics.median(e / b for e, b in zip(engine, bare, strict=True)),
        "bare_milliseconds": 1e3 * min(bare),
        "memory_images_per_second": ours,
        "torchvision_images_per_second": theirs,
    }
    checks = [
        Check("a step through the engine over a bare one", ratio, at_most=1.05),
        Check("in-memory pipeline over torchvision's", ours / theirs, at_least=5.0),
    ]
    finish("python -m benchmarks.training", figures, [] if options.short else checks)


def recipe() -> Recipe:
    """MTE-1 as `cifar10-small` has it, without checkpoints inside an epoch."""
    small = RECIPES["cifar10-small"].recipe()
    return replace(
        small,
        hyper={"alpha": ALPHA},
        data=replace(small.data, held_out=0.1),
        engine=replace(small.engine, accelerator="cpu", checkpoint_steps=None),
    )


class TakeTurns(L.Callback):
    """After every block of the engine's steps, as many of the other loop's; seconds a step of both."""

    def __init__(self, other: Callable[[int], None], *, blocks: int) -> None:
        self.other, self.blocks = other, blocks
        self.engine: list[float] = []
        self.bare: list[float] = []
        self._since = 0.0

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Measure whenever a block is full; the first, which warms up, does not count."""
        if trainer.global_step % BLOCK:
            return
        now = time.perf_counter()
        self.other(BLOCK)
        resumed = time.perf_counter()
        if self._since:
            self.engine.append((now - self._since) / BLOCK)
            self.bare.append((resumed - now) / BLOCK)
            progress(f"engine {1e3 * self.engine[-1]:.1f} ms, bare {1e3 * self.bare[-1]:.1f} ms a step")
        trainer.should_stop = len(self.bare) >= self.blocks
        self._since = time.perf_counter()


def step_times(images: Images, *, blocks: int) -> tuple[list[float], list[float]]:
    """Seconds a step through the engine, and in a bare loop, by block."""
    chosen = recipe()
    data = from_images(chosen, images)
    models = recipe_models(chosen, classes=len(images.classes), channels=images.pixels.shape[1])
    turns = TakeTurns(bare_loop(models(1), images), blocks=blocks)
    objective = METHODS[chosen.method].build(models(0), **chosen.choice)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        run.checkpoints.mkdir()
        fit(chosen, run, objective, data, resume_from=None, callbacks=[turns])
    return turns.engine, turns.bare


def bare_loop(models: Any, images: Images) -> Callable[[int], None]:
    """The same training written by hand; a function that takes so many steps."""
    primary, auxiliary = (model.to(memory_format=torch.channels_last).train() for model in models)
    loader = MemoryLoader(images, batch=100, seed=0, augmentation=None, shuffle=True, drop_last=True)
    batches: Iterator[tuple[Tensor, Tensor]] = cycle([(part.images, part.labels) for part in islice(loader, 20)])
    options = recipe().optimizer
    optimizer = torch.optim.SGD(
        [
            {"params": primary.parameters(), "lr": options.lr},
            {"params": auxiliary.parameters(), "lr": options.auxiliary_lr},
        ],
        lr=options.lr,
        momentum=options.momentum,
        nesterov=options.nesterov,
        weight_decay=options.weight_decay,
    )

    def steps(count: int) -> None:
        for inputs, labels in islice(batches, count):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                f, g = primary(inputs).float(), auxiliary(inputs).float()
            log_f, log_g = F.log_softmax(f, -1), F.log_softmax(g, -1)
            pull = F.kl_div(log_f, log_g.detach(), log_target=True, reduction="batchmean")
            follow = F.kl_div(log_g, log_f.detach(), log_target=True, reduction="batchmean")
            (F.nll_loss(log_f, labels) + ALPHA * pull + follow).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return steps


def pipeline_rates(images: Images, *, seconds: float) -> tuple[float, float]:
    """Images per second of the in-memory pipeline and of torchvision's, in turn, the best of each."""
    memory = MemoryLoader(
        images, batch=100, seed=0, augmentation=Augmentation(padding=4, flip=True), shuffle=True, drop_last=True
    )
    theirs = torchvision_loader(images)
    rates = [(rate(memory, seconds / 4), rate(theirs, seconds / 4)) for _ in range(4)]
    return max(ours for ours, _ in rates), max(other for _, other in rates)


def rate(loader: Iterable[Any], seconds: float) -> float:
    """Images per second, after the first batch, which starts workers."""
    batches = iter(loader)
    next(batches)
    started, count = time.perf_counter(), 0
    for batch in batches:
        count += len(batch[1])
        if time.perf_counter() - started > seconds:
            break
    return count / (time.perf_counter() - started)


def torchvision_loader(images: Images) -> Iterable[Any]:
    """`torchvision.datasets.CIFAR10` over the same images, its usual v2 transforms, and two workers."""
    from torch.utils.data import DataLoader
    from torchvision.datasets import CIFAR10
    from torchvision.transforms import v2

    # The class reads the archive of its own site; its images and its `__getitem__` are what matters here.
    data_set = CIFAR10.__new__(CIFAR10)
    data_set.data = images.pixels.permute(0, 2, 3, 1).contiguous().numpy()
    data_set.targets = images.labels.tolist()
    data_set.target_transform = None
    data_set.transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomCrop(32, padding=4),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(images.mean, images.std),
        ]
    )
    return DataLoader(data_set, batch_size=100, shuffle=True, num_workers=2, drop_last=True)


if __name__ == "__main__":
    main()
