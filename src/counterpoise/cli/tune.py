"""`counterpoise tune`: search hyper-parameters by validation images."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from counterpoise._extras import require_installed
from counterpoise.cli.paths import require_folder_path
from counterpoise.cli.program import usage_errors
from counterpoise.cli.recipe_arguments import RecipeFields, StartName, name_of, starting_recipe, table_questions
from counterpoise.cli.train import DataRoot
from counterpoise.recipes.catalog import RECIPES
from counterpoise.recipes.config import Recipe, ValidationMetric
from counterpoise.recipes.ranges import changed_fields, default_ranges, parse_range, require_searchable

if TYPE_CHECKING:
    from counterpoise.training.study import Search


@dataclass(frozen=True)
class Tune:
    """Search for the best hyper-parameters of a recipe on its validation images; the test images are never loaded.

    Images of your own are trained by the recipe `finetune`: `counterpoise tune photos/`. Every field of the recipe can
    be changed, and every number in it searched: `counterpoise tune digits --search hyper.alpha=0.4:1.2
    optimizer.lr=0.01:0.3:log`. The same command continues a search that was interrupted; processes that see the same
    folder share its trials.
    """

    start: StartName
    """A recipe, which `counterpoise recipes` lists, or the path of your images (./NAME if a recipe is called so)."""
    config: RecipeFields = field(default_factory=Recipe)
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder of the search; by default `runs/RECIPE-METHOD-tune`, or `runs/NAME-METHOD-tune` of your images."""
    trials: int = 20
    """Trainings of the whole search, over all processes."""
    search: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD=LOW:HIGH[:log]", help_behavior_hint="")] = ()
    """Fields to search; by default each `hyper.NAME` that --hyper leaves open, between the ends of its grid."""
    metric: ValidationMetric = "nll"
    """Metric on the validation images after the last epoch: the lowest NLL or ECE is best, or the highest accuracy."""
    data_root: DataRoot = None
    """Folder of data sets as Parquet, used without the network; by default COUNTERPOISE_DATA."""

    def run(self) -> None:
        with usage_errors():
            if self.trials < 1:
                raise ValueError(f"--trials must be at least 1, got {self.trials}")
            ranges = [parse_range(text, self.config) for text in self.search] or default_ranges(self.config)
            require_searchable(self.config, ranges)
        require_installed("optuna", extra="tune", purpose="tuning")
        name = self.start if self.start in RECIPES else name_of(self.start)
        folder = self.out or Path("runs") / f"{name}-{self.config.method}-tune"
        require_folder_path(folder, option="--out")
        from counterpoise.training.preflight import require_possible

        with table_questions():
            require_possible(self.config, root=self.data_root)
            from counterpoise.training.tuning import tune

            found = tune(self.config, ranges, folder, trials=self.trials, metric=self.metric, root=self.data_root)
        print_search(found, folder, start=self.start, data_root=self.data_root)


def print_search(found: "Search", folder: Path, *, start: str, data_root: Path | None = None) -> None:
    """The trials, the best first, and the command that trains with the best values."""
    from counterpoise.metrics.estimates import KEY_INFO
    from counterpoise.report.numbers import metric_title, number
    from counterpoise.report.tables import as_text, table
    from counterpoise.training.evaluation import VALIDATION_METRICS

    heads = [metric_title(KEY_INFO[key]) for key in VALIDATION_METRICS.values()]
    paths = [searched.path for searched in found.ranges]
    rows = []
    for trial in found.ranked:
        measured = [number(KEY_INFO[key], trial.metrics[name]) for name, key in VALIDATION_METRICS.items()]
        rows.append((str(trial.number), *(f"{trial.values[path]:g}" for path in paths), *measured))
    print(as_text(table("Trials", ("trial", *paths, *heads), rows)))
    for trial in found.trials:
        if trial.state != "complete":
            values = ", ".join(f"{path} {value:g}" for path, value in trial.values.items())
            print(f"trial {trial.number} ({values}): {trial.reason or 'still running in another process'}")
    if found.best is not None:
        best = found.ranked[0].values
        for searched in found.ranges:
            if best[searched.path] in (searched.low, searched.high):
                print(f"\nthe best {searched.path} lies at an end of its range; a wider range may hold a better one")
        print(f"\nsearch: {folder / 'search.png'}\nbest:   {folder / 'best.json'}, which is trained by\n")
        root = ["--data-root", str(data_root)] if data_root is not None else []
        print(shlex.join(["counterpoise", "train", start, *flags(starting_recipe(start), found.best), *root]))


def flags(base: Recipe, wanted: Recipe) -> list[str]:
    """Arguments that make the wanted recipe of another one.

    >>> flags(Recipe(), Recipe(hyper={"alpha": 0.8}, epochs=5))
    ['--hyper', 'alpha', '0.8', '--epochs', '5']
    """
    return [word for path, value in changed_fields(base, wanted).items() for word in _flag(path, value)]


def _flag(path: str, value: Any) -> list[str]:
    name = path.replace("_", "-")
    if isinstance(value, bool):
        group, dot, last = name.rpartition(".")
        return [f"--{name}" if value else f"--{group}{dot}no-{last}"]
    if isinstance(value, Mapping):
        return [f"--{name}", *(str(part) for item in value.items() for part in item)]
    if isinstance(value, tuple):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", str(value)]
