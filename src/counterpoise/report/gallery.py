"""Every figure of an evaluation as files."""

import re
from pathlib import Path

from matplotlib.figure import Figure

from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.selective import DEFAULT_RISK
from counterpoise.report import figures
from counterpoise.report.data import errors_of, has_bins, has_classes, largest_class_error, severities
from counterpoise.report.numbers import ood_sets
from counterpoise.report.style import Look

FORMATS = ("png", "svg")


def write_figures(folder: str | Path, evaluation: Evaluation, *, risk: float = DEFAULT_RISK) -> list[Path]:
    """Write the figures as PNG and SVG, and return the files."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in drawn(evaluation, risk=risk).items():
        for suffix in FORMATS:
            paths.append(target / f"{name}.{suffix}")
            figures.save_figure(figure, paths[-1])
    return paths


def drawn(evaluation: Evaluation, *, risk: float) -> dict[str, Figure]:
    """The figures by file name."""
    models = evaluation.models
    drawn = [(model, Look(place)) for place, model in enumerate(models)]
    found = {}
    if having := [pair for pair in drawn if has_bins(pair[0])]:
        chosen, shown = zip(*having, strict=True)
        found["reliability"] = figures.reliability(chosen, looks=shown)
    if having := [pair for pair in drawn if pair[0].positive is not None]:
        chosen, shown = zip(*having, strict=True)
        found["positive_class"] = figures.positive_class(chosen, looks=shown)
    if having := [pair for pair in drawn if errors_of(pair[0]) is not None]:
        chosen, shown = zip(*having, strict=True)
        found["risk_coverage"] = figures.risk_coverage(chosen, risk=risk, looks=shown)
        found["misclassification"] = figures.detection(chosen, looks=shown)
    if having := [pair for pair in drawn if pair[0].guarantees is not None]:
        chosen, shown = zip(*having, strict=True)
        found["set_sizes"] = figures.set_sizes(chosen, looks=shown)
    for number, name in enumerate(ood_sets(evaluation), start=1):
        chosen, shown = zip(*(pair for pair in drawn if name in pair[0].ood), strict=True)
        found[f"ood_{number}_{_slug(name)}"] = figures.detection(chosen, ood=name, looks=shown)
    with_classes = [model for model in models if has_classes(model)]
    limit = largest_class_error(with_classes) if with_classes else None
    for number, (model, look) in enumerate(drawn, start=1):
        name = f"{number}_{_slug(model.source.name)}"
        if has_classes(model):
            found[f"classwise_{name}"] = figures.classwise(model, error_limit=limit, look=look)
        if model.recalibration is not None:
            found[f"temperature_{name}"] = figures.recalibration(model, look=look)
    if having := [pair for pair in drawn if len(severities(pair[0])) > 1]:
        chosen, shown = zip(*having, strict=True)
        found["severity"] = figures.severity(chosen, looks=shown)
    for difference in [] if evaluation.comparison is None else evaluation.comparison.differences:
        if difference.first == 0:
            second = models[difference.second].source.name
            found[f"forest_{difference.second + 1}_{_slug(second)}"] = figures.forest(evaluation, difference)
    return found


def _slug(name: str) -> str:
    """A name as part of a file name.

    >>> _slug("../ResNet 18 (CE)")
    'resnet-18-ce'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "unnamed"
