"""What every method costs beside cross-entropy, measured: `python -m benchmarks.method_cost [--short]`.

Every method, and MTE-1 with each saving, trains ResNet18 of width 16 on CIFAR-10 in float32 with one thread, through
the engine. Seconds are the processor time of the steps of a second epoch, over all members of an ensemble: rounds over
all methods in one process, the least of each counts. Memory is the largest that a process of its own had resident while
it trained: all of it, and what training added to data and libraries. Inference is a forward pass of what ships. Linux
alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch

from benchmarks.reporting import Check, finish, progress
from counterpoise.recipes.config import OptimizerOptions, Recipe
from counterpoise.recipes.methods import METHODS
from counterpoise.recipes.savings import SavingOptions
from counterpoise.training.data import RunData, named_data
from counterpoise.training.engine import fit
from counterpoise.training.folder import RunFolder
from counterpoise.training.networks import Members, recipe_models
from counterpoise.training.progress import quiet
from counterpoise.training.run import member_seeds
from counterpoise_study.cost import REFERENCE
from counterpoise_study.costs import large_recipe
from counterpoise_study.process_memory import peak_memory, reset_peak, resident_memory

ROUNDS = 3
IMAGES, SHORT_IMAGES = 2000, 200
HELD_OUT = 100
INFERRED = 500
SHORT = ("ce", "mte1", "mte-lite", "pskd", "de3")
SAVINGS: Mapping[str, tuple[str, SavingOptions]] = {
    "every-2": ("MTE-1, learns every 2nd step", SavingOptions(every=2)),
    "every-4": ("MTE-1, learns every 4th step", SavingOptions(every=4)),
    "cached-4": ("MTE-1, runs every 4th step, cached between", SavingOptions(every=4, cached=True)),
    "shared-trunk": ("MTE-1, shared trunk", SavingOptions(trunk="half")),
}
"""Of MTE-1, beside the methods as they are: their titles and options."""

LIMITS = {"mte-lite": 1.3, "shared-trunk": 1.3, "pskd": 1.03, "every-4": 1.6}
"""Most processor time over cross-entropy."""


def main() -> None:
    """Measure all methods in turn, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="some methods and few images, to show that it runs")
    parser.add_argument("--one", metavar="NAME", help="measure the memory of one here, and print its figures")
    options = parser.parse_args()
    images = SHORT_IMAGES if options.short else IMAGES
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(memory_and_inference(options.one, images=images)))
        return
    names = SHORT if options.short else (*METHODS, *SAVINGS)
    data = data_of(recipe_of(REFERENCE, images=images))
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(1 if options.short else ROUNDS):
        for name in names:
            times[name].append(training_seconds(name, images=images, data=data))
            progress(f"round {round_ + 1}, {name}: {times[name][-1]:.2f} s")
    found = {name: {"training_seconds": min(values)} for name, values in times.items()}
    for name in names:
        command = [sys.executable, "-m", "benchmarks.method_cost", "--one", name]
        command += ["--short"] if options.short else []
        found[name] |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        progress(f"{name}: {found[name]}")
    base = found[REFERENCE]
    compared = {
        name: {"title": title_of(name)} | each | {f"{key}_ratio": each[key] / base[key] for key in each}
        for name, each in found.items()
    }
    figures = {"images": images, "rounds": len(times[REFERENCE]), "methods": compared}
    checks = []
    if not options.short:
        ensemble = found["de3"]["inference_seconds"] / base["inference_seconds"]
        checks = [Check("inference of three networks over that of one", ensemble, at_least=2.0)]
        checks += [
            Check(
                f"training of {name} over that of {REFERENCE}",
                found[name]["training_seconds"] / base["training_seconds"],
                at_most=most,
            )
            for name, most in LIMITS.items()
        ]
    finish("python -m benchmarks.method_cost", figures, checks)


def title_of(name: str) -> str:
    """As tables show it."""
    return SAVINGS[name][0] if name in SAVINGS else METHODS[name].title


def recipe_of(name: str, *, images: int) -> Recipe:
    """The larger setting of the study of costs, for two epochs."""
    recipe = large_recipe(OptimizerOptions(milestones=()))
    method, savings = ("mte1", SAVINGS[name][1]) if name in SAVINGS else (name, SavingOptions())
    data = replace(recipe.data, limit=images + HELD_OUT, validation=HELD_OUT)
    return replace(recipe, method=method, savings=savings, epochs=2, data=data)


def data_of(recipe: Recipe) -> RunData:
    """Images to train on, the same for all."""
    return replace(named_data(recipe), test=None, ood={})


class Clock(L.Callback):
    """Processor time of the steps of each epoch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, *_: Any) -> None:
        """Start."""
        self.seconds.append(-time.process_time())

    def on_validation_start(self, *_: Any) -> None:
        """Stop, before validation."""
        self.seconds[-1] += time.process_time()


def trained(name: str, *, images: int, data: RunData, clock: Clock) -> list[torch.nn.Module]:
    """What ships after two epochs."""
    recipe = recipe_of(name, images=images)
    shape = data.example.pixels.shape
    make = recipe_models(recipe, classes=len(data.example.classes), channels=shape[1])
    primaries = []
    for seed in member_seeds(recipe):
        objective: Any = recipe.objective(make(seed))
        with tempfile.TemporaryDirectory() as temporary, quiet():
            folder = RunFolder(Path(temporary))
            folder.checkpoints.mkdir()
            fit(replace(recipe, seed=seed), folder, objective, data, resume_from=None, callbacks=[clock])
        primaries.append(objective.primary)
    return primaries


def training_seconds(name: str, *, images: int, data: RunData) -> float:
    """Processor time of the second epoch, over all members."""
    clock = Clock()
    trained(name, images=images, data=data, clock=clock)
    return sum(clock.seconds[1::2])


def memory_and_inference(name: str, *, images: int) -> dict[str, float]:
    """Megabytes, and seconds to predict a batch."""
    data = data_of(recipe_of(name, images=images))
    before = resident_memory() or 0
    reset_peak()
    primaries = trained(name, images=images, data=data, clock=Clock())
    peak = peak_memory() or 0
    model = primaries[0] if len(primaries) == 1 else Members(primaries)
    return {
        "peak_megabytes": peak / 1e6,
        "added_megabytes": (peak - before) / 1e6,
        "inference_seconds": inference(model.eval().to(memory_format=torch.channels_last)),  # type: ignore[call-overload]
    }


def inference(model: torch.nn.Module) -> float:
    """Seconds of a forward pass, the fastest of several."""
    batch = torch.zeros(INFERRED, 3, 32, 32).to(memory_format=torch.channels_last)
    times = []
    with torch.inference_mode():
        for _ in range(5):
            started = time.process_time()
            model(batch)
            times.append(time.process_time() - started)
    return min(times)


if __name__ == "__main__":
    main()
