"""Predictions of a trained model, in float32 whatever the precision of training, what they are worth, and its card."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise._addresses import as_path
from counterpoise._digests import digest_path, is_vouched
from counterpoise._extras import offered
from counterpoise._files import FilePath, write_text
from counterpoise.calibrators import FitState
from counterpoise.data.chunks import class_places
from counterpoise.data.holding_out import limited
from counterpoise.data.images import Images
from counterpoise.data.memory import MemoryLoader
from counterpoise.export.card import Card
from counterpoise.export.config import ModelConfig
from counterpoise.metrics import Key, Performance, Stream, TopLabelCalibration
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.protocol import Estimates
from counterpoise.models.backbone import RANDOM
from counterpoise.objectives.models import call_for_logits
from counterpoise.predictions import MISSING_LABEL, Predictions, PredictionWriter, read_predictions
from counterpoise.recipes.checks import corruption_names
from counterpoise.recipes.config import EvaluationOptions, Recipe, ValidationMetric
from counterpoise.recipes.methods import METHODS
from counterpoise.scoring import Progress, fit_temperature, score_files
from counterpoise.scoring.batches import checked_rows, clean_rows
from counterpoise.training.data import RunData, require_same_kind
from counterpoise.training.devices import full_float32
from counterpoise.training.folder import RunFolder
from counterpoise.training.networks import Say, Trained, header_of

VALIDATION_METRICS: dict[ValidationMetric, Key] = {"nll": Key.NLL, "accuracy": Key.ACCURACY, "ece": Key.ECE}
"""What is measured on the validation images after every epoch."""

OOD_PREFIX = "ood_"
_LONGEST_NAME = 100


def evaluate_run(
    run: RunFolder, trained: Trained, data: RunData, *, device: str, say: Say, page: bool
) -> Evaluation | None:
    """Predictions that are not there yet, then scores and the page; None where there is no test set."""
    sets: dict[str, Callable[[], Images]] = {"validation": lambda: data.validation}
    sets |= {"test": data.test} if data.test is not None else {}
    sets |= {f"{OOD_PREFIX}{name}": load for name, load in data.ood.items()}
    for name, load in sets.items():
        path = prediction_file(run, name)
        # The digest is written after the file: without it the writing was interrupted.
        if not is_vouched(path):
            if path.exists() and digest_path(path).exists():
                say(f"{path} has changed since it was written, and is made again")
            ood = name.startswith(OOD_PREFIX)
            split = "test" if ood else name
            corruptions = trained.recipe.evaluation.corruptions if name == "test" else ()
            predict(trained, load(), path, split=split, ood=ood, corruptions=corruptions, device=device, say=say)
    return None if data.test is None else score_run(run, page=page)


def prediction_file(run: RunFolder, name: str) -> Path:
    """Where predictions of a set are; a path or a hub id becomes a name of its own, so that all are in one folder.

    >>> prediction_file(RunFolder(Path("run")), "ood_svhn").name
    'ood_svhn.parquet'
    >>> prediction_file(RunFolder(Path("run")), "ood_/data/blurred.parquet").name
    'ood_-data-blurred.parquet-0fccfbc8.parquet'
    """
    plain = re.sub(r"[^\w.-]+", "-", name)
    if plain != name or len(plain) > _LONGEST_NAME:
        plain = f"{plain[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return run.predictions / f"{plain}.parquet"


def ood_files(run: RunFolder) -> list[Path]:
    """The predictions for OOD images that a run has."""
    return sorted(run.predictions.glob(f"{OOD_PREFIX}*.parquet"))


def predict(
    trained: Trained,
    images: Images,
    path: str | FilePath,
    *,
    split: str,
    ood: bool = False,
    corruptions: tuple[str, ...] = (),
    temperature: float = 1.0,
    device: str = "cpu",
    say: Say = lambda _: None,
    progress: Progress | None = None,
) -> None:
    """Write what the model says about images, and about corrupted forms of them, to one file, which appears whole.

    Args:
        trained: the model.
        images: with classes that the model knows, by their names, or `ood`.
        path: of the Parquet file.
        split: that the images are of.
        ood: out of distribution; labels of other classes are left out.
        corruptions: names, of which each severity of the recipe is predicted after the clean images.
        temperature: that logits are divided by.
        device: where to compute.
        say: told what is under way.
        progress: called after every batch with what is predicted, and with the rows done and to be done.
    """
    options, path = trained.recipe.evaluation, as_path(path)
    images = _as_inputs(images, trained, ood=ood)
    if not ood and (missing := int((images.labels == MISSING_LABEL).sum())):
        say(f"note: {missing:,} of {len(images):,} images have no label")
    variants: list[tuple[str | None, int]] = [(None, 0)]
    variants += [(name, severity) for name in corruption_names(corruptions) for severity in options.severities]
    counts = [len(images) if name is None else _corrupted_count(images, options) for name, _ in variants]
    done, total = 0, sum(counts)
    model, header = trained.model.eval().to(device).float(), header_of(trained)
    path.parent.mkdir(parents=True, exist_ok=True)
    with PredictionWriter(path) as writer:
        for number, (corruption, severity) in enumerate(variants):
            say(f"predicting {images.name}, {split}" + (f", {corruption} {severity}" if corruption else ""))
            shown = images if corruption is None else _corrupted(images, corruption, severity, trained.recipe)
            loader = MemoryLoader(
                shown, batch=options.batch, seed=0, augmentation=None, shuffle=False, drop_last=False, device=device
            )
            for batch in loader:
                with torch.inference_mode(), full_float32():
                    logits = call_for_logits(model, (batch.images,), {})
                rows = len(logits)
                writer.append(
                    Predictions.of(
                        logits=logits.cpu() / temperature,
                        labels=batch.labels.cpu(),
                        ids=_sample_ids(images, batch.ids.tolist(), corruption, severity, number=number),
                        data_set=images.name,
                        split=split,
                        in_distribution=not ood,
                        corruption=[corruption] * rows if len(variants) > 1 else None,
                        severity=severity if len(variants) > 1 else None,
                        header=header,
                    )
                )
                done += rows
                if progress is not None:
                    progress(f"{images.name}, {split}", done, total)


def shipped_temperature(run: RunFolder) -> float:
    """The temperature that `export --temperature fitted` folds in; 1 for an ensemble, whose members ship one by one."""
    path = prediction_file(run, "validation")
    if METHODS[run.recipe().method].members > 1 or not path.is_file():
        return 1.0
    scaling = fit_temperature(path)
    return scaling.temperature if scaling.state == FitState.CONVERGED else 1.0


def of_temperature(temperature: float) -> str:
    """What to say of logits that were divided by one."""
    return (
        f"note: logits are divided by {temperature:.4g}, the temperature fitted on the validation images; "
        "--raw for logits before temperature scaling"
    )


def measuring_streams() -> list[Stream]:
    """New streams that together measure all of them."""
    return [Stream(Performance()), Stream(TopLabelCalibration())]


def measured(streams: Iterable[Stream]) -> dict[str, float]:
    """The value of each metric, from streams that have seen the predictions."""
    estimates: Estimates = {}
    for stream in streams:
        estimates |= stream.compute()
    return {name: float(estimates[key].value) for name, key in VALIDATION_METRICS.items()}


def validation_samples(run: RunFolder) -> tuple[Tensor, Tensor, NDArray[Any]]:
    """Logits `[n, K]`, labels `[n]` and ids `[n]` of the validation images."""
    table = read_predictions(prediction_file(run, "validation"))
    rows = clean_rows(table)
    batch = checked_rows(table, rows, labelled=True, first_row=0)
    return batch.as_logits(), batch.required_labels(), table.ids[rows]


def validation_metrics(run: RunFolder) -> dict[str, float]:
    """What the trained model's predictions for the validation images are worth."""
    table = read_predictions(prediction_file(run, "validation"))
    batch = checked_rows(table, clean_rows(table), labelled=True, first_row=0)
    streams = measuring_streams()
    for stream in streams:
        stream.update_checked(batch)
    metrics = measured(streams)
    if not all(map(math.isfinite, metrics.values())):
        raise ArithmeticError(f"the validation metrics are not finite: {metrics}")
    return metrics


def score_run(run: RunFolder, *, page: bool) -> Evaluation:
    """Score the test predictions with the OOD ones beside them; write the scores and, if wanted, the page."""
    evaluation = score_files([prediction_file(run, "test")], ood=ood_files(run))
    write_text(run.scores, evaluation.to_json())
    if page:
        from counterpoise.report.page import write_report

        write_report(run.report, evaluation)
    return evaluation


def config_of(trained: Trained, *, temperature: float) -> ModelConfig:
    """What somebody must know to use the weights of a run."""
    return ModelConfig(
        class_names=trained.classes,
        shape=trained.shape,
        mean=trained.mean,
        std=trained.std,
        temperature=temperature,
        backbone=replace(trained.recipe.primary, weights=RANDOM),  # those of the folder take their place
    )


def measured_card(
    folder: str | Path,
    *,
    name: str,
    license: str | None,  # noqa: A002
    temperature: float,
    notes: Sequence[str],
) -> Card:
    """The card of a run, with the scores of its test predictions, where it has them, without and at a temperature."""
    run = RunFolder(Path(folder))
    recipe, test, ood = run.recipe(), prediction_file(run, "test"), ood_files(run)
    before = after = None
    if test.exists():
        (before,) = score_files([test], ood=ood).models
        if temperature != 1:
            (after,) = score_files([test], ood=ood, temperature=temperature).models
    return Card(
        name=name,
        license=license,
        before=before,
        after=after,
        recipe=asdict(recipe) | {"hyper": recipe.choice},
        notes=tuple(notes),
    )


def _as_inputs(images: Images, trained: Trained, *, ood: bool) -> Images:
    """Images as the model is shown them: normalised as those it was trained on."""
    require_same_kind(images, shape=trained.shape, classes=None)
    if ood:
        labels = torch.full_like(images.labels, MISSING_LABEL)
    else:
        numbered = images.classes == tuple(map(str, range(len(images.classes))))
        # Where files name no classes, labels are by the model's.
        known = trained.classes if numbered and len(images.classes) <= len(trained.classes) else images.classes
        places = class_places(known, trained.classes, where=images.name)
        labels = torch.from_numpy(places)[images.labels]
    return replace(images, labels=labels, classes=trained.classes, mean=trained.mean, std=trained.std)


def _sample_ids(
    images: Images, rows: Sequence[int], corruption: str | None, severity: int, *, number: int
) -> list[int] | list[str]:
    """Names of images, else row numbers; a corrupted image is another sample than the clean one."""
    if images.names:
        suffix = "" if corruption is None else f" {corruption} {severity}"
        return [f"{images.names[row]}{suffix}" for row in rows]
    first = number * int(images.ids.max() + 1)
    return [first + row for row in rows]


def _corrupted_count(images: Images, options: EvaluationOptions) -> int:
    return len(images) if options.corrupted_images is None else min(len(images), options.corrupted_images)


def _corrupted(images: Images, corruption: str, severity: int, recipe: Recipe) -> Images:
    part = images.take(limited(len(images), recipe.evaluation.corrupted_images, spread=recipe.data.spread))
    pixels = corruptions_of_study().corrupted(part.pixels, corruption, severity, seed=0, ids=part.ids)
    return replace(part, pixels=pixels)


def corruptions_of_study() -> Any:
    """The module that corrupts images, which is part of another distribution."""
    return offered("counterpoise.corruptions", package="counterpoise-study", purpose="corrupting images")
