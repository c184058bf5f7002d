"""What temperature scaling would change, tried on a random part of the predictions."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from counterpoise.calibrators import TemperatureScaling
from counterpoise.metrics import Scores, Stream
from counterpoise.metrics.comparison import Comparison
from counterpoise.metrics.estimates import Key
from counterpoise.metrics.in_memory import compare
from counterpoise.metrics.inputs import prediction_table
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.protocol import Estimates
from counterpoise.metrics.scores import BinTable, Recalibration
from counterpoise.metrics.standard import bin_sums_of, standard_metrics
from counterpoise.metrics.summary import bin_table
from counterpoise.metrics.trial import FEWEST_SAMPLES, TrialSample
from counterpoise.predictions import Location, find_shards
from counterpoise.predictions.table import KINDS
from counterpoise.scoring.batches import checked_rows, clean_rows, splits_of

TRIED = (Key.NLL, Key.BRIER, Key.MEAN_GAP, Key.ECE, Key.CLASSWISE_ECE)
"""Metrics that a temperature is tried for: accuracy stays as it is."""


def fit_temperature(path: Location) -> TemperatureScaling:
    """Temperature scaling fitted on the labelled, clean samples of some files, such as those of validation images.

    Samples whose label has the probability 0, which no temperature changes, are left out.
    """
    shards = find_shards(path)
    found: list[tuple[Tensor, Tensor]] = []
    splits: set[str] = set()
    for file in shards.opened():
        row = 0
        if file.kind not in KINDS:
            raise ValueError(f"{file.path}: a temperature is fitted to {' or '.join(KINDS)}, and it holds {file.kind}")
        if len(models := file.models()) > 1:
            raise ValueError(f"{file.path}: it holds the models {', '.join(models)}; write the one to fit to a file")
        for table in file.batches():
            rows = clean_rows(table)
            splits |= splits_of(table, rows)
            try:
                batch = checked_rows(table, rows, labelled=True, first_row=row)
            except ValueError as error:
                raise ValueError(f"{file.path}: {error}") from None
            found.append((batch.as_logits(), batch.required_labels()))
            row += len(table)
    if len(splits) > 1:
        named = ", ".join(sorted(split or "of no name" for split in splits))
        raise ValueError(f"{shards.name}: it holds samples of the splits {named}; keep the rows of one")
    logits, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    if not len(labels):
        raise ValueError(f"{shards.name}: it holds no labelled, clean sample to fit a temperature to")
    possible = _is_possible(logits, labels)
    if not bool(possible.any()):
        raise ValueError(f"{shards.name}: every label has the probability 0, which no temperature changes")
    return TemperatureScaling().fit(logits[possible], labels[possible])


def try_temperature(sample: TrialSample, *, options: ScoreOptions) -> Recalibration | None:
    """Fit a temperature on one half of the samples and measure it on the other; None where there are too few.

    Samples whose label has the probability 0, which no temperature changes, are left out of the fit alone.
    """
    if len(sample) < FEWEST_SAMPLES:
        return None
    logits, labels, _ = sample.samples()
    half = len(labels) // 2
    possible = _is_possible(logits[:half], labels[:half])
    if int(possible.sum()) < FEWEST_SAMPLES // 2:
        return None
    scaling = TemperatureScaling().fit(logits[:half][possible], labels[:half][possible])
    before, bins_before = _measured(logits[half:], labels[half:], options=options)
    after, bins_after = _measured(scaling(logits[half:]), labels[half:], options=options)
    return Recalibration(
        temperature=scaling.temperature,
        state=str(scaling.state),
        fitted_on=int(possible.sum()),
        measured_on=len(labels) - half,
        before=before,
        after=after,
        bins_before=bins_before,
        bins_after=bins_after,
    )


def compare_scaled(
    samples: Sequence[TrialSample], models: Sequence[Scores], *, options: ScoreOptions
) -> Comparison | None:
    """How models differ once each is scaled, on the half of the samples that no temperature was fitted on.

    None where a temperature was not tried for each of them, or not on the same samples.
    """
    temperatures = [model.recalibration.temperature for model in models if model.recalibration is not None]
    if len(temperatures) < len(models):
        return None
    found = [sample.tensors() for sample in samples]
    first, half = found[0], len(found[0]["labels"]) // 2
    # Corrupted copies of a sample have its id, and only their group tells them apart.
    has_copies = len(torch.unique(first["priority"])) < len(first["priority"])
    names = ["priority", "labels", *(["groups"] if has_copies else [])]
    for each in found[1:]:
        alike = all(name in each and name in first and torch.equal(each[name], first[name]) for name in names)
        if not alike or each["logits"].shape != first["logits"].shape:
            return None
    scaled = compare(
        {
            str(place): {"logits": each["logits"][half:] / temperature}
            for place, (each, temperature) in enumerate(zip(found, temperatures, strict=True))
        },
        labels=first["labels"][half:],
        bins=options.bins,
        level=options.level,
    ).comparison
    assert scaled is not None  # noqa: S101
    differences = [
        replace(each, estimates={key: value for key, value in each.estimates.items() if key in TRIED})
        for each in scaled.differences
    ]
    return replace(scaled, differences=differences)


def _is_possible(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether the label of each row has a probability above 0, `[n]`."""
    return torch.isfinite(logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1))


def _measured(logits: Tensor, labels: Tensor, *, options: ScoreOptions) -> tuple[Estimates, BinTable]:
    batch = prediction_table(logits=logits, labels=labels).checked_rows()
    standard = standard_metrics(options, classes=logits.shape[-1])
    assert standard.classwise is not None  # noqa: S101
    performance, top_label, classwise = map(Stream, (standard.performance, standard.top_label, standard.classwise))
    estimates: Estimates = {}
    for stream in (performance, top_label, classwise):
        stream.update_checked(batch)
        estimates |= stream.compute(level=options.level)
    return {str(key): estimates[key] for key in TRIED}, bin_table(bin_sums_of(top_label.sums))
