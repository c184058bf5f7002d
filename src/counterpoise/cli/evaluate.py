"""`counterpoise evaluate`: predictions on disk in, how far they can be trusted out."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import tyro

from counterpoise._text import printable
from counterpoise.cli.paths import require_file_path, require_folder_path
from counterpoise.cli.progress import ProgressLine
from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.confidence import LOGIT_SCORES
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics.selective import DEFAULT_RISK

if TYPE_CHECKING:
    from counterpoise.metrics.comparison import Evaluation

MOST_BINS = 10_000
"""Each class keeps sums for each bin: many more would need more memory than there is."""

_SECOND_OF_HASHING = 1 << 29
"""Bytes whose digest takes about a second."""

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]


@dataclass(frozen=True)
class Evaluate:
    """Measure how far predictions can be trusted, and compare models on the same samples.

    Predictions are Parquet, CSV or NPZ files: one for each model, or many that are one table, named by their folder, by
    a glob in quotes or by a manifest. The table goes to standard output, notices and progress to standard error.
    Exit codes: 0 done, 1 a file or value was refused, 2 the command line was not understood.
    """

    predictions: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PREDICTIONS ...")]
    """For each model a file, a folder or a glob of files, or a manifest of them."""
    ood: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...", help_behavior_hint="")] = ()
    """Predictions for OOD samples, likewise: any number for one model, else one for each, in the same order."""
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
    """Error rate that accepted predictions may have: sets the threshold that is reported."""
    score: Annotated[
        str, tyro.conf.arg(help=f"Confidence score that ranks predictions: {', '.join(LOGIT_SCORES)}.")
    ] = "max_softmax"
    level: float = DEFAULT_LEVEL
    """Nominal coverage of the intervals."""
    threads: int = 2
    """Batches that are measured at a time, each by one thread, while one more thread reads."""

    def run(self) -> None:
        # The report's libraries load where they are used: `counterpoise info` needs none of them.
        from counterpoise.predictions import find_shards
        from counterpoise.scoring import score_files

        if sum((self.json, self.markdown, self.latex, self.csv)) > 1:
            raise ValueError("choose one of --json, --markdown, --latex and --csv")
        if not 0 < self.risk < 1:
            raise ValueError(f"--risk must lie between 0 and 1, got {self.risk}")
        if self.bins > MOST_BINS:
            raise ValueError(f"--bins must be at most {MOST_BINS:,}, got {self.bins:,}")
        shards = [shard.path for path in (*self.predictions, *self.ood) for shard in find_shards(path).shards]
        # Scoring may take minutes: what cannot be written is refused before it.
        if self.html is not None:
            require_file_path(self.html, option="--html")
            if self.html.resolve() in {path.resolve() for path in shards}:
                raise ValueError(f"--html {self.html} is a file of predictions, which would be overwritten")
        if self.figures is not None:
            require_folder_path(self.figures, option="--figures")
        # Operations on a batch are too small to share; batches are not.
        torch.set_num_threads(1)
        progress = ProgressLine()
        size = sum(path.stat().st_size for path in shards if path.is_file())
        if size > _SECOND_OF_HASHING:
            progress.say(f"checking the digests of {size / 1e9:.1f} GB", at_once=True)
        evaluation = score_files(
            self.predictions,
            ood=self.ood,
            score=self.score,
            bins=self.bins,
            level=self.level,
            threads=self.threads,
            progress=progress.rows,
        )
        if self.html is not None:
            from counterpoise.report.page import write_report

            progress.say(f"drawing {self.html}")
            write_report(self.html, evaluation, risk=self.risk)
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
            return "\n\n".join(written(table) for table in numbers.all_tables(evaluation))
        return terminal.as_text(evaluation, risk=self.risk, everything=self.all)
