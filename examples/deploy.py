"""Deploy: train with an auxiliary, fit a temperature, and export files that return calibrated probabilities.

Run it with `python examples/deploy.py`; it needs the extras `export` and `sklearn`, and a few seconds. It
prints the temperature, and how far the probabilities of ONNX Runtime and of torch.export are from the library's.
"""

import tempfile
from pathlib import Path

import onnxruntime
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from counterpoise import MutualTransport, evaluate
from counterpoise.calibrators import TemperatureScaling
from counterpoise.export import describe, export_onnx, export_pt2, load_pt2

MEAN, STD = 0.3, 0.37


def digits() -> tuple[Tensor, Tensor]:
    """Normalised images `[1797, 1, 8, 8]` and labels, in random order."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    pixels = torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16
    return ((pixels - MEAN) / STD)[order], torch.from_numpy(labels)[order]


def network(width: int) -> nn.Module:
    """Any module that returns logits."""
    layers = [nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * width, 10))


def train(images: Tensor, labels: Tensor, *, epochs: int = 5) -> nn.Module:
    """The primary, trained beside an auxiliary that is left behind."""
    torch.manual_seed(0)
    model = MutualTransport(network(16), [network(8)], alpha=0.8)
    optimizer = torch.optim.SGD(model.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(50):
            model(images[rows], labels=labels[rows]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.primary.eval()


def main() -> dict[str, float]:
    """Train, calibrate, export, compare; returns the largest difference of a probability for each runtime."""
    images, labels = digits()
    training, validation, test = slice(0, 1000), slice(1000, 1400), slice(1400, None)
    primary = train(images[training], labels[training])

    with torch.inference_mode():
        scaling = TemperatureScaling().fit(primary(images[validation]), labels[validation])
        expected = scaling(primary(images[test])).exp()
    print(f"temperature {scaling.temperature:.3f} ({scaling.state})")
    print(f"ECE on the test images: {evaluate(probabilities=expected, labels=labels[test])['ece'].value:.1%}")

    metadata = describe(class_names=[str(digit) for digit in range(10)], mean=[MEAN], std=[STD])
    with tempfile.TemporaryDirectory() as folder:
        onnx_file, pt2_file = Path(folder, "digits.onnx"), Path(folder, "digits.pt2")
        export_onnx(primary, onnx_file, example=images[:1], metadata=metadata, temperature=scaling)
        export_pt2(primary, pt2_file, example=images[:1], metadata=metadata, temperature=scaling)

        session = onnxruntime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
        in_onnx = session.run(["probabilities"], {"images": images[test].numpy()})[0]
        program, _ = load_pt2(pt2_file)
        in_pt2 = program(images[test])["probabilities"]

    found = {"ONNX Runtime": torch.from_numpy(in_onnx), "torch.export": in_pt2}
    differences = {runtime: (values - expected).abs().max().item() for runtime, values in found.items()}
    for runtime, difference in differences.items():
        print(f"{runtime}: largest difference of a probability {difference:.1e}")
    return differences


if __name__ == "__main__":
    main()
