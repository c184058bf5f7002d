"""What every method costs beside cross-entropy, measured: `python -m benchmarks.method_cost [--short]`.

Every method trains the networks of the reduced study (ResNet18 of width 16, CIFAR-10, bfloat16, one thread) for two
epochs, through the engine, in a process of its own; rounds over all methods, the fastest of each counts. Seconds are
those of the second epoch, over all members of an ensemble. Memory is the largest that the process had resident while it
trained: all of it, and what training added to data and libraries. Inference is a forward pass of what ships. Nothing
else should run meanwhile; Linux alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.diagnosis import read_curve
from benchmarks.reporting import Check, finish, progress
from counterpoise.recipes.config import Recipe
from counterpoise.recipes.methods import METHODS
from counterpoise.training.data import named_data
from counterpoise.training.folder import RunFolder, member_folders
from counterpoise.training.networks import load_run
from counterpoise.training.progress import quiet
from counterpoise.training.run import train
from counterpoise_study.cost import REFERENCE
from counterpoise_study.process_memory import peak_memory, reset_peak, resident_memory
from counterpoise_study.scales import reduced

ROUNDS = 3
IMAGES, SHORT_IMAGES = 3000, 300
HELD_OUT = 100
INFERRED = 500
SHORT = ("ce", "mte1", "de3")


def main() -> None:
    """Measure all methods in turn, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="three methods and few images, to show that it runs")
    parser.add_argument("--one", metavar="METHOD", help="measure one method here, and print its figures")
    options = parser.parse_args()
    images = SHORT_IMAGES if options.short else IMAGES
    if options.one:
        print(json.dumps(measured(options.one, images=images)))
        return
    methods = SHORT if options.short else tuple(METHODS)
    runs: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
    for round_ in range(1 if options.short else ROUNDS):
        for method in methods:
            command = [sys.executable, "-m", "benchmarks.method_cost", "--one", method]
            command += ["--short"] if options.short else []
            found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            runs[method].append(json.loads(found))
            progress(f"round {round_ + 1}, {method}: {found.strip()}")
    best = {method: {name: min(run[name] for run in found) for name in found[0]} for method, found in runs.items()}
    base = best[REFERENCE]
    compared = {
        method: found | {f"{name}_ratio": found[name] / base[name] for name in found} for method, found in best.items()
    }
    figures = {"images": images, "rounds": len(runs[REFERENCE]), "methods": compared}
    ensemble = compared["de3"]["inference_seconds_ratio"]
    checks = [] if options.short else [Check("inference of three networks over that of one", ensemble, at_least=2.0)]
    finish("python -m benchmarks.method_cost", figures, checks)


def measured(method: str, *, images: int) -> dict[str, float]:
    """Seconds of an epoch, megabytes, and seconds to predict a batch."""
    with tempfile.TemporaryDirectory() as temporary, quiet():
        recipe = recipe_of(method, images=images)
        data = replace(named_data(recipe), test=None, ood={})
        before = resident_memory() or 0
        reset_peak()
        train(recipe, temporary, data=data, page=False)
        peak = peak_memory() or 0
        run = RunFolder(Path(temporary))
        seconds = sum(last_epoch(folder) for folder in member_folders(recipe, run))
        model = load_run(temporary).model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return {
            "training_seconds": seconds,
            "peak_megabytes": peak / 1e6,
            "added_megabytes": (peak - before) / 1e6,
            "inference_seconds": inference(model),
        }


def recipe_of(method: str, *, images: int) -> Recipe:
    """The setting of the reduced study's figures, for two epochs."""
    recipe = reduced().figures[0].recipe
    return replace(
        recipe, method=method, epochs=2, data=replace(recipe.data, limit=images + HELD_OUT, validation=HELD_OUT)
    )


def last_epoch(run: RunFolder) -> float:
    """Seconds of the last epoch of a training."""
    return float(read_curve(run)[-1]["seconds"])


def inference(model: torch.nn.Module) -> float:
    """Seconds of a forward pass, the fastest of several."""
    batch = torch.zeros(INFERRED, 3, 32, 32).to(memory_format=torch.channels_last)
    times = []
    with torch.inference_mode():
        for _ in range(5):
            started = time.perf_counter()
            model(batch)
            times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    main()
