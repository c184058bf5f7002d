"""How long cells take: a model with a few constants, and a short run on the present machine that measures them.

    seconds = start-up + steps x overhead + training FLOPs / speed + inference FLOPs / speed
              + (complete cells) completion + corrupted images x seconds each

Speeds are of each network, measured by real training steps in the recipe's batch and precision. Everything else is
measured by one small run through the engine, on images of noise.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from counterpoise.data.images import Images
from counterpoise.models import Backbone, build_model
from counterpoise.models.backbone import RANDOM
from counterpoise.recipes.config import EvaluationOptions, OptimizerOptions, Recipe
from counterpoise.recipes.methods import METHODS
from counterpoise.training.data import from_images
from counterpoise.training.folder import RunFolder
from counterpoise_study.cells import Stage
from counterpoise_study.corruptions import STANDARD, corrupted
from counterpoise_study.cost import BACKWARD, counted, forward_flops, networks_of, shape_of, training_flops, work_of
from counterpoise_study.record import record_of
from counterpoise_study.requests import Request

_BUDGET = 16.0
"""Seconds for the speeds of all networks."""

_MOST_STEPS, _NOISE_ROWS = 20, 100


@dataclass(frozen=True)
class Speed:
    """FLOPs a second of one network.

    Attributes:
        network: which one.
        image_flops: of the forward pass of an image that it was measured with.
        training: FLOPs a second in training steps.
        inference: FLOPs a second in float32 predictions.
        batch: images in a measured step; fewer than the recipe's where one step would have taken too long.
    """

    network: Backbone
    image_flops: float
    training: float
    inference: float
    batch: int


@dataclass(frozen=True)
class HardwareTiming:
    """The constants of the model.

    Attributes:
        device: that they are of, such as `cpu` or `cuda`.
        note: how they were obtained.
        speeds: of the networks that were measured.
        start_up: seconds until the first step, and from the last one to the predictions of validation images.
        step: seconds of a step beside the networks.
        completion: seconds of scores, record and page, beside the networks.
        corruption: seconds to corrupt an image.
    """

    device: str
    note: str
    speeds: tuple[Speed, ...]
    start_up: float = 0.0
    step: float = 0.0
    completion: float = 0.0
    corruption: float = 0.0

    def speed(self, network: Backbone, image_flops: float) -> Speed:
        """The speed of a network, or of the one that is most like it in FLOPs."""
        same = [speed for speed in self.speeds if speed.network == network]
        return min(same or self.speeds, key=lambda speed: abs(math.log(speed.image_flops / image_flops)))


def assumed_timing(device_flops: float) -> HardwareTiming:
    """A device that nobody has measured: so many FLOPs a second, and nothing else takes time."""
    if not 0 < device_flops < math.inf:
        raise ValueError(f"the FLOPs a second of a device must be positive, got {device_flops}")
    speed = Speed(Backbone(), 1.0, device_flops, device_flops, 0)
    return HardwareTiming("device", f"assumed, not measured: {device_flops:.3g} FLOPs a second in training", (speed,))


def seconds_of(recipe: Recipe, stage: Stage, timing: HardwareTiming) -> float:
    """How long a cell takes, by the model."""
    work = work_of(recipe, stage)
    classes, shape = shape_of(recipe)
    cost = counted(recipe, classes=classes, shape=shape)
    images = work.training_passes / cost.networks * METHODS[recipe.method].members
    training = 0.0
    for network, flops in zip(networks_of(recipe), training_flops(recipe, classes=classes, shape=shape), strict=True):
        training += images * flops / timing.speed(network, forward_flops(network, classes, shape)[0]).training
    primary = timing.speed(recipe.primary, forward_flops(recipe.primary, classes, shape)[0])
    seconds = timing.start_up + work.steps * timing.step + training + work.inference_flops / primary.inference
    if stage == "complete":
        seconds += timing.completion + work.corrupted * timing.corruption
    return seconds


def time_hardware(
    requests: Sequence[Request], *, page: bool = True, say: Callable[[str], None] = lambda _: None
) -> HardwareTiming:
    """Measure the constants for the networks of requests, on the device that they would train on; within 30 seconds.

    Args:
        requests: whose networks are measured, each with the smallest images that it is used for.
        page: whether complete cells get a report of their own.
        say: told what is under way.
    """
    recipes = [
        replace(request.setting(line.setting).recipe, method=line.method)
        for request in requests
        for line in request.lines
    ]
    recipes.sort(key=lambda recipe: shape_of(recipe)[1][1])
    from counterpoise.training.engine import device_type  # here, because a plan or a status can do without the engine

    device, threads = device_type(recipes[0].engine), torch.get_num_threads()
    probes = {network: recipe for recipe in reversed(recipes) for network in networks_of(recipe)}
    degraded = [recipe for recipe in recipes if recipe.evaluation.corruptions]
    torch.set_num_threads(recipes[0].engine.threads or threads)
    try:
        speeds = []
        for network, recipe in probes.items():
            say(f"timing: {network.name} of width {network.width}, {recipe.engine.precision} on {device}")
            speeds.append(_speed(network, recipe, device=device, budget=_BUDGET / len(probes)))
        say(f"timing: a small run on {device}")
        start_up, step, completion = _small_run(recipes[0], page=page)
        corruption = _corruption(degraded[0]) if degraded else 0.0
        note = f"measured on this machine, {device}"
        note += f" of {torch.get_num_threads()} thread(s)" if device == "cpu" else ""
    finally:
        torch.set_num_threads(threads)
    if smaller := [speed for speed in speeds if speed.batch < probes[speed.network].batch]:
        batches = ", ".join(f"{speed.network.name} {speed.batch}" for speed in smaller)
        note += f"; in smaller batches, because a step takes long: {batches}"
    return HardwareTiming(device, note, tuple(speeds), start_up, step, completion, corruption)


def _speed(network: Backbone, recipe: Recipe, *, device: str, budget: float) -> Speed:
    """Real training steps and predictions of one network, in as large a batch as the time allows."""
    classes, shape = shape_of(recipe)
    flops, _ = forward_flops(network, classes, shape)
    model = build_model(replace(network, weights=RANDOM), classes=classes, channels=shape[0], seed=0).to(device)
    objective = METHODS["ce"].build([model.to(memory_format=torch.channels_last)])  # type: ignore[call-overload]
    options, precision = recipe.optimizer, recipe.engine.precision
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-3, momentum=options.momentum, weight_decay=options.weight_decay
    )

    from counterpoise.training.devices import mixed_precision

    def step(images: Tensor) -> None:
        labels = torch.zeros(len(images), dtype=torch.long, device=device)
        with mixed_precision(precision, device=device):
            loss = objective(images, labels=labels)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.inference_mode()
    def predict(images: Tensor) -> None:
        model(images)

    batch, seconds = _timed(step, shape, most=recipe.batch, device=device, budget=0.7 * budget)
    model.eval()
    rows, each = _timed(predict, shape, most=recipe.evaluation.batch, device=device, budget=0.3 * budget)
    return Speed(network, flops, (1 + BACKWARD) * flops * batch / seconds, flops * rows / each, batch)


def _timed(
    run: Callable[[Tensor], None], shape: tuple[int, int, int], *, most: int, device: str, budget: float
) -> tuple[int, float]:
    """The largest batch that can be run some times within the budget, and the median seconds of it."""

    def once() -> float:
        started = time.perf_counter()
        run(images)
        if device != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter() - started

    batch, spent = 1, 0.0
    while True:
        batch = min(most, 4 * batch)
        images = torch.randn(batch, *shape, device=device).to(memory_format=torch.channels_last)
        seconds = once()
        spent += seconds
        # Four times the batch takes about four times as long, and is run at least twice.
        if batch == most or spent + 8 * seconds > budget:
            break
    times = [once()]
    while spent + sum(times) + times[0] < budget and len(times) < _MOST_STEPS:
        times.append(once())
    return batch, statistics.median(times)


def _small_run(recipe: Recipe, *, page: bool) -> tuple[float, float, float]:
    """Seconds of start-up, of a step and of completion, of a run whose network takes next to no time."""
    classes, shape = shape_of(recipe)
    steps = min(_MOST_STEPS, max(1, work_of(recipe, "validation").steps // recipe.epochs))
    small = replace(
        recipe,
        method="ce",
        primary=Backbone("cnn", width=1),
        epochs=2,
        data=replace(recipe.data, validation=_NOISE_ROWS),
        optimizer=OptimizerOptions(milestones=()),
        evaluation=EvaluationOptions(),
    )
    rows = _NOISE_ROWS + steps * recipe.batch
    pixels = torch.randint(256, (rows, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    names = [str(index) for index in range(classes)]
    images = Images.of(pixels, torch.arange(rows) % classes, classes=names, name="noise")
    data = from_images(small, images)
    from counterpoise.training.folder import EPOCH_COLUMNS, RowLog
    from counterpoise.training.progress import quiet
    from counterpoise.training.run import resume, train

    with tempfile.TemporaryDirectory() as folder, quiet():
        run = RunFolder(Path(folder))
        started = time.perf_counter()
        train(small, run.path, data=data)
        trained = time.perf_counter()
        resume(run.path, data=replace(data, test=lambda: images), page=page)
        record_of(run, source="")
        completed = time.perf_counter()
        epochs = [float(row["seconds"]) for row in RowLog(run.epochs, EPOCH_COLUMNS).rows()]
    return trained - started - sum(epochs), min(epochs) / steps, completed - trained


def _corruption(recipe: Recipe) -> float:
    """Seconds to corrupt an image, over the usual corruptions."""
    _, shape = shape_of(recipe)
    pixels = torch.randint(256, (_NOISE_ROWS, *shape), dtype=torch.uint8)
    started = time.perf_counter()
    for name in STANDARD:
        corrupted(pixels, name, severity=3, seed=0, ids=torch.arange(_NOISE_ROWS))
    return (time.perf_counter() - started) / (_NOISE_ROWS * len(STANDARD))
