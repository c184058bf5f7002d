"""Predictions of a trained model, in float32 whatever the precision of training, and what they are worth."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from counterpoise._files import replacing
from counterpoise.data.corruptions import CORRUPTIONS, STANDARD, corrupted
from counterpoise.data.images import Images
from counterpoise.data.memory import MemoryLoader
from counterpoise.metrics.comparison import Evaluation
from counterpoise.predictions import MISSING_LABEL, Predictions, PredictionWriter
from counterpoise.recipes.config import EvaluationOptions
from counterpoise.training.data import RunData
from counterpoise.training.folder import RunFolder
from counterpoise.training.networks import Trained, header_of

FOREIGN_PREFIX = "ood_"

Say = Callable[[str], None]
"""Shows a line of progress."""


def evaluate_run(run: RunFolder, trained: Trained, data: RunData, *, device: str, say: Say) -> Evaluation | None:
    """Predictions that are not there yet, then scores and the page; None where there is no test set."""
    sets: dict[str, Callable[[], Images]] = {"validation": lambda: data.validation}
    sets |= {"test": data.test} if data.test is not None else {}
    sets |= {f"{FOREIGN_PREFIX}{name}": load for name, load in data.foreign.items()}
    for name, load in sets.items():
        path = run.predictions / f"{name}.parquet"
        if not path.exists():
            foreign = name.startswith(FOREIGN_PREFIX)
            split = "test" if foreign else name
            corruptions = trained.recipe.evaluation.corruptions if name == "test" else ()
            predict(
                trained, load(), path, split=split, foreign=foreign, corruptions=corruptions, device=device, say=say
            )
    return None if data.test is None else score_run(run)


def predict(
    trained: Trained,
    images: Images,
    path: Path,
    *,
    split: str,
    foreign: bool = False,
    corruptions: tuple[str, ...] = (),
    device: str = "cpu",
    say: Say = lambda _: None,
) -> None:
    """Write what the model says about images, and about corrupted forms of them, to one file, which appears whole.

    Args:
        trained: the model.
        images: with the classes of the model, or `foreign`.
        path: of the Parquet file.
        split: that the images are of.
        foreign: out of distribution; labels of other classes are left out.
        corruptions: names, of which each severity of the recipe is predicted after the clean images.
        device: where to compute.
        say: told what is under way.
    """
    options = trained.recipe.evaluation
    images = _as_inputs(images, trained, foreign=foreign)
    variants: list[tuple[str | None, int]] = [(None, 0)]
    variants += [(name, severity) for name in corruption_names(corruptions) for severity in options.severities]
    model, header = trained.model.eval().to(device).float(), header_of(trained)
    path.parent.mkdir(parents=True, exist_ok=True)
    with PredictionWriter(path) as writer:
        for number, (corruption, severity) in enumerate(variants):
            say(f"predicting {images.name}, {split}" + (f", {corruption} {severity}" if corruption else ""))
            shown = images if corruption is None else _corrupted(images, corruption, severity, options)
            loader = MemoryLoader(
                shown, batch=options.batch, seed=0, augmentation=None, shuffle=False, drop_last=False, device=device
            )
            for batch in loader:
                with torch.inference_mode():
                    logits = model(batch.images)
                rows = len(logits)
                writer.append(
                    Predictions.of(
                        logits=logits.cpu(),
                        labels=batch.labels.cpu(),
                        # A corrupted image is another sample than the clean one.
                        ids=batch.ids.cpu() + number * int(images.ids.max() + 1),
                        data_set=images.name,
                        split=split,
                        in_distribution=not foreign,
                        corruption=[corruption] * rows if len(variants) > 1 else None,
                        severity=severity if len(variants) > 1 else None,
                        header=header,
                    )
                )


def corruption_names(given: tuple[str, ...]) -> list[str]:
    """The corruptions that are meant, `standard` and `all` spelt out.

    >>> corruption_names(("fog", "standard"))[:2]
    ['fog', 'gaussian_noise']
    """
    groups = {"standard": STANDARD, "all": tuple(CORRUPTIONS)}
    names = [name for entry in given for name in groups.get(entry, (entry,))]
    if unknown := [name for name in names if name not in CORRUPTIONS]:
        raise ValueError(f"there is no corruption {', '.join(unknown)}; there are {', '.join(CORRUPTIONS)}")
    return list(dict.fromkeys(names))


def score_run(run: RunFolder) -> Evaluation:
    """Score the test predictions with the foreign ones beside them; write the scores and the page."""
    from counterpoise.report.page import write_report
    from counterpoise.scoring import score_files

    foreign = sorted(run.predictions.glob(f"{FOREIGN_PREFIX}*.parquet"))
    evaluation = score_files([run.predictions / "test.parquet"], ood=foreign)
    with replacing(run.scores) as temporary:
        temporary.write_text(evaluation.to_json())
    write_report(run.report, evaluation)
    return evaluation


def _as_inputs(images: Images, trained: Trained, *, foreign: bool) -> Images:
    """Images as the model is shown them: normalised as those it was trained on."""
    if images.pixels.shape[1:] != trained.shape:
        raise ValueError(
            f"{images.name} has images of {list(images.pixels.shape[1:])}, the model was trained on "
            f"{list(trained.shape)}; resize them with a size, or use another set"
        )
    if not foreign and images.classes != trained.classes:
        raise ValueError(
            f"{images.name} has other classes than the model ({', '.join(images.classes[:3])}, ... and "
            f"{', '.join(trained.classes[:3])}, ...); if it is meant as a foreign set, say so"
        )
    labels = torch.full_like(images.labels, MISSING_LABEL) if foreign else images.labels
    return replace(images, labels=labels, classes=trained.classes, mean=trained.mean, std=trained.std)


def _corrupted(images: Images, corruption: str, severity: int, options: EvaluationOptions) -> Images:
    count = len(images) if options.corrupted_images is None else min(len(images), options.corrupted_images)
    part = images.take(torch.arange(count))
    return replace(part, pixels=corrupted(part.pixels, corruption, severity, seed=0, ids=part.ids))
