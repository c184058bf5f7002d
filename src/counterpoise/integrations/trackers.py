"""Scores, figures and the report to an experiment tracker, by one call: MLflow, Weights & Biases or TensorBoard."""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise._extras import require
from counterpoise._files import write_text
from counterpoise.metrics import Evaluation, Scores
from counterpoise.metrics.comparison import as_evaluation
from counterpoise.metrics.protocol import Estimates
from counterpoise.metrics.selective import DEFAULT_RISK
from counterpoise.report import terminal
from counterpoise.report.tables import as_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["log_to_mlflow", "log_to_tensorboard", "log_to_wandb", "scalars"]

_FOLDER = "counterpoise"
_REPORT, _SCORES = "report.html", "scores.json"


def scalars(results: Scores | Evaluation) -> dict[str, float]:
    """Every finite estimate with its limits, under names that all trackers take; of several models, by model.

    >>> from counterpoise import evaluate
    >>> found = scalars(evaluate(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], labels=[0, 1, 1]))
    >>> round(found["accuracy"], 3), round(found["accuracy.low"], 3)
    (0.667, 0.208)
    """
    evaluation = as_evaluation(results)
    found: dict[str, float] = {}
    several = len(evaluation.models) > 1
    names = _distinct([model.source.name for model in evaluation.models])
    for name, model in zip(names, evaluation.models, strict=True):
        own = f"{name}/" if several else ""
        found |= _values(own, model.estimates)
        found |= _values(f"{own}misclassification/", model.misclassification.estimates)
        for outside, ranking in zip(_distinct([*model.ood]), model.ood.values(), strict=True):
            found |= _values(f"{own}ood/{outside}/", ranking.estimates)
        if model.recalibration is not None:
            found[f"{own}temperature"] = model.recalibration.temperature
    return {name: value for name, value in found.items() if abs(value) < float("inf")}


def log_to_mlflow(results: Scores | Evaluation, *, step: int | None = None) -> None:
    """Log to MLflow's active run, or to a new one.

    Estimates become metrics; the figures, the report and the scores become artifacts in the folder `counterpoise`,
    with the step in its name where one is given.
    """
    mlflow = require("mlflow", extra="trackers", purpose="logging to MLflow")
    evaluation, folder = as_evaluation(results), _FOLDER if step is None else f"{_FOLDER}/{step}"
    mlflow.log_metrics(scalars(evaluation), step=step)
    for name, figure in _figures(evaluation):
        mlflow.log_figure(figure, f"{folder}/{name}.png")
    mlflow.log_text(_page(evaluation), f"{folder}/{_REPORT}")
    mlflow.log_text(evaluation.to_json(), f"{folder}/{_SCORES}")


def log_to_wandb(results: Scores | Evaluation, *, run: Any = None, step: int | None = None) -> None:
    """Log to a run of Weights & Biases, by default the active one: everything under `counterpoise/`, in one step."""
    wandb = require("wandb", extra="trackers", purpose="logging to Weights & Biases")
    run = wandb.run if run is None else run
    if run is None:
        raise ValueError("there is no active run of Weights & Biases; call wandb.init() first, or pass run=")
    evaluation = as_evaluation(results)
    logged: dict[str, Any] = dict(scalars(evaluation))
    logged |= {f"figures/{name}": wandb.Image(figure) for name, figure in _figures(evaluation)}
    logged["report"] = wandb.Html(_page(evaluation))
    run.log({f"{_FOLDER}/{name}": value for name, value in logged.items()}, step=step)


def log_to_tensorboard(results: Scores | Evaluation, writer: "SummaryWriter", *, step: int | None = None) -> Path:
    """Log to a `torch.utils.tensorboard.SummaryWriter`, and return where the report is.

    TensorBoard shows scalars, images and Markdown, but no page: the tables are logged as text, and the report is
    written beside the events.
    """
    evaluation = as_evaluation(results)
    for name, value in scalars(evaluation).items():
        writer.add_scalar(f"{_FOLDER}/{name}", value, step)
    for name, figure in _figures(evaluation):
        writer.add_figure(f"{_FOLDER}/{name}", figure, step)
    tables = "\n\n".join(as_markdown(table) for table in terminal.all_tables(evaluation))
    writer.add_text(f"{_FOLDER}/tables", tables, step)
    name = f"{_FOLDER}-{_REPORT}" if step is None else f"{_FOLDER}-{step}-{_REPORT}"
    report = Path(writer.log_dir) / name
    write_text(report, _page(evaluation))
    writer.flush()
    return report


def _values(prefix: str, estimates: Estimates) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, estimate in zip(_distinct([*estimates]), estimates.values(), strict=True):
        name = f"{prefix}{key}"  # not a folder of its limits: MLflow keeps a file for each name
        found |= {name: estimate.value, f"{name}.low": estimate.low, f"{name}.high": estimate.high}
    return found


def _plain(name: str) -> str:
    """What every tracker takes as part of a name.

    >>> _plain("ResNet 18 (CE)"), _plain("")
    ('ResNet_18_CE', 'predictions')
    """
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip("_") or "predictions"


def _distinct(names: Sequence[str]) -> list[str]:
    """Plain names; one that another has already, but for capitals, is numbered: some file systems tell them not apart.

    >>> _distinct(["CE (1)", "ce [1]", "MTE"])
    ['CE_1', 'ce_1_2', 'MTE']
    """
    found: dict[str, str] = {}
    for plain in map(_plain, names):
        numbered = (f"{plain}_{number}" for number in count(2))
        name = next(name for name in chain([plain], numbered) if name.lower() not in found)
        found[name.lower()] = name
    return list(found.values())


def _figures(evaluation: Evaluation) -> Iterator[tuple[str, "Figure"]]:
    from counterpoise.report.gallery import drawn

    yield from drawn(evaluation, risk=DEFAULT_RISK).items()


def _page(evaluation: Evaluation) -> str:
    from counterpoise.report.page import render

    return render(evaluation, day=datetime.now(tz=UTC).date())
