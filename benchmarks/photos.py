"""From a folder of photos to an ONNX file, as a new user would: `python -m benchmarks.photos [--bin FOLDER]`.

Writes 300 photos of PACS as JPEG files of different sizes, one folder a class, and runs the two commands of
docs/photos.md in that place, with the real ImageNet weights of `python -m tools.pretrained` instead of a download. Then
the ONNX file classifies the test photos without torch, by their probabilities, and its accuracy is compared with the
run's. `--bin` names the folder of another environment's programs, such as one that has nothing but the wheel.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

from benchmarks.reporting import Check, finish, progress
from counterpoise.data.images import load_images
from counterpoise.predictions import read_predictions
from tools.pretrained import write_lite0

PHOTOS = 300
MOST_SECONDS = 600
LEAST_ACCURACY = 0.75
"""On about 45 test photos of seven classes, of which a guess gets one in five."""


def main() -> None:
    """Both commands, and the file that they end in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=Path(sys.executable).parent)
    parser.add_argument("--method", default="mte1")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        write_photos(place / "photos")
        write_lite0(place / "lite0.safetensors")
        weights = ("--primary.weights", "lite0.safetensors", "--auxiliary.weights", "lite0.safetensors")
        started = time.monotonic()
        run = [options.bin / "counterpoise"]
        _command([*run, "train", "photos/", "--recipe", "finetune", "--method", options.method, *weights], place)
        trained = time.monotonic() - started
        _command([*run, "export", "runs/photos", "--to", "onnx", "--temperature", "fitted"], place)
        seconds = time.monotonic() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        probabilities, labels, logits = predicted(place)
    accuracy = float((probabilities.argmax(1) == labels).mean())
    agreeing = float((probabilities.argmax(1) == logits.argmax(1)).mean())
    figures = {
        "photos": PHOTOS,
        "method": options.method,
        "seconds": seconds,
        "seconds_of_training": trained,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "test_photos": len(labels),
        "accuracy": accuracy,
        "nll": float(-np.log(probabilities[np.arange(len(labels)), labels]).mean()),
    }
    checks = [
        Check("seconds from the folder to the file", seconds, at_most=MOST_SECONDS),
        Check("test accuracy of the file", accuracy, at_least=LEAST_ACCURACY),
        Check("test photos with the class that the run predicted", agreeing, at_least=0.97),
    ]
    finish("python -m benchmarks.photos", figures, checks)


def write_photos(folder: Path) -> None:
    """Photos of PACS, evenly from its classes, at sizes between 64 and 160 pixels."""
    images = load_images("pacs_64", "test", domain="photo")
    chosen = np.random.default_rng(0).permutation(len(images))[:PHOTOS]
    for number, row in enumerate(sorted(chosen.tolist())):
        place = folder / images.classes[int(images.labels[row])]
        place.mkdir(parents=True, exist_ok=True)
        photo = Image.fromarray(images.pixels[row].permute(1, 2, 0).numpy())
        side = 64 + number % 97
        photo.resize((side, max(64, side - 10)), Image.Resampling.BICUBIC).save(place / f"{row:04}.jpg", quality=92)


def predicted(place: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of the ONNX file for the test photos, their labels, and the run's own logits for them."""
    tested = read_predictions(place / "runs/photos/predictions/test.parquet")
    session = onnxruntime.InferenceSession(place / "runs/photos/primary.onnx")
    facts = session.get_modelmeta().custom_metadata_map
    mean, std, size = (json.loads(facts[each]) for each in ("mean", "std", "size"))
    rows = []
    for name in tested.ids.tolist():
        image = Image.open(place / "photos" / name, formats=("JPEG", "PNG", "WEBP")).convert("RGB")
        pixels = np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)) / 255
        inputs = ((pixels - mean) / std).astype(np.float32).transpose(2, 0, 1)[None]
        rows.append(session.run(["probabilities"], {"images": inputs})[0][0])
    return np.stack(rows), np.asarray(tested.labels), np.asarray(tested.values)


def _command(words: list[str | Path], folder: Path) -> None:
    progress(" ".join(map(str, words)))
    subprocess.run(words, cwd=folder, check=True, stdout=sys.stderr)  # standard output is for the JSON


if __name__ == "__main__":
    main()
