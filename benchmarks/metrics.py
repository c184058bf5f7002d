"""Speed and memory of classwise ECE: `python -m benchmarks.metrics [--short]`.

From given probabilities at N = 50,000, K = 1,000, float32, one thread: against one `torch.softmax` of that shape, the
plain form (a bin index for every probability, then bincounts), and the classes of torchmetrics and torch-uncertainty,
interleaved in one run, the best of several. Then K = 21,841 with N = 50,000 in batches: what it adds to peak memory.
Then a million classes: what `evaluate` gathers, against streams of its three exact metrics with 256 rows at a time.
"""

import argparse
import multiprocessing
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.reporting import Check, finish, progress
from counterpoise import Stream
from counterpoise.metrics import ClasswiseCalibration, Key, ScoreOptions, ScoreState
from counterpoise.metrics.inputs import prediction_table
from counterpoise.metrics.standard import standard_metrics

BINS = 15
MOST_SOFTMAXES, MOST_OF_PLAIN, MOST_MEGABYTES, MOST_STREAMS = 2.5, 0.5, 300, 1.3


def main() -> None:
    """Measure and check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--short", action="store_true", help="without the other libraries, and fewer streamed samples, for CI"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    samples, classes = 50_000, 1_000
    logits, labels = trial(samples, classes)
    probabilities = torch.softmax(logits, -1)
    contestants: dict[str, Callable[[], Any]] = {
        "torch.softmax": lambda: torch.softmax(logits, -1),
        "counterpoise": lambda: ours(probabilities, labels),
        "plain bincounts": lambda: plain(probabilities, labels),
    }
    seconds, values = race(contestants, repetitions=7)
    if not options.short:
        slow = {"torch-uncertainty": lambda: theirs(probabilities, labels)}
        slow["torchmetrics, class by class"] = lambda: class_by_class(probabilities, labels)
        slow_seconds, slow_values = race(slow, repetitions=1)
        seconds |= slow_seconds
        values |= slow_values
    wide = 21_841
    if options.short:
        megabytes = {wide: {"counterpoise": peak_of_stream("counterpoise", 2_000, wide)}}
    else:
        libraries = {classes: ["counterpoise", "torch-uncertainty", "torchmetrics"]}
        libraries[wide] = ["counterpoise", "torch-uncertainty"]
        megabytes = {
            size: {name: peak_of_stream(name, 50_000, size) for name in names} for size, names in libraries.items()
        }
    many = many_classes(100_000 if options.short else 1_000_000, repetitions=3 if options.short else 2)
    relative = {name: seconds[name] / seconds["torch.softmax"] for name in seconds}
    values = {name: value for name, value in values.items() if isinstance(value, float)}
    finish(
        "python -m benchmarks.metrics" + (" --short" if options.short else ""),
        {
            "samples": samples,
            "classes": classes,
            "seconds": seconds,
            "relative_to_softmax": relative,
            "classwise_ece": values,
            "megabytes_added_by_stream": megabytes,
            "processor_seconds_with_many_classes": many,
        },
        [
            Check("classwise ECE over softmax", relative["counterpoise"], at_most=MOST_SOFTMAXES),
            Check(
                "classwise ECE over plain bincounts",
                seconds["counterpoise"] / seconds["plain bincounts"],
                at_most=MOST_OF_PLAIN,
            ),
            Check("megabytes that the stream adds", megabytes[wide]["counterpoise"], at_most=MOST_MEGABYTES),
            Check(
                "score state over streams, many classes", many["score state"] / many["streams"], at_most=MOST_STREAMS
            ),
            # One probability that the plain form rounds across a bin's edge changes it by 2e-8.
            Check(
                "difference to the plain form", abs(values["counterpoise"] - values["plain bincounts"]), at_most=2e-7
            ),
        ],
    )


def many_classes(classes: int, *, repetitions: int) -> dict[str, float]:
    """Processor seconds for 512 rows, taking turns, the best of several: a score state, and streams of 256 rows."""
    progress(f"{classes:,} classes")
    logits, labels = trial(512, classes)

    def state() -> None:
        gathered = ScoreState(classes=classes)
        for batch, _ in prediction_table(logits=logits, labels=labels).batches():
            gathered.add(batch, np.arange(len(batch), dtype=np.uint64), columns={})

    def streams() -> None:
        every = [Stream(metric) for metric in standard_metrics(ScoreOptions(), classes=classes) if metric is not None]
        for start in range(0, len(labels), 256):
            rows = slice(start, start + 256)
            batch = prediction_table(logits=logits[rows], labels=labels[rows]).checked_rows()
            for stream in every:
                stream.update_checked(batch)

    best = {"score state": float("inf"), "streams": float("inf")}
    # A busy machine only adds time, so what is above the limit is measured some more.
    for repetition in range(4 * repetitions):
        if repetition >= repetitions and best["score state"] <= MOST_STREAMS * best["streams"]:
            break
        for name, run in (("score state", state), ("streams", streams)):
            started = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - started)
    return best


def trial(samples: int, classes: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits 3 x standard normal, 6 added on the label; float32."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=generator)
    labels = torch.randint(classes, (samples,), generator=generator)
    logits[torch.arange(samples), labels] += 6
    return logits, labels


def ours(probabilities: Tensor, labels: Tensor) -> float:
    """Through the public stream: values checked, sums for the interval included."""
    stream = Stream(ClasswiseCalibration(num_classes=probabilities.shape[-1], bins=BINS))
    stream.update(probabilities=probabilities, labels=labels)
    return stream.compute()[Key.CLASSWISE_ECE].value


def plain(probabilities: Tensor, labels: Tensor) -> float:
    """A bin for every probability and three bincounts, as one would write it down; nothing checked, no interval."""
    samples, classes = probabilities.shape
    cell = (probabilities * BINS).ceil().long().sub_(1).clamp_(0, BINS - 1)
    cell += torch.arange(classes) * BINS
    confidence = torch.bincount(cell.flatten(), weights=probabilities.flatten(), minlength=classes * BINS)
    label_cell = cell.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    hits = torch.bincount(label_cell, minlength=classes * BINS)
    return float((hits - confidence).abs().sum() / samples / classes)


def theirs(probabilities: Tensor, labels: Tensor) -> float:
    """The class of torch-uncertainty."""
    import torch_uncertainty.metrics

    metric = torch_uncertainty.metrics.ClasswiseCalibrationError(probabilities.shape[-1], num_bins=BINS)
    metric.update(probabilities, labels)
    return float(metric.compute())


def class_by_class(probabilities: Tensor, labels: Tensor) -> float:
    """The library torchmetrics has no classwise error; its binary one, for each class in turn."""
    import torchmetrics

    classes = probabilities.shape[-1]
    total = 0.0
    for k in range(classes):
        total += float(
            torchmetrics.functional.classification.binary_calibration_error(
                probabilities[:, k], (labels == k).long(), n_bins=BINS, norm="l1", validate_args=False
            )
        )
    return total / classes


def race(contestants: dict[str, Callable[[], Any]], *, repetitions: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Best time of each, taking turns; and what each returned."""
    best = dict.fromkeys(contestants, float("inf"))
    values = {}
    for repetition in range(repetitions):
        for name, run in contestants.items():
            progress(f"{name}, {repetition + 1} of {repetitions}")
            started = time.process_time()
            values[name] = run()
            best[name] = min(best[name], time.process_time() - started)
    return best, values


def peak_of_stream(name: str, samples: int, classes: int) -> float:
    """Megabytes that streaming adds to the peak memory of a new process that already holds one batch."""
    progress(f"{name}: {samples:,} x {classes:,} streamed")
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_stream_in_process, args=(sender, name, samples, classes))
    process.start()
    sender.close()
    try:
        megabytes: float = receiver.recv()
    except EOFError:
        megabytes = float("inf")  # the process did not survive
    process.join()
    return megabytes


def _stream_in_process(sender: Any, name: str, samples: int, classes: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    batch_size = 250
    logits, labels = trial(batch_size, classes)
    batch = torch.softmax(logits, -1)
    del logits
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory starts anew (Linux)
    before = _memory("VmRSS")
    stream: Any
    if name == "counterpoise":
        stream = Stream(ClasswiseCalibration(num_classes=classes, bins=BINS))
        for _ in range(samples // batch_size):
            stream.update(probabilities=batch, labels=labels)
        stream.compute()
    elif name == "torch-uncertainty":
        import torch_uncertainty.metrics

        # It keeps every batch; a copy stands for the loader's next one. Its compute, which needs more, is left out.
        stream = torch_uncertainty.metrics.ClasswiseCalibrationError(classes, num_bins=BINS)
        for _ in range(samples // batch_size):
            stream.update(batch.clone(), labels)
    else:
        import torchmetrics

        # A binary metric for each class; they keep every probability, too.
        binary = torchmetrics.classification.BinaryCalibrationError
        metrics = [binary(n_bins=BINS, norm="l1", validate_args=False) for _ in range(classes)]
        for _ in range(samples // batch_size):
            following = batch.clone()
            for k, metric in enumerate(metrics):
                metric.update(following[:, k], (labels == k).long())
    sender.send(_memory("VmHWM") - before)


def _memory(field: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
