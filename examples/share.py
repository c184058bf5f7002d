"""Share: save a trained primary with a model card that says how far its confidence can be trusted, and load it again.

Run it with `python examples/share.py FOLDER`; it needs the extras `hub` and `sklearn`, and a few seconds. It
writes the folder, prints where the card is, and the prediction of the model that it loaded from there. Nothing is
uploaded: `push_to_hub("FOLDER", "USER/NAME")` would do that.
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from counterpoise import MutualTransport, evaluate
from counterpoise.calibrators import TemperatureScaling
from counterpoise.export import ModelConfig
from counterpoise.export.card import Card
from counterpoise.integrations.hub import from_pretrained, save_pretrained
from counterpoise.models import Backbone, build_model

BACKBONE = Backbone("cnn", width=16)
NAMES = tuple(str(digit) for digit in range(10))
RECIPE = {"method": "MTE-1", "alpha": 0.8, "epochs": 5, "batch": 50, "lr": 0.1, "auxiliary_lr": 0.01, "momentum": 0.9}


def digits(*, mean: float, std: float) -> tuple[Tensor, Tensor]:
    """Normalised images `[1797, 1, 8, 8]` and labels, in random order."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    pixels = torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16
    return ((pixels - mean) / std)[order], torch.from_numpy(labels)[order]


def train(images: Tensor, labels: Tensor) -> nn.Module:
    """The primary, trained beside an auxiliary that is left behind."""
    torch.manual_seed(0)
    primary, auxiliary = (build_model(BACKBONE, classes=10, channels=1, seed=seed) for seed in (0, 1))
    model = MutualTransport(primary, [auxiliary], alpha=RECIPE["alpha"])
    groups = model.parameter_groups(lr=RECIPE["lr"], auxiliary_lr=RECIPE["auxiliary_lr"])
    optimizer = torch.optim.SGD(groups, momentum=RECIPE["momentum"])
    for _ in range(RECIPE["epochs"]):
        for rows in torch.randperm(len(labels)).split(RECIPE["batch"]):
            model(images[rows], labels=labels[rows]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.primary.eval()


def main(folder: str | Path) -> bool:
    """Train, measure, save, load; returns whether the loaded model gives the same logits."""
    mean, std = 0.3, 0.37
    images, labels = digits(mean=mean, std=std)
    training, validation, test = slice(0, 1000), slice(1000, 1400), slice(1400, None)
    primary = train(images[training], labels[training])
    with torch.inference_mode():
        scaling = TemperatureScaling().fit(primary(images[validation]), labels[validation])
        logits = primary(images[test])

    config = ModelConfig(
        class_names=NAMES,
        shape=(1, 8, 8),
        mean=(mean,),
        std=(std,),
        temperature=scaling.temperature,
        backbone=BACKBONE,
    )
    card = Card(
        name="digits-cnn",
        license="apache-2.0",
        before=evaluate(logits=logits, labels=labels[test], class_names=NAMES),
        after=evaluate(logits=logits / scaling.temperature, labels=labels[test], class_names=NAMES),
        recipe=RECIPE,
        notes=("An example: handwritten digits of 8 x 8 pixels. T was fitted on 400 images held out from training.",),
    )
    save_pretrained(primary, folder, config=config, card=card)
    print(f"the card: {Path(folder) / 'README.md'}")

    loaded = from_pretrained(folder)
    with torch.inference_mode():
        again = loaded.model(images[test])
    confidence, index = torch.softmax(again[0] / loaded.config.temperature, -1).max(-1)
    print(f"the first test image is a {loaded.config.class_names[index]}, with probability {confidence:.2f}")
    return torch.equal(again, logits)


if __name__ == "__main__":
    main(sys.argv[1])
