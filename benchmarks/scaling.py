"""What it costs at any size, and how far that is right: `python -m benchmarks.scaling [--short]`.

Constants are measured on this machine, at sizes of their own; then the model (`scaling_model.py`) predicts bytes and
seconds of other sizes, which are run. Bytes are counted, and must agree. Seconds are CPU time of one process, the best
of several, in turn, so that other work on the machine hardly counts; neither does waiting. With the constants of a GPU,
which are assumed and not measured, the model fills the tables of docs/scaling.md; `--peak-flops 9.9e14` and so on for
another one.
"""

import argparse
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch

from benchmarks.reporting import Check, finish, progress
from benchmarks.scaling_counts import peak_of
from benchmarks.scaling_machine import (
    Size,
    Together,
    best_seconds,
    decode_run,
    evaluate_twice,
    evaluation_run,
    file_bytes,
    loss_run,
    peak_added,
    stepper,
    together,
    train_twice,
)
from benchmarks.scaling_model import (
    LOSS_MOVED,
    LOSS_MOVED_EACH,
    OPTIMIZER_MOVED,
    Hardware,
    Rates,
    decode_seconds,
    evaluation_seconds,
    loss_bytes,
    prediction_bytes,
    step_flops,
    step_seconds,
    training_memory,
    update_bytes,
)
from benchmarks.scaling_rows import Assumptions, auxiliary_rows, data_rows, evaluation_rows, training_rows
from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.models import Backbone

NARROW, WIDE = Backbone("resnet18", 16), Backbone("resnet18", 32)
FITTED = (Size(NARROW, NARROW, batch=64, classes=10), Size(WIDE, WIDE, batch=32, classes=10))
CHECKED = (
    Size(Backbone("resnet34", 32), NARROW, batch=32, classes=100),
    Size(NARROW, NARROW, batch=64, classes=21_841),
)
UNSEEN = (
    Size(Backbone("resnet18", 40), Backbone("resnet10", 24), batch=24, classes=2_000),
    Size(Backbone("resnet50", 24), Backbone("resnet18", 24), batch=16, classes=5_000, pixels=40),
)
"""No constant comes from `CHECKED` or `UNSEEN`; the form of the model was chosen with `CHECKED` in view."""

FITTED_LOSS = (64, 4_000)
FITTED_EVALUATION = ((419, 5_000), (20, 100_000), (5, 400_000))
CHECKED_EVALUATION = ((2_097, 1_000), (96, 21_841), (2, 1_000_000))
UNSEEN_EVALUATION = ((150, 12_000), (3, 600_000))
FITTED_PICTURES, CHECKED_PICTURES = ((256, 256), (1024, 768)), ((500, 375), (640, 480))
PIXELS = 224

EXACT, RESIDENT, FULL, WIDE_LIMIT = 1.01, 1.3, 2.0, 10.0
"""How many times too large or too small a prediction may be: counted bytes, resident memory, seconds, in short runs."""


@dataclass(frozen=True)
class Prediction:
    """What the model said, and what was."""

    what: str
    unit: str
    predicted: float
    measured: float
    limit: float

    def check(self) -> Check:
        """That it is not further off than allowed."""
        ratio = self.predicted / self.measured
        return Check(f"predicted over measured: {self.what}", ratio, at_least=1 / self.limit, at_most=self.limit)


def main() -> None:
    """Measure, predict, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="counts, and seconds within a wide limit only; for CI")
    for each in fields(Assumptions):
        option = f"--{each.name.replace('_', '-')}"
        parser.add_argument(option, type=type(each.default), default=each.default, help="assumed, default %(default)g")
    options = parser.parse_args()
    assumed = Assumptions(**{each.name: getattr(options, each.name) for each in fields(Assumptions)})
    torch.set_num_threads(1)
    repetitions = 1 if options.short else 8
    sizes = CHECKED[:1] if options.short else CHECKED + UNSEEN
    progress("two processes")
    pair = together(() if options.short else sizes, repetitions=repetitions)
    progress("constants of this machine")
    hardware, rates = measured_constants(pair, repetitions=repetitions)
    progress("counted bytes")
    predictions = counted(pair)
    progress("seconds")
    predictions += timed(hardware, rates, sizes, limit=WIDE_LIMIT if options.short else FULL, repetitions=repetitions)
    figures: dict[str, Any] = {"constants": asdict(hardware) | asdict(rates)}
    if not options.short:
        progress("memory")
        predictions += resident() + parallel(hardware, pair)
        progress("tables")
        gpu = assumed.hardware(decode=hardware.decode, decode_each=hardware.decode_each)
        figures |= {
            "assumptions": asdict(assumed),
            "training": training_rows(gpu),
            "auxiliaries": auxiliary_rows(),
            "evaluation": evaluation_rows(rates),
            "data": data_rows(),
        }
    figures["predictions"] = [asdict(each) for each in predictions]
    command = "python -m benchmarks.scaling" + (" --short" if options.short else "")
    finish(command, figures, [each.check() for each in predictions])


def measured_constants(pair: Together, *, repetitions: int) -> tuple[Hardware, Rates]:
    """Each from the smallest number of runs that determine it."""
    samples, classes = FITTED_LOSS
    pictures = [decode_run(width=width, height=height, size=PIXELS) for width, height in FITTED_PICTURES]
    batches = [evaluation_run(samples=rows, classes=columns) for rows, columns in FITTED_EVALUATION]
    steps = [stepper(size) for size in FITTED]
    runs = [loss_run(samples=samples, classes=classes), *pictures, *batches, *steps]
    loss, *others = best_seconds(runs, repetitions=repetitions)
    decoded, evaluated, (fresh, *stepped) = others[:2], others[2:4], others[4:]
    bandwidth = samples * classes * (LOSS_MOVED + LOSS_MOVED_EACH) / loss
    pixel, picture = solved([[width * height, 1] for width, height in FITTED_PICTURES], decoded)
    element, cell = solved([[n * k, DEFAULT_BINS * k] for n, k in FITTED_EVALUATION[:2]], evaluated)
    many_samples, many_classes = FITTED_EVALUATION[2]
    fresh_cell = (fresh / many_classes - many_samples * element) / DEFAULT_BINS
    jobs = [size.job() for size in FITTED]
    networks = [
        seconds - OPTIMIZER_MOVED * job.parameters / bandwidth for job, seconds in zip(jobs, stepped, strict=True)
    ]
    flop, byte = solved([[step_flops(job), training_memory(job).activations] for job in jobs], networks)
    hardware = Hardware(
        flops=1 / flop,
        memory_bandwidth=bandwidth,
        activation_bandwidth=1 / byte,
        # A rank of two sends as many bytes as it reduces.
        link=pair.payload / pair.seconds,
        network=pair.payload / pair.seconds,
        latency=pair.latency / 2,
        cores=1,
        decode=1 / pixel,
        decode_each=picture,
    )
    return hardware, Rates(element, cell, fresh_cell)


def solved(factors: list[list[float]], seconds: list[float]) -> list[float]:
    """Two unknowns from two runs; where noise makes one negative, next to nothing."""
    found = np.linalg.solve(np.array(factors, float), np.array(seconds))
    return [max(float(each), 1e-15) for each in found]


def counted(pair: Together) -> list[Prediction]:
    """Bytes, which the formulas must give."""
    found = []
    for samples, classes, auxiliaries in ((48, 777, 1), (16, 21_841, 2)):
        what = f"peak of the loss of MTE-{auxiliaries}, {samples} samples, {classes:,} classes"
        predicted = loss_bytes(samples=samples, classes=classes, auxiliaries=auxiliaries)
        measured = peak_of(loss_run(samples=samples, classes=classes, auxiliaries=auxiliaries)).most
        found.append(Prediction(what, "bytes", predicted, measured, EXACT))
    size = Size(Backbone("resnet18", 8), Backbone("resnet10", 8), batch=16, classes=5_000)
    step, memory = stepper(size), training_memory(size.job())
    step()
    found.append(
        Prediction(f"tensors of a step: {size}", "bytes", memory.of_batch - memory.images, peak_of(step).most, EXACT)
    )
    for classes, precision, width in ((1_000, "float32", 4), (21_841, "float16", 2)):
        measured = file_bytes(samples=300, classes=classes, precision=precision)
        predicted = prediction_bytes(samples=300, classes=classes, precision=width)
        found.append(
            Prediction(
                f"file of 300 predictions, {classes:,} classes, {precision}", "bytes", predicted, measured, EXACT
            )
        )
    found.append(Prediction("sent by one of two ranks, all-reduce", "bytes", pair.payload, pair.sent, EXACT))
    gradients = "sent by one of two ranks, DDP step of a primary and an auxiliary"
    return [*found, Prediction(gradients, "bytes", pair.gradients, pair.gradients_sent, EXACT)]


def timed(
    hardware: Hardware, rates: Rates, sizes: tuple[Size, ...], *, limit: float, repetitions: int
) -> list[Prediction]:
    """Seconds at sizes that no constant was taken from."""
    evaluations = CHECKED_EVALUATION[:2] if limit == WIDE_LIMIT else CHECKED_EVALUATION + UNSEEN_EVALUATION
    runs = [stepper(size) for size in sizes]
    runs += [evaluation_run(samples=samples, classes=classes) for samples, classes in evaluations]
    pictures = [decode_run(width=width, height=height, size=PIXELS) for width, height in CHECKED_PICTURES]
    seconds = best_seconds([*runs, *pictures], repetitions=repetitions)
    what = [f"step: {size}" for size in sizes]
    what += [f"{samples:,} samples x {classes:,} classes evaluated" for samples, classes in evaluations]
    what += [f"a picture of {width} x {height} decoded" for width, height in CHECKED_PICTURES]
    predicted = [step_seconds(size.job(), hardware).total for size in sizes]
    predicted += [
        evaluation_seconds(samples=samples, classes=classes, batch=samples, rates=rates)
        for samples, classes in evaluations
    ]
    predicted += [decode_seconds(width * height, hardware) for width, height in CHECKED_PICTURES]
    return [
        Prediction(name, "seconds", expected, found, limit)
        for name, expected, found in zip(what, predicted, seconds, strict=True)
    ]


def resident() -> list[Prediction]:
    """Memory that new processes take."""
    found = []
    for size in (CHECKED[1], Size(WIDE, NARROW, batch=128, classes=1_000)):
        predicted = training_memory(size.job()).peak
        found.append(Prediction(f"memory: {size}", "bytes", predicted, peak_added(train_twice, size), RESIDENT))
    for samples, classes in CHECKED_EVALUATION:
        what = f"memory: {samples:,} samples x {classes:,} classes evaluated"
        predicted = update_bytes(samples=samples, classes=classes)
        found.append(Prediction(what, "bytes", predicted, peak_added(evaluate_twice, samples, classes), RESIDENT))
    return found


def parallel(hardware: Hardware, pair: Together) -> list[Prediction]:
    """Steps of two processes."""
    return [
        Prediction(
            f"DDP step of two processes: {size}",
            "seconds",
            step_seconds(size.job(devices=2), hardware).total,
            seconds,
            FULL,
        )
        for size, seconds in zip(CHECKED + UNSEEN, pair.steps, strict=True)
    ]


if __name__ == "__main__":
    main()
