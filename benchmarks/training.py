"""What the engine and the data pipeline cost: `python -m benchmarks.training [--short]`.

- One MTE-1 step (100 CIFAR-10 images, two ResNet18 of width 16, bfloat16) through the engine, with shuffling,
  augmentation, logs and checks as in any run, against the same two networks in a hand-written loop on batches that are
  in memory already. Both run in one process, blocks of steps in turn, and the ratio is that of the fastest blocks.
- One MTE-1 step of fine-tuning (50 images of 80 pixels, two EfficientNet-Lite0, AdamW with learning rates by layer,
  float32) in the same way.
- Images per second of the in-memory pipeline against `torchvision.datasets` with v2 transforms and a DataLoader of two
  workers.
"""

import argparse
import statistics
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.reporting import Check, finish, progress
from benchmarks.step_times import step_times
from counterpoise.data.augment import Augmentation
from counterpoise.data.images import Images, load_images
from counterpoise.data.memory import MemoryLoader
from counterpoise.models import Backbone
from counterpoise.recipes.catalog import RECIPES
from counterpoise.recipes.config import DataOptions, EngineOptions, OptimizerOptions, Recipe

BLOCK = 5
FINETUNING_BATCH, FINETUNING_BLOCKS = 50, 12


def main() -> None:
    """Measure both, print JSON, compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="two steps and no comparison with the limits")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = load_images("cifar10", "test" if options.short else "train")
    block, blocks = (1, 1) if options.short else (BLOCK, 60)
    times = step_times(recipe(), images, block=block, blocks=blocks, say=progress)
    progress(f"a step through the engine takes {times.ratio:.3f} of a bare one")
    larger = enlarged(images.take(torch.arange(min(len(images), FINETUNING_BATCH * (FINETUNING_BLOCKS + 3)))), 80)
    finetuning = step_times(
        finetuned(), larger, block=1, blocks=1 if options.short else FINETUNING_BLOCKS, say=progress
    )
    progress(f"a step of fine-tuning through the engine takes {finetuning.ratio:.3f} of a bare one")
    ours, theirs = pipeline_rates(images, seconds=0.5 if options.short else 8.0)
    progress(f"{ours:,.0f} images/s from memory, {theirs:,.0f} from torchvision")
    figures = {
        "threads": options.threads,
        "engine_over_bare": times.ratio,
        "engine_over_bare_median": statistics.median(e / b for e, b in zip(times.engine, times.bare, strict=True)),
        "bare_milliseconds": 1e3 * min(times.bare),
        "finetuning_engine_over_bare": finetuning.ratio,
        "finetuning_bare_milliseconds": 1e3 * min(finetuning.bare),
        "memory_images_per_second": ours,
        "torchvision_images_per_second": theirs,
    }
    checks = [
        Check("a step through the engine over a bare one", times.ratio, at_most=1.05),
        Check("a step of fine-tuning through the engine over a bare one", finetuning.ratio, at_most=1.05),
        Check("in-memory pipeline over torchvision's", ours / theirs, at_least=5.0),
    ]
    finish(f"python -m benchmarks.training --threads {options.threads}", figures, [] if options.short else checks)


def recipe() -> Recipe:
    """MTE-1 as `cifar10-small` has it."""
    small = RECIPES["cifar10-small"].recipe()
    return replace(
        small,
        data=replace(small.data, validation=0.1),
        engine=replace(small.engine, accelerator="cpu"),
    )


def finetuned() -> Recipe:
    """MTE-1 with AdamW; the weights are random, which a step does not take longer or shorter for."""
    network = Backbone("timm/tf_efficientnet_lite0", small_images=False)
    return Recipe(
        primary=network,
        auxiliary=network,
        epochs=2,
        batch=FINETUNING_BATCH,
        data=DataOptions(validation=0.1, padding=8),
        optimizer=OptimizerOptions(
            name="adamw", lr=1e-3, layer_decay=0.8, decay_norms=False, weight_decay=0.05, schedule="cosine"
        ),
        engine=EngineOptions(accelerator="cpu"),
    )


def enlarged(images: Images, size: int) -> Images:
    """The same images with more pixels."""
    pixels = torch.nn.functional.interpolate(images.pixels.float(), size=(size, size)).to(torch.uint8)
    return replace(images, pixels=pixels.contiguous(memory_format=torch.channels_last))


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
