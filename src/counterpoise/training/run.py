"""A run from recipe to report."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from counterpoise.export.weights import export_weights
from counterpoise.metrics.comparison import Evaluation
from counterpoise.models import Normalisation, require_same_images
from counterpoise.models.backbone import RANDOM
from counterpoise.objectives import Objective
from counterpoise.recipes.config import Allowance, Recipe
from counterpoise.recipes.methods import METHODS
from counterpoise.training.checkpoints import (
    begin_manifest,
    fault_of,
    newest_intact,
    read_manifest,
    read_state,
    remove_strays,
    require_own,
    write_manifest,
)
from counterpoise.training.data import RunData, named_data, require_evaluable, require_made_for
from counterpoise.training.distributed import is_first_process, settle_rank
from counterpoise.training.engine import (
    device_type,
    fit,
    precision_advice,
    require_devices,
    threads_kept,
)
from counterpoise.training.evaluation import corruptions_of_study, evaluate_run
from counterpoise.training.folder import (
    Conditions,
    RunFolder,
    conditions_now,
    in_use,
    member_folders,
    read_environment,
    recipes_of,
    record_resumption,
    require_new,
    require_no_links,
    start,
)
from counterpoise.training.networks import (
    ModelFactory,
    as_built,
    load_run,
    metadata_of,
    recipe_models,
)
from counterpoise.training.optimizers import build_optimizer
from counterpoise.training.preflight import passed_over, require_no_conflict, require_possible
from counterpoise.training.progress import say
from counterpoise.training.splits import keep_split, require_same_split
from counterpoise.training.sums import fault_of_weights, reopen, vouch


@threads_kept()
def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    root: Path | None = None,
    models: ModelFactory | None = None,
    data: RunData | None = None,
    page: bool = True,
) -> Evaluation | None:
    """Run a recipe in a new folder: train, predict, score, draw.

    Args:
        recipe: everything that decides the run.
        folder: a new one; `resume` continues one that was interrupted.
        root: folder of data sets; by default the environment variable COUNTERPOISE_DATA.
        models: your own networks instead of the recipe's, made from a seed: the primary first.
        data: your own images instead of the recipe's (`counterpoise.training.from_images`).
        page: whether to draw the report; scores are written in any case.

    Returns:
        The scores of the test set, on the first process; None on others, and where there is no test set.
    """
    run = RunFolder(Path(folder))
    settle_rank(recipe.engine.processes)
    if is_first_process():
        require_new(run)
    require_no_conflict(recipe)
    plan = _prepared(recipe, run, root=root, models=models, data=data)
    if not is_first_process():
        return _complete(plan, page=page)
    with in_use(run):
        start(run, recipe, _conditions(plan))
        return _complete(plan, page=page)


@threads_kept()
def resume(
    folder: str | Path,
    *,
    allow: Collection[Allowance] = (),
    root: Path | None = None,
    models: ModelFactory | None = None,
    data: RunData | None = None,
    page: bool = True,
) -> Evaluation | None:
    """Continue an interrupted run from its newest intact checkpoint, or finish what is missing after training.

    Weights, predictions and scores that are not what was written are made again; logs cannot be, and are named.

    Args:
        folder: of the run.
        allow: changed conditions that are accepted; they are recorded.
        root: as for `train`.
        models: as for `train`, and the same.
        data: as for `train`, and the same.
        page: as for `train`.
    """
    run = RunFolder(Path(folder))
    recipe = run.recipe()
    require_no_links(run)
    _require_given(run, _given(models, data))
    settle_rank(recipe.engine.processes)
    plan = _prepared(recipe, run, root=root, models=models, data=data)
    require_same_split(run.split, plan.data.held_out)
    if not is_first_process():
        return _complete(plan, page=page)
    with in_use(run):
        folders = member_folders(recipe, run)
        for member, of_member in enumerate(folders):
            require_own(of_member.checkpoints, recipes=recipes_of(run), member=member)
        entries = [newest_intact(folder.checkpoints)[0] for folder in folders]
        step = sum(entry.step for entry in entries if entry is not None)
        trained = any(folder.primary.exists() for folder in folders)
        record_resumption(run, _conditions(plan), step=step, allowed=allow, trained=trained)
        for name in reopen(run, [folder for folder in folders if fault_of_weights(folder) is None]):
            say(f"{run.path / name} has changed since it was written; no checkpoint holds it: restore it from a copy")
        return _complete(plan, page=page)


def _given(models: ModelFactory | None, data: RunData | None) -> list[str]:
    return [name for name, own in (("models", models), ("data", data)) if own is not None]


def _require_given(run: RunFolder, given: Sequence[str]) -> None:
    """Refuse to go on with the recipe's own where a run had networks or images that were made in Python."""
    if run.environment.exists() and (missing := sorted({*read_environment(run).started.given} - {*given})):
        raise ValueError(
            f"{run.path} was started in Python with {' and '.join(missing)} of its own: give the same, "
            f"resume({str(run.path)!r}, {', '.join(f'{name}=...' for name in missing)})"
        )


@dataclass(frozen=True)
class _Plan:
    """A run that was found to be possible.

    Attributes:
        recipe: of the run.
        run: its folder.
        data: its images.
        models: makes its networks.
        given: of `models` and `data`, those that are the user's own and not the recipe's.
        ready: the objective of its first training, by seed: what was looked at before the run began is what trains.
    """

    recipe: Recipe
    run: RunFolder
    data: RunData
    models: ModelFactory
    given: list[str]
    ready: dict[int, Objective]

    def objective(self, seed: int) -> Objective:
        """The objective of one training; its networks are built for it, once."""
        if seed in self.ready:
            return self.ready.pop(seed)
        return self.recipe.objective(self.models(seed))


def _prepared(
    recipe: Recipe, run: RunFolder, *, root: Path | None, models: ModelFactory | None, data: RunData | None
) -> _Plan:
    """Images and networks; what is wrong with them or with the recipe is noticed before the run has a folder."""
    require_possible(recipe, root=root, named=data is None)
    require_devices(recipe.engine)
    for advice in (precision_advice(recipe.engine), passed_over(recipe)):
        if advice and is_first_process():
            say(advice)
    if recipe.engine.threads is not None:
        torch.set_num_threads(recipe.engine.threads)
    given, named = _given(models, data), data is None
    data = data or named_data(recipe, root=root)
    require_made_for(recipe, data)
    images = data.example
    if recipe.evaluation.corruptions:
        corruptions_of_study().require_corruptible(images.pixels.shape[1:])
    if named and is_first_process():
        for note in data.notes:
            say(note)
        require_evaluable(recipe, images, root=root)
    processes = recipe.engine.devices * recipe.engine.nodes
    if len(images.classes) < 2:
        raise ValueError(f"{images.name} has {len(images.classes)} class; at least 2 are needed")
    if data.validation_count < processes:
        raise ValueError(
            f"{data.validation_count} images are for validation, fewer than there are processes, {processes}"
        )
    make = models or recipe_models(
        recipe,
        classes=len(images.classes),
        channels=images.pixels.shape[1],
        normalisation=Normalisation(images.mean, images.std),
        say=say if is_first_process() else lambda _: None,
    )
    seed = member_seeds(recipe)[0]
    built = make(seed)
    if len(built) != (count := METHODS[recipe.method].models):
        raise ValueError(f"{recipe.method} trains {count} network{'s' * (count > 1)}; models= made {len(built)}")
    # Before savings take networks apart.
    require_same_images(built, shape=images.pixels.shape[1:], classes=len(images.classes))
    objective = recipe.objective(built)
    build_optimizer(objective, recipe.optimizer_in_force)  # refuses what it cannot be
    return _Plan(recipe, run, data, make, given, {seed: objective})


def _conditions(plan: _Plan) -> Conditions:
    engine = plan.recipe.engine
    now = conditions_now(plan.recipe, device=device_type(engine), world_size=engine.processes)
    return replace(now, classes=list(plan.data.example.classes), given=plan.given, data=dict(plan.data.fingerprints()))


def _complete(plan: _Plan, *, page: bool) -> Evaluation | None:
    """Whatever of the run is not there yet."""
    recipe, data = plan.recipe, plan.data
    if is_first_process():
        keep_split(plan.run.split, data.held_out)
    primaries = []
    for member, (seed, folder) in enumerate(zip(member_seeds(recipe), member_folders(recipe, plan.run), strict=True)):
        objective = plan.objective(seed)
        if fault := fault_of_weights(folder):
            if folder.primary.exists() and is_first_process():
                say(f"{fault}, or let this go on: it is made again, from the newest whole checkpoint if there is one")
            _train_one(replace(recipe, seed=seed), folder, objective, plan, member=member)
            if recipe.engine.strategy == "fsdp":  # of which every rank holds a part
                objective = plan.objective(seed)
        primaries.append(objective.primary)
    if not is_first_process():
        return None
    trained = load_run(plan.run.path, networks=[as_built(primary) for primary in primaries])
    evaluation = evaluate_run(plan.run, trained, data, device=device_type(recipe.engine), say=say, page=page)
    vouch(plan.run, recipe)
    return evaluation


def member_seeds(recipe: Recipe) -> list[int]:
    """Seeds of the trainings of a run; of an ensemble's members, far from each other and from those of the next seed.

    The first member is the run that a single network has at this seed; where initial weights are `by-count`, it is not.

    >>> member_seeds(Recipe(method="ce", seed=1)), member_seeds(Recipe(method="de3", seed=1))
    ([1], [1, 1000004, 2000007])
    """
    members = METHODS[recipe.method].members
    first = 1 if members > 1 and recipe.initial_weights == "by-count" else 0
    return [recipe.seed + 1_000_003 * index for index in range(first, first + members)]


def _train_one(recipe: Recipe, folder: RunFolder, objective: Objective, plan: _Plan, *, member: int) -> None:
    """One training, from its newest intact checkpoint if it has one; ends with the primary's weights."""
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    if is_first_process():
        begin_manifest(folder.checkpoints, recipe=plan.recipe.digest, member=member)
    entry, faults = newest_intact(folder.checkpoints)
    if faults and is_first_process():
        place = "the start" if entry is None else f"step {entry.step}"
        say(f"{'; '.join(faults)}; going back to {place}")
        manifest = read_manifest(folder.checkpoints)
        best = manifest.best_until(0 if entry is None else entry.step)
        write_manifest(folder.checkpoints, replace(manifest, last=entry, previous=None, best=best))
    if is_first_process():
        remove_strays(folder.checkpoints)
    backbones = [recipe.primary] + [recipe.auxiliary] * (METHODS[recipe.method].models - 1)
    own = "models" in plan.given
    pretrained = [own or backbone.weights != RANDOM for backbone in backbones]
    module = fit(recipe, folder, objective, plan.data, resume_from=entry, pretrained=pretrained)
    prefix = module.shipped_prefix
    if is_first_process():
        manifest = read_manifest(folder.checkpoints)
        ships = manifest.last if recipe.patience is None else manifest.best
        assert ships is not None
        path = folder.checkpoints / ships.file
        if fault := fault_of(path, sha256=ships.sha256):
            raise ValueError(f"of the epoch that ships, {fault}; remove the checkpoints to train anew")
        # From the checkpoint, because a rank's own module may hold but a shard of the weights.
        state = read_state(path, places=f"state_dict/{prefix}")["state_dict"]
        weights = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        metadata = metadata_of(recipe, plan.data.example, own=objective.primary if own else None)
        export_weights(weights, folder.primary, metadata=metadata)
