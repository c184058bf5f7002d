"""Every figure of an evaluation as files."""

import re
from pathlib import Path

from matplotlib.figure import Figure

from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.selective import DEFAULT_RISK
from counterpoise.report import figures
from counterpoise.report.data import largest_class_error, severities
from counterpoise.report.numbers import ood_sets

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
    found = {
        "reliability": figures.reliability(models),
        "risk_coverage": figures.risk_coverage(models, risk=risk),
        "misclassification": figures.detection(models),
    }
    for number, name in enumerate(ood_sets(evaluation), start=1):
        having = [model for model in models if name in model.ood]
        found[f"ood_{number}_{_slug(name)}"] = figures.detection(having, ood=name)
    error_limit = largest_class_error(models)
    for number, model in enumerate(models, start=1):
        if model.by_class.ece:
            found[f"classwise_{number}_{_slug(model.source.name)}"] = figures.classwise(model, error_limit=error_limit)
        if model.recalibration is not None:
            found[f"temperature_{number}_{_slug(model.source.name)}"] = figures.recalibration(model)
    having = [model for model in models if len(severities(model)) > 1]
    return found | ({"severity": figures.severity(having)} if having else {})


def _slug(name: str) -> str:
    """A name as part of a file name.

    >>> _slug("../ResNet 18 (CE)")
    'resnet-18-ce'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "unnamed"
