"""`counterpoise evaluate`: predictions on disk in, how far they can be trusted out."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from counterpoise._addresses import as_path
from counterpoise._choices import (
    DEFAULT_ALPHA,
    DEFAULT_BINS,
    DEFAULT_LEVEL,
    DEFAULT_RISK,
    LOGIT_SCORES,
    require_count,
    require_level,
    require_score,
)
from counterpoise._extras import require_installed
from counterpoise._files import FilePath
from counterpoise._text import printable
from counterpoise.cli.columns import ColumnArguments, Flag
from counterpoise.cli.engines import engine_of, require_one_engine
from counterpoise.cli.paths import require_file_path, require_folder_path, require_prediction_files
from counterpoise.cli.program import usage_errors
from counterpoise.cli.progress import ProgressLine

if TYPE_CHECKING:
    from counterpoise.metrics.comparison import Evaluation

MOST_BINS = 10_000
"""Each class keeps sums for each bin: many more would need more memory than there is."""

_SECOND_OF_HASHING = 1 << 29
"""Bytes whose digest takes about a second."""


@dataclass(frozen=True)
class Evaluate:
    """Measure how far predictions can be trusted, and compare models on the same samples.

    Predictions are CSV, JSON, Parquet, Arrow, NumPy, safetensors or torch files: one for each model, or many that are
    one table, named by their folder, by a glob in quotes or by a manifest. The table goes to standard output, notices
    and progress to standard error. Exit codes: 0 done, 1 a file or value was refused, 2 the command line was not
    understood.
    """

    predictions: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME=]PREDICTIONS ...")]
    """For each model a file, a folder or a glob of files, or a manifest of them; NAME is what it is called."""
    ood: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...", help_behavior_hint="")] = ()
    """Predictions for OOD samples, likewise: any number for one model, else one for each, in the same order."""
    columns: Annotated[ColumnArguments, tyro.conf.arg(name="")] = field(default_factory=ColumnArguments)
    read_as: Annotated[Literal["models", "shards"] | None, tyro.conf.arg(help_behavior_hint="")] = None
    """What several files are, where they share no sample."""
    by: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN ...", help_behavior_hint="")] = ()
    """Columns whose values samples are grouped by, beside domain, corruption and severity."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the report, one self-contained file, here."""
    figures: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Write every figure as PNG and SVG into this folder."""
    all: Flag = False
    """Print every metric, not the key ones alone."""
    json: Flag = False
    """Print the scores as JSON instead of a table."""
    markdown: Flag = False
    """Print the tables as Markdown."""
    latex: Flag = False
    """Print the tables as LaTeX (booktabs)."""
    csv: Flag = False
    """Print every estimate as CSV."""
    bins: int = DEFAULT_BINS
    """Number of calibration bins."""
    risk: float = DEFAULT_RISK
    """Error rate that accepted predictions may have: sets the thresholds that are reported."""
    sets: Annotated[float, tyro.conf.arg(metavar="ALPHA")] = DEFAULT_ALPHA
    """Largest probability that a prediction set misses the label: sets the coverage that is promised and tried."""
    score: Annotated[
        str, tyro.conf.arg(help=f"Confidence score that ranks predictions: {', '.join(LOGIT_SCORES)}.")
    ] = "max_softmax"
    level: float = DEFAULT_LEVEL
    """Nominal coverage of the intervals."""
    threads: int = 2
    """Batches that are measured at a time, each by one thread, while one more thread reads."""
    workers: int = 0
    """Processes of this machine that score files in parallel; 0 for none but this one."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS", help_behavior_hint="")] = None
    """Ray cluster that scores files in parallel: auto for the one that this machine belongs to, or local."""

    def run(self) -> None:
        # What is wrong with the command is said before torch is imported.
        from counterpoise.predictions import AmbiguousInputError, find_shards

        with usage_errors():
            if sum((self.json, self.markdown, self.latex, self.csv)) > 1:
                raise ValueError("choose one of --json, --markdown, --latex and --csv")
            if not 0 < self.risk < 1:
                raise ValueError(f"--risk must lie between 0 and 1, got {self.risk}")
            if not 0 < self.sets < 1:
                raise ValueError(f"--sets must lie between 0 and 1, such as 0.1 for a coverage of 90%, got {self.sets}")
            if self.bins > MOST_BINS:
                raise ValueError(f"--bins must be at most {MOST_BINS:,}, got {self.bins:,}")
            require_one_engine(self.workers, self.ray)
            require_count(self.bins, "bins")
            require_level(self.level)
            require_score(self.score)
            if not self.predictions:
                raise ValueError("evaluate needs at least one file of predictions")
            columns = self.columns.columns()
        named = [_named(argument) for argument in self.predictions]
        names, paths = [name for name, _ in named], [path for _, path in named]
        given: list[str | Path] = [*paths, *self.ood]
        shards = [shard.path for path in given for shard in find_shards(path).shards]
        require_prediction_files(shards)
        # Scoring may take minutes: what cannot be written is refused before it.
        if self.html is not None or self.figures is not None:
            require_installed("matplotlib", "jinja2", extra="report", purpose="the report")
        html = None if self.html is None else as_path(self.html)
        if html is not None:
            require_file_path(html, option="--html")
            if _resolved(html) in {_resolved(path) for path in shards}:
                raise ValueError(f"--html {self.html} is a file of predictions, which would be overwritten")
        if self.figures is not None:
            require_folder_path(self.figures, option="--figures")
        import torch

        from counterpoise.scoring import score_files

        # Operations on a batch are too small to share; batches are not.
        torch.set_num_threads(1)
        progress = ProgressLine()
        size = sum(path.stat().st_size for path in shards if isinstance(path, Path) and path.is_file())
        if size > _SECOND_OF_HASHING:
            progress.say(f"checking the digests of {size / 1e9:.1f} GB", at_once=True)
        try:
            with engine_of(workers=self.workers, ray=self.ray) as engine:
                evaluation = score_files(
                    paths,
                    names=names,
                    ood=self.ood,
                    columns=columns,
                    read_as=self.read_as,
                    by=self.by,
                    score=self.score,
                    bins=self.bins,
                    level=self.level,
                    alpha=self.sets,
                    risk=self.risk,
                    threads=self.threads,
                    engine=engine,
                    progress=progress.rows,
                )
        except AmbiguousInputError as question:
            progress.clear()
            raise ValueError(question.as_commands(sys.argv[2:])) from None
        if html is not None:
            from counterpoise.report.page import write_report

            progress.say(f"drawing {html}")
            write_report(html, evaluation, risk=self.risk)
        if self.figures is not None:
            from counterpoise.report.gallery import write_figures

            progress.say(f"drawing figures into {self.figures}")
            write_figures(self.figures, evaluation, risk=self.risk)
        progress.clear()
        for notice in evaluation.notices:
            print(f"counterpoise: note: {printable(notice)}", file=sys.stderr)
        print(self._printed(evaluation))

    def _printed(self, evaluation: "Evaluation") -> str:
        from counterpoise.report import numbers, terminal
        from counterpoise.report.tables import as_latex, as_markdown

        if self.json:
            return evaluation.to_json()
        if self.csv:
            return numbers.estimates_csv(evaluation).rstrip("\n")
        if self.markdown or self.latex:
            written = as_markdown if self.markdown else as_latex
            return "\n\n".join(written(table) for table in terminal.all_tables(evaluation))
        return terminal.as_text(evaluation, risk=self.risk, everything=self.all)


def _resolved(path: FilePath) -> FilePath:
    return path.resolve() if isinstance(path, Path) else path


def _named(argument: str) -> tuple[str | None, str]:
    """NAME=PATH taken apart; a path that exists is never a name, and neither is what a path or an address goes on.

    >>> _named("mte=runs/a.csv"), _named("days/day=1/*.csv"), _named("s3://bucket/a.csv?region=eu")
    (('mte', 'runs/a.csv'), (None, 'days/day=1/*.csv'), (None, 's3://bucket/a.csv?region=eu'))
    """
    name, is_named, path = argument.partition("=")
    is_name = is_named and name and path and not {*"/\\?"} & {*name} and not Path(argument).exists()
    return (name, path) if is_name else (None, argument)
