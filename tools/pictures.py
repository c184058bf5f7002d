"""The diagrams that the documentation explains, in `docs/_static/`: `python -m tools.pictures`.

Simulates four models whose truth is known, and draws their reliability diagrams, two to a picture, so that they can be
read on a phone; draws the learning curves that `python -m benchmarks.diagnosis` has recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from PIL import Image
from torch import Tensor

from benchmarks.diagnosis import first_cell, read_curve
from counterpoise.metrics import Scores, evaluate
from counterpoise.metrics.scores import Source
from counterpoise.report import figures
from counterpoise.report.style import LIGHT, line, themed
from counterpoise_study.store import Store
from tools.documentation import ROOT, result

STATIC = ROOT / "docs" / "_static"
SAMPLES, CLASSES = 2000, 10
LEAST = 0.3
"""Of the confidences, which are uniform up to 1."""

EXCESS: dict[str, Callable[[Tensor], Tensor]] = {
    "calibrated": torch.zeros_like,
    "overconfident": lambda place: -0.25 * place.sqrt(),
    "underconfident": lambda place: 0.6 * place * (1 - place),
    "both": lambda place: 0.15 * torch.sin(2 * torch.pi * place),
}
"""Accuracy less confidence, by model, where confidence runs from its least (0) to its most (1)."""

CURVES = ("MTE-1, primary", "MTE-1, auxiliary", "Cross-entropy")


def simulated(name: str, *, seed: int) -> Scores:
    """Scores of a model that predicts class 0 with some confidence, and shares the rest between the other classes."""
    generator = torch.Generator().manual_seed(seed)
    place, luck = torch.rand(2, SAMPLES, dtype=torch.float64, generator=generator)
    confidence = LEAST + (1 - LEAST) * place
    wrong = luck >= confidence + EXCESS[name](place)
    rest = ((1 - confidence) / (CLASSES - 1)).unsqueeze(-1).expand(-1, CLASSES - 1)
    scores = evaluate(probabilities=torch.cat([confidence.unsqueeze(-1), rest], -1), labels=wrong.long())
    return replace(scores, source=Source(name=name))


def learning_curves(diagnosis: dict[str, Any], reference: Sequence[dict[str, str]]) -> Figure:
    """Training and validation images, epoch by epoch: both models of MTE-1, and cross-entropy's network beside them."""
    metrics = {
        "training_accuracy": "accuracy on training images",
        "validation_accuracy": "accuracy on validation images",
        "validation_nll": "NLL on validation images",
    }
    with themed():
        figure = Figure(figsize=(10.5, 3.8), layout="constrained")
        for axes, (key, title) in zip(figure.subplots(1, len(metrics)), metrics.items(), strict=True):
            curves = [[epoch[key] for epoch in model] for model in diagnosis["curves"]]
            if key in reference[0]:
                curves.append([float(epoch[key]) for epoch in reference])
            for index, (name, curve) in enumerate(zip(CURVES, curves, strict=False)):
                epochs = range(1, len(curve) + 1)
                axes.plot(epochs, curve, color=LIGHT.colour(index), linestyle=line(index), label=name)
            axes.set(xlabel="epoch", title=title)
            if "accuracy" in key:
                axes.set_ylim(0, 1)
                axes.yaxis.set_major_formatter(PercentFormatter(1))
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(CURVES))
        return figure


def save(figure: Figure, name: str) -> None:
    """As a small PNG."""
    target = STATIC / f"{name}.png"
    figures.save_figure(figure, target)
    with Image.open(target) as image:
        image.convert("RGB").quantize(64).save(target, optimize=True)


def main() -> None:
    """Draw them."""
    for pair in (("calibrated", "overconfident"), ("underconfident", "both")):
        save(figures.reliability([simulated(name, seed=0) for name in pair]), f"reliability-{pair[0]}")
    store = Store(ROOT / "study" / "results")
    reference = read_curve(store.run_folder(first_cell(store, "ce")))
    save(learning_curves(result("diagnosis")["figures"], reference), "learning-curves")


if __name__ == "__main__":
    main()
