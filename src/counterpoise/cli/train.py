"""`counterpoise train`: from a recipe to a trained model and its report."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from counterpoise.cli.recipe_arguments import RecipeFields, RecipeName
from counterpoise.metrics.selective import DEFAULT_RISK
from counterpoise.recipes.config import Recipe, require_possible

if TYPE_CHECKING:
    from counterpoise.metrics.comparison import Evaluation

DataRoot = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")]


@dataclass(frozen=True)
class Train:
    """Train by a recipe, then predict, score and draw the report, all into one folder.

    Every field of the recipe can be changed: `counterpoise train cifar10-small --method ce --epochs 5`. An interrupted
    run is continued by `counterpoise resume`.
    """

    recipe: RecipeName
    """A recipe; `counterpoise recipes` lists them."""
    config: RecipeFields = field(default_factory=Recipe)
    against: tuple[str, ...] = ()
    """Other methods to train in the same way, each into its own folder, and to compare with on the same images."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder of the run; by default `runs/RECIPE-METHOD-sSEED`. With `--against`, the folder that holds the runs."""
    data_root: DataRoot = None
    """Folder of data sets as Parquet, used without the network; by default COUNTERPOISE_DATA."""

    def run(self) -> None:
        """Train, and print what came of it."""
        from counterpoise.training import train

        # Another method has other hyper-parameters: those that were given are of the first.
        others = [replace(self.config, method=method, hyper={}) for method in self.against]
        folder_of = {config.method: self._folder(config) for config in (self.config, *others)}
        for config in (self.config, *others):
            require_possible(config)
        for config in (self.config, *others):
            if others:
                print(f"{config.method}: {folder_of[config.method]}", file=sys.stderr)
            evaluation = train(config, folder_of[config.method], root=self.data_root)
        if others:
            compare_runs(list(folder_of.values()), report=next(iter(folder_of.values())).parent / "comparison.html")
        else:
            print_outcome(evaluation, folder_of[self.config.method])

    def _folder(self, config: Recipe) -> Path:
        name = f"{self.recipe}-{config.method}-s{config.seed}"
        if self.against:
            return (self.out or Path("runs")) / name
        return self.out or Path("runs") / name


def print_outcome(evaluation: "Evaluation | None", folder: Path) -> None:
    """The scores of a run, and where its page is."""
    from counterpoise.report import terminal

    if evaluation is not None:
        print(terminal.as_text(evaluation, risk=DEFAULT_RISK))
        print(f"\nreport: {folder / 'report.html'}")


def compare_runs(folders: list[Path], *, report: Path) -> None:
    """The scores of several runs side by side, with paired differences, and a page of them."""
    from counterpoise.report import terminal
    from counterpoise.report.page import write_report
    from counterpoise.scoring import score_files
    from counterpoise.training.engine import is_first_process

    if is_first_process():
        evaluation = score_files([folder / "predictions" / "test.parquet" for folder in folders])
        write_report(report, evaluation)
        print(terminal.as_text(evaluation, risk=DEFAULT_RISK))
        print(f"\nreport: {report}")
