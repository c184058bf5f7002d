"""The diagrams that the documentation explains: `python -m benchmarks.pictures`.

Simulates four models whose truth is known, and writes their reliability diagrams to `docs/_static/`,
two to a picture, so that they can be read on a phone.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from counterpoise.metrics import Scores, evaluate
from counterpoise.metrics.scores import Source
from counterpoise.report import figures

STATIC = Path(__file__).parent.parent / "docs" / "_static"
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


def simulated(name: str, *, seed: int) -> Scores:
    """Scores of a model that predicts class 0 with some confidence, and shares the rest between the other classes."""
    generator = torch.Generator().manual_seed(seed)
    place, luck = torch.rand(2, SAMPLES, dtype=torch.float64, generator=generator)
    confidence = LEAST + (1 - LEAST) * place
    wrong = luck >= confidence + EXCESS[name](place)
    rest = ((1 - confidence) / (CLASSES - 1)).unsqueeze(-1).expand(-1, CLASSES - 1)
    scores = evaluate(probabilities=torch.cat([confidence.unsqueeze(-1), rest], -1), labels=wrong.long())
    return replace(scores, source=Source(name=name))


def main() -> None:
    """Draw them."""
    for pair in (("calibrated", "overconfident"), ("underconfident", "both")):
        target = STATIC / f"reliability-{pair[0]}.png"
        figures.save_figure(figures.reliability([simulated(name, seed=0) for name in pair]), target)
        with Image.open(target) as image:
            image.convert("RGB").quantize(64).save(target, optimize=True)


if __name__ == "__main__":
    main()
