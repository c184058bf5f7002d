"""`counterpoise train`: from a recipe to a trained model and its report."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from counterpoise._choices import DEFAULT_RISK
from counterpoise.cli.paths import require_folder_path
from counterpoise.cli.program import usage_errors
from counterpoise.cli.progress import write
from counterpoise.cli.recipe_arguments import RecipeFields, StartName, name_of, table_questions
from counterpoise.recipes.catalog import RECIPES
from counterpoise.recipes.config import Recipe
from counterpoise.recipes.methods import METHODS, method_named
from counterpoise.recipes.savings import SavingOptions

if TYPE_CHECKING:
    from counterpoise.metrics.comparison import Evaluation

DataRoot = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")]


def with_method(recipe: Recipe, method: str) -> Recipe:
    """The recipe for another method, which has other hyper-parameters, and perhaps no savings, or its own."""
    takes_savings = method not in METHODS or METHODS[method].savings == SavingOptions()
    savings = recipe.savings if takes_savings else SavingOptions()
    return replace(recipe, method=method, hyper={}, savings=savings)


@dataclass(frozen=True)
class Train:
    """Train on images of your own or by a recipe, then predict, score and draw the report, all into one folder.

    Own images are a folder of class folders, or a CSV, TSV or Parquet file of paths and labels: `counterpoise train
    photos/`. Every field of the recipe can be changed: `counterpoise train cifar10-small --method ce --epochs 5`. An
    interrupted run is continued by `counterpoise resume`; an interrupted comparison (`--against`) by the same command
    again.
    """

    start: StartName
    """A recipe, which `counterpoise recipes` lists, or the path of your images (./NAME if a recipe is called so)."""
    recipe: Annotated[str | None, tyro.conf.arg(metavar="RECIPE", help_behavior_hint="")] = None
    """The recipe that images of your own are trained by; by default `finetune`."""
    config: RecipeFields = field(default_factory=Recipe)
    against: tuple[str, ...] = ()
    """Other methods to train in the same way, each into its own folder, and to compare with on the same images."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder of the run; by default `runs/RECIPE-METHOD-sSEED`, or `runs/NAME` of your images. With `--against`, the
    folder that holds the runs."""
    data_root: DataRoot = None
    """Folder of data sets as Parquet, used without the network; by default COUNTERPOISE_DATA."""

    def run(self) -> None:
        """Train, and print what came of it."""
        with table_questions():
            self._compare() if self.against else self._train()

    def _train(self) -> None:
        from counterpoise.training.folder import RunFolder, require_new
        from counterpoise.training.preflight import require_possible

        with usage_errors():
            method_named(self.config.method)
        folder = self._folder(self.config)
        require_possible(self.config, root=self.data_root)
        require_folder_path(folder, option="--out")
        if self.config.engine.processes == 1:  # else the run may be this one's, of another rank
            require_new(RunFolder(folder))
        from counterpoise.training import train

        with resume_hint(resume_command(folder, data_root=self.data_root), run=folder):
            evaluation = train(self.config, folder, root=self.data_root)
        print_outcome(evaluation, folder)

    def _compare(self) -> None:
        """Train every method that is not trained yet, then set them side by side."""
        from counterpoise.training.folder import RunFolder
        from counterpoise.training.preflight import require_possible

        with usage_errors():
            configs = [self.config, *(with_method(self.config, method) for method in self.against)]
            for config in configs:
                method_named(config.method)
            if len({config.method for config in configs}) < len(configs):
                raise ValueError(f"--against names a method twice, or {self.config.method}, which is trained anyway")
        for config in configs:
            require_possible(config, root=self.data_root)
            require_folder_path(self._folder(config), option="--out")
            run = RunFolder(self._folder(config))
            if run.config.exists() and run.recipe() != config:
                raise ValueError(f"{run.path} holds another run of {config.method}; choose another folder with --out")
        from counterpoise.training import resume, train

        for config in configs:
            folder = self._folder(config)
            write(f"{config.method}: {folder}\n")
            with resume_hint("the same command again", run=folder):
                if RunFolder(folder).config.exists():
                    resume(folder, root=self.data_root)
                else:
                    train(config, folder, root=self.data_root)
        folders = [self._folder(config) for config in configs]
        compare_runs(folders, report=folders[0].parent / "comparison.html")

    def _folder(self, config: Recipe) -> Path:
        own = self.recipe is not None or self.start not in RECIPES
        name = name_of(self.start) if own else self.start
        full = f"{name}-{config.method}-s{config.seed}"
        if self.against:
            return (self.out or Path("runs")) / full
        return self.out or Path("runs") / (name if own else full)


@contextmanager
def resume_hint(command: str, *, run: Path) -> Iterator[None]:
    """After Ctrl-C, say which command continues a run that has begun."""
    from counterpoise.training.folder import RunFolder

    try:
        yield
    except KeyboardInterrupt:
        from counterpoise.training.distributed import is_first_process

        if is_first_process() and RunFolder(run).config.exists():
            say_interrupted(f"to continue: {command}")
        raise


def say_interrupted(what: str) -> None:
    """On standard error, if anybody still reads that: a broken pipe must not hide the interruption."""
    with suppress(OSError):
        print(f"\ninterrupted; {what}", file=sys.stderr, flush=True)


def resume_command(folder: Path, *, allow: Sequence[str] = (), data_root: Path | None = None) -> str:
    """What continues a run.

    >>> resume_command(Path("my run"), allow=["threads"])
    "counterpoise resume 'my run' --allow threads"
    """
    words = ["counterpoise", "resume", str(folder)]
    words += ["--allow", *allow] if allow else []
    words += ["--data-root", str(data_root)] if data_root is not None else []
    return shlex.join(words)


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
    from counterpoise.training.distributed import is_first_process
    from counterpoise.training.evaluation import prediction_file
    from counterpoise.training.folder import RunFolder

    if is_first_process():
        evaluation = score_files([prediction_file(RunFolder(folder), "test") for folder in folders])
        write_report(report, evaluation)
        print(terminal.as_text(evaluation, risk=DEFAULT_RISK))
        print(f"\nreport: {report}")
