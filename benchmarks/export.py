"""What ships is the primary: `python -m benchmarks.export [--short] [--weights FILE]`.

A ResNet18 of width 16 is exported as safetensors, pt2 and ONNX. Measured are, on the test images of CIFAR-10:

- bytes of the weights that differ in the safetensors file,
- differences of the logits from the model's, and images that another class is predicted for, in batches of 100; then
  differences in batches of 1 and 7,
- differences of the probabilities of pt2 and ONNX, with a fitted temperature folded in, from those of the library's
  `TemperatureScaling`,
- time of each exported form over the time of the model itself: float32, batches of 100, one thread, in turn, as the
  median of the ratios of many rounds. It is the time of the processor, which other work on the machine disturbs least.

Without a file of weights, the model first takes some hundred steps of SGD on training images: logits of random weights
are all alike, and would hide differences. The data are found by the environment variable COUNTERPOISE_DATA.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import onnxruntime
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import counterpoise
from benchmarks.reporting import Check, finish, progress
from counterpoise.calibrators import TemperatureScaling
from counterpoise.data import load_images, normalised
from counterpoise.export import FORMATS, Format, describe, export_model, load_pt2, load_safetensors
from counterpoise.functional.losses import cross_entropy
from counterpoise.models import Backbone, build_model

BACKBONE = Backbone("resnet18", width=16)
BATCH, OTHER_BATCHES = 100, (1, 7)
MOST_DIFFERENCE, MOST_PROBABILITY_DIFFERENCE, MOST_TIME = 1e-4, 1e-5, 1.02
STEPS, ROUNDS, SHORT_STEPS, SHORT_ROUNDS, SHORT_IMAGES = 300, 100, 15, 2, 500

Run = Callable[[Tensor], Tensor]


def main() -> None:
    """Export, compare, and check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer steps, images and repetitions, for CI")
    parser.add_argument("--weights", type=Path, help="safetensors of a ResNet18 of width 16 for CIFAR-10")
    options = parser.parse_args()
    torch.set_num_threads(1)
    progress("reading the test images")
    images = load_images("cifar10", "test", limit=SHORT_IMAGES if options.short else None)
    model = build_model(BACKBONE, classes=len(images.classes), seed=0)
    if options.weights:
        load_safetensors(model, options.weights)
    else:
        train(model, steps=SHORT_STEPS if options.short else STEPS)
    model.eval()
    inputs = normalised(images.pixels, images.mean, images.std).contiguous()
    with tempfile.TemporaryDirectory() as folder:
        paths = {to: Path(folder) / f"primary.{to}" for to in FORMATS}
        for to, path in paths.items():
            progress(f"exporting {to}")
            metadata = describe(class_names=images.classes, mean=images.mean, std=images.std)
            export_model(model, path, to=to, example=inputs[:1], metadata=metadata)
        progress("exporting with a temperature")
        calibrated = calibrated_differences(model, inputs, images.labels, Path(folder), metadata)
        differing = differing_bytes(model, paths["safetensors"])
        megabytes = {to: path.stat().st_size / 1e6 for to, path in paths.items()}
        runs = exported_forms(paths, classes=len(images.classes))
    progress(f"comparing on {len(inputs):,} images")
    expected = in_batches(model, inputs, BATCH)
    accuracy = (expected.argmax(-1) == images.labels).float().mean().item()
    logits = {form: in_batches(run, inputs, BATCH) for form, run in runs.items()}
    differences = {form: {BATCH: largest(found - expected)} for form, found in logits.items()}
    disagreements = {form: int((found.argmax(-1) != expected.argmax(-1)).sum()) for form, found in logits.items()}
    for form, run in runs.items():
        for batch in OTHER_BATCHES:
            part = slice(10 * batch)
            differences[form][batch] = largest(in_batches(run, inputs[part], batch) - expected[part])
    progress("timing")
    rounds = SHORT_ROUNDS if options.short else ROUNDS
    seconds = times({"model": model, **runs}, inputs[:BATCH], rounds=rounds)
    bare = seconds.pop("model")
    ratios = {
        form: median(one / other for one, other in zip(calls, bare, strict=True)) for form, calls in seconds.items()
    }
    figures = {
        "images": len(inputs),
        "accuracy": accuracy,
        "largest_logit": largest(expected),
        "megabytes": megabytes,
        "differing_bytes": differing,
        "largest_difference": differences,
        "other_predictions": disagreements,
        "largest_probability_difference": calibrated,
        "seconds_of_model": min(bare),
        "time_over_model": ratios,
    }
    checks = [Check("bytes that differ in the safetensors file", differing, at_most=0)]
    for form, difference in calibrated.items():
        limit = MOST_PROBABILITY_DIFFERENCE
        checks.append(Check(f"largest difference of a calibrated probability, {form}", difference, at_most=limit))
    for form in runs:
        worst = max(differences[form].values())
        checks.append(Check(f"largest difference of a logit, {form}", worst, at_most=MOST_DIFFERENCE))
        checks.append(Check(f"images with another prediction, {form}", disagreements[form], at_most=0))
        if not options.short:  # a few repetitions beside other work do not tell times apart by a fiftieth
            checks.append(Check(f"time over that of the model, {form}", ratios[form], at_most=MOST_TIME))
    arguments = [
        *(["--short"] if options.short else []),
        *(["--weights", str(options.weights)] if options.weights else []),
    ]
    finish(" ".join(["python -m benchmarks.export", *arguments]), figures, checks)


def train(model: nn.Module, *, steps: int) -> None:
    """A few plain steps, in the order of the file."""
    progress(f"{steps} steps of SGD")
    images = load_images("cifar10", "train", limit=steps * BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    objective = counterpoise.SupervisedObjective(model, cross_entropy)
    for batch in torch.split(torch.arange(len(images)), BATCH):
        inputs = normalised(images.pixels[batch], images.mean, images.std)
        objective(inputs, labels=images.labels[batch]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def exported_forms(paths: dict[Format, Path], *, classes: int) -> dict[str, Run]:
    """Each file, opened as somebody would who has nothing else."""
    reloaded = build_model(BACKBONE, classes=classes).eval()
    load_safetensors(reloaded, paths["safetensors"])
    return {"safetensors": reloaded} | programs(paths, output="logits")


def programs(paths: dict[Format, Path], *, output: str) -> dict[str, Run]:
    """One output of the files that need no code of the model."""
    program, _ = load_pt2(paths["pt2"])
    one_thread = onnxruntime.SessionOptions()
    one_thread.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(paths["onnx"], one_thread, providers=["CPUExecutionProvider"])

    def run_pt2(images: Tensor) -> Tensor:
        values: Tensor = program(images)[output]
        return values

    def run_onnx(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([output], {"images": images.numpy()})[0])

    return {"pt2": run_pt2, "onnx": run_onnx}


def calibrated_differences(
    model: nn.Module, inputs: Tensor, labels: Tensor, folder: Path, metadata: dict[str, str]
) -> dict[str, float]:
    """Largest difference of a probability from the calibrator's; it is fitted on one half and tried on the other."""
    logits, half = in_batches(model, inputs, BATCH), len(inputs) // 2
    scaling = TemperatureScaling().fit(logits[:half], labels[:half])
    paths: dict[Format, Path] = {"pt2": folder / "scaled.pt2", "onnx": folder / "scaled.onnx"}
    for to, path in paths.items():
        export_model(model, path, to=to, example=inputs[:1], metadata=metadata, temperature=scaling)
    expected = scaling(logits[half:]).exp()
    runs = programs(paths, output="probabilities")
    return {form: largest(in_batches(run, inputs[half:], BATCH) - expected) for form, run in runs.items()}


def differing_bytes(model: nn.Module, path: Path) -> int:
    """Bytes of the model's weights and buffers that the file has otherwise, or not at all."""
    stored = load_file(path)
    count = 0
    for name, value in model.state_dict().items():
        ours = value.contiguous().flatten().view(torch.uint8)
        theirs = stored[name].flatten().view(torch.uint8) if name in stored else ours.new_empty(0)
        count += len(ours) if theirs.shape != ours.shape else int((ours != theirs).sum())
    return count


@torch.inference_mode()
def in_batches(run: Run, inputs: Tensor, batch: int) -> Tensor:
    """Logits of all inputs."""
    return torch.cat([run(part) for part in torch.split(inputs, batch)])


def largest(values: Tensor) -> float:
    """The largest magnitude."""
    return values.abs().max().item()


@torch.inference_mode()
def times(runs: dict[str, Run], inputs: Tensor, *, rounds: int) -> dict[str, list[float]]:
    """Seconds of the processor for each call, `rounds` of each, in turn and with another one first in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for _ in range(rounds):
        for name in names:
            started = time.process_time()
            runs[name](inputs)
            seconds[name].append(time.process_time() - started)
        names = names[1:] + names[:1]
    return seconds


if __name__ == "__main__":
    main()
