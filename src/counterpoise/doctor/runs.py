"""Short trainings through the engine: mixed precision, determinism, resuming, and what the data pipeline gives."""

import contextlib
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
from torch import nn

from counterpoise.data.images import Images
from counterpoise.data.memory import MemoryLoader
from counterpoise.doctor.bench import Bench, Finding, Skipped, images_for, recipe_for
from counterpoise.recipes.config import Precision, Recipe
from counterpoise.training.checkpoints import read_manifest, state_digest
from counterpoise.training.data import augmentation, from_images
from counterpoise.training.engine import fit
from counterpoise.training.folder import STEP_COLUMNS, RowLog, RunFolder
from counterpoise.training.networks import ModelFactory, recipe_models
from counterpoise.training.progress import quiet
from counterpoise.training.run import resume, train

MIXED_LIMIT = 0.1
"""Largest relative difference of a loss in mixed precision from that in float32; a wrong cast gives far more."""

_PIPELINE_SECONDS = 0.5


class Interruption(Exception):  # noqa: N818
    """What stops a run that is to be resumed."""


class StopAtDeadline(L.Callback):
    """Ends a training whose time is up."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def on_train_batch_end(self, *_: Any) -> None:
        self.bench.seconds_left()


@dataclass(frozen=True)
class Trace:
    """What a training went through: the loss of every step in hexadecimal, and the digest of its last state."""

    losses: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, run: RunFolder) -> "Trace":
        last = read_manifest(run.checkpoints).last
        assert last is not None
        rows = RowLog(run.steps, STEP_COLUMNS).rows()
        return cls(tuple(row["loss_hex"] for row in rows), state_digest(run.checkpoints / last.file))

    @property
    def values(self) -> list[float]:
        return [float.fromhex(loss) for loss in self.losses]


def trained(recipe: Recipe, images: Images, *, callbacks: Sequence[L.Callback]) -> Trace:
    """Train in a temporary folder, in silence."""
    models = recipe_models(recipe, classes=len(images.classes), channels=images.pixels.shape[1])
    objective = recipe.objective(models(recipe.seed))
    with tempfile.TemporaryDirectory() as folder, quiet():
        run = RunFolder(Path(folder))
        run.checkpoints.mkdir()
        fit(recipe, run, objective, from_images(recipe, images), resume_from=None, callbacks=callbacks)
        return Trace.of(run)


def mixed_precision(bench: Bench, precision: Precision) -> Finding:
    """Losses are finite and close to those in float32; float16 has a gradient scaler."""
    if precision == "bfloat16" and bench.device == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise Skipped("the device has no bfloat16")
    setting = bench.scale.mixed
    traces = {}
    for each in ("float32", precision):
        bench.say(f"{bench.name}: training in {each}")
        recipe = recipe_for(setting, device=bench.device, precision=each)
        traces[each] = trained(recipe, images_for(setting), callbacks=[StopAtDeadline(bench)])
    difference = largest_difference(traces[precision].values, traces["float32"].values)
    detail = f"loss {traces['float32'].values[-1]:.3f} in float32, {traces[precision].values[-1]:.3f} in {precision}"
    return bench.finding(difference, MIXED_LIMIT, "relative", detail=f"{detail} after {2 * setting.steps} steps")


def largest_difference(values: Sequence[float], reference: Sequence[float]) -> float:
    """The largest relative difference of a loss; infinite where one is not finite.

    >>> largest_difference([1.0, math.nan], [1.0, 1.0])
    inf
    """
    differences = [abs(a - b) / abs(b) for a, b in zip(values, reference, strict=True)]
    return max(difference if math.isfinite(difference) else math.inf for difference in differences)


def determinism(bench: Bench) -> Finding:
    """The same seed gives the same bits: of every loss, and of the whole state at the end."""
    setting = bench.scale.training
    traces = []
    for turn in ("first", "second"):
        bench.say(f"{bench.name}: {turn} of two trainings")
        recipe = _repeatable(bench)
        traces.append(trained(recipe, images_for(setting), callbacks=[StopAtDeadline(bench)]))
    return _same(bench, *traces)


def resuming(bench: Bench) -> Finding:
    """A run that is stopped inside an epoch and resumed ends as one that was not."""
    setting = bench.scale.training
    recipe, images = _repeatable(bench), images_for(setting)
    data = from_images(recipe, images)
    models = recipe_models(recipe, classes=len(images.classes), channels=images.pixels.shape[1])
    with tempfile.TemporaryDirectory() as folder:
        whole, parted = (RunFolder(Path(folder) / name) for name in ("whole", "parted"))
        bench.say(f"{bench.name}: a training without an interruption")
        with quiet():
            train(recipe, whole.path, data=data, models=_watched(models, bench))
        bench.say(f"{bench.name}: one that is interrupted, and resumed")
        with quiet():
            # A look at one image before the run, and its validation, are passes too: the last steps are left.
            with contextlib.suppress(Interruption):
                train(recipe, parted.path, data=data, models=_watched(models, bench, stop_after=2 * setting.steps))
            reached = read_manifest(parted.checkpoints).last
            assert reached is not None
            assert reached.step < 2 * setting.steps
            resume(parted.path, data=data, models=_watched(models, bench))
        finding = _same(bench, Trace.of(whole), Trace.of(parted))
    return replace(finding, detail=f"resumed at step {reached.step} of {2 * setting.steps}, {finding.detail}")


def data_pipeline(bench: Bench) -> Finding:
    """Augmented batches of the device are those of the CPU, in two epochs."""
    setting = bench.scale.training
    recipe, images = recipe_for(setting, device=bench.device), images_for(setting)
    there, here = (
        MemoryLoader(
            images,
            batch=setting.batch,
            seed=0,
            augmentation=augmentation(recipe, images),
            shuffle=True,
            drop_last=True,
            device=device,
        )
        for device in (bench.device, "cpu")
    )
    worst = 0.0
    for epoch in range(2):
        there.set_epoch(epoch)
        here.set_epoch(epoch)
        for found, expected in zip(there, here, strict=True):
            if not (torch.equal(found.ids.cpu(), expected.ids) and torch.equal(found.labels.cpu(), expected.labels)):
                return bench.finding(math.inf, 1e-6, "absolute", detail="other images, or in another order")
            worst = max(worst, float((found.images.cpu() - expected.images).abs().max()))
    rate = f"{_images_per_second(there, bench.device):,.0f} images/s of {setting.pixels}x{setting.pixels} pixels"
    return bench.finding(worst, 1e-6, "absolute", detail=rate)


def synchronise(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device != "cpu":
        torch.accelerator.synchronize()


def _repeatable(bench: Bench) -> Recipe:
    """On CUDA by deterministic algorithms alone; elsewhere all are, or cannot be asked for."""
    return recipe_for(bench.scale.training, device=bench.device, deterministic=bench.device == "cuda")


def _same(bench: Bench, first: Trace, second: Trace) -> Finding:
    differing = sum(a != b for a, b in zip(first.losses, second.losses, strict=True))
    same = first.digest == second.digest
    state = f"state {first.digest[:12]}" if same else f"states {first.digest[:12]} and {second.digest[:12]}"
    return bench.finding(differing, 0, "steps differ", passed=same and not differing, detail=state)


def _watched(models: ModelFactory, bench: Bench, *, stop_after: int | None = None) -> ModelFactory:
    """Models whose primary gives up when the time is up, or stops after so many passes as if the machine had."""

    def build(seed: int) -> Sequence[nn.Module]:
        built, passes = models(seed), count()

        def before_pass(*_: Any) -> None:
            bench.seconds_left()
            if next(passes) == stop_after:
                raise Interruption

        built[0].register_forward_pre_hook(before_pass)
        return built

    return build


def _images_per_second(loader: MemoryLoader, device: str) -> float:
    synchronise(device)
    started, delivered = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < _PIPELINE_SECONDS:
        delivered += sum(len(batch.labels) for batch in islice(loader, 10))
        synchronise(device)
    return delivered / elapsed
