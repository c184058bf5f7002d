"""Search over fields of a recipe by the validation images; see `counterpoise.training.study` for how it is shared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from counterpoise.recipes.config import Recipe, ValidationMetric
from counterpoise.recipes.ranges import Range, require_searchable, with_values
from counterpoise.report.figures import save_figure
from counterpoise.report.search import SearchedField, search_figure
from counterpoise.training.data import RunData, named_data
from counterpoise.training.distributed import is_first_process
from counterpoise.training.evaluation import VALIDATION_METRICS, prediction_file, validation_metrics
from counterpoise.training.folder import RunFolder
from counterpoise.training.networks import ModelFactory
from counterpoise.training.progress import say
from counterpoise.training.run import resume, train
from counterpoise.training.splits import fingerprints_of
from counterpoise.training.study import ClaimedTrial, Search, SharedStudy, Values


def tune(
    recipe: Recipe,
    ranges: Sequence[Range],
    folder: str | Path,
    *,
    trials: int,
    metric: ValidationMetric = "nll",
    root: Path | None = None,
    data: RunData | None = None,
    models: ModelFactory | None = None,
    sampler_seed: int = 0,
) -> Search:
    """Work on a search until it has as many trials as asked for, and write what came of it into its folder.

    Test images are never loaded. A trial in which training breaks down counts; where none has succeeded yet, its error
    is raised instead. Trials that other processes are still training are not waited for: whoever ends last writes the
    complete result.

    Args:
        recipe: what is trained, but for the searched fields.
        ranges: the searched fields.
        folder: of the search; one that holds a search with the same recipe, ranges and metric is continued.
        trials: of the whole search, over all processes.
        metric: of the validation images after the last epoch; what the search minimises, or maximises for accuracy.
        root: folder of data sets; by default the environment variable COUNTERPOISE_DATA.
        data: your own images instead of the recipe's.
        models: your own networks instead of the recipe's.
        sampler_seed: of the values that are tried.

    Returns:
        The search as it is when this process finds nothing more to do.
    """
    _require_effect(ranges, data=data, models=models)
    require_searchable(recipe, ranges)
    if recipe.engine.processes > 1 or not is_first_process():
        raise ValueError(
            "a trial runs on one device; to use several, start the search several times, as a job array for instance, "
            "and not as the ranks of one launcher"
        )
    digests = data.fingerprints() if data is not None else fingerprints_of(recipe, root=root)
    study = SharedStudy(Path(folder), recipe, ranges, metric=metric, seed=sampler_seed, data=digests)
    while (trial := study.take(trials)) is not None:
        try:
            variant = with_values(recipe, trial.values)
            images = replace(data or named_data(variant, root=root), test=None, ood={})
            _attempt(study, trial, variant, data=images, models=models)
        finally:
            trial.claim.release()
        _report(study.search(), trial.number, of=trials)
    with study.lock:
        search = study.write()
        _draw(search, study.folder)
    return search


def _attempt(
    study: SharedStudy, trial: ClaimedTrial, recipe: Recipe, *, data: RunData, models: ModelFactory | None
) -> None:
    """Train a trial and record what came of it."""
    run = RunFolder(study.path(trial.number))
    before = _content(run.environment)
    try:
        metrics = _metrics(recipe, run, data=data, models=models)
    except torch.OutOfMemoryError:
        # Says little about the values, and may pass: the trial is left to whoever takes it next.
        raise
    except (ValueError, ArithmeticError, RuntimeError) as error:
        # The environment is recorded when training begins: what was refused before is not the values' fault.
        if _content(run.environment) == before:
            raise
        if not study.search().ranked:
            say(f"trial {trial.number} ({_listed(trial.values)}) broke down, and no trial has succeeded yet")
            raise
        study.finish(trial, reason=str(error))
    else:
        study.finish(trial, metrics=metrics)


def _metrics(recipe: Recipe, run: RunFolder, *, data: RunData, models: ModelFactory | None) -> dict[str, float]:
    """Train, or train on, and measure what the trained model says about the validation images."""
    if run.config.exists() and not prediction_file(run, "validation").exists():
        resume(run.path, data=data, models=models)
    elif not run.config.exists():
        train(recipe, run.path, data=data, models=models)
    return validation_metrics(run)


def _require_effect(ranges: Sequence[Range], *, data: RunData | None, models: ModelFactory | None) -> None:
    """Refuse to search what your own images or networks have decided already."""
    for searched in ranges:
        group = searched.path.split(".")[0]
        if data is not None and group in ("data", "batch"):
            raise ValueError(f"{searched.path} has no effect: the images are given, with their batches")
        if models is not None and group in ("primary", "auxiliary"):
            raise ValueError(f"{searched.path} has no effect: the networks are given")


def _draw(search: Search, folder: Path) -> None:
    """Write the picture, once there is something to show."""
    complete = [trial for trial in search.trials if trial.state == "complete"]
    if not complete:
        return
    fields = [
        SearchedField(r.path, [trial.values[r.path] for trial in complete], log=r.log, integer=r.integer)
        for r in search.ranges
    ]
    measured = [trial.metrics[search.metric] for trial in complete]
    figure = search_figure(fields, measured, key=VALIDATION_METRICS[search.metric])
    for suffix in ("png", "svg"):
        save_figure(figure, folder / f"search.{suffix}")


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _report(search: Search, number: int, *, of: int) -> None:
    """One line for a trial that has ended."""
    (trial,) = (trial for trial in search.trials if trial.number == number)
    best, ended = search.ranked[0], sum(trial.state != "running" for trial in search.trials)
    failed = trial.state == "failed"
    outcome = f"failed: {trial.reason}" if failed else f"{search.metric} {trial.metrics[search.metric]:.4f}"
    leader = f"best {best.metrics[search.metric]:.4f} in trial {best.number}"
    say(f"trial {number}: {_listed(trial.values)}: {outcome} ({leader}; {ended} of {of} done)")


def _listed(values: Values) -> str:
    return ", ".join(f"{path} {value:g}" for path, value in values.items())
