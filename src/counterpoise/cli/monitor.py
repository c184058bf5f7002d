"""`counterpoise monitor`: a stream of predictions, counted window by window, and alarms for a scheduler."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from counterpoise._choices import DEFAULT_LEVEL, Every, require_level
from counterpoise._files import write_text
from counterpoise._text import printable
from counterpoise.cli.columns import ColumnArguments, Flag, Name
from counterpoise.cli.paths import require_file_path
from counterpoise.cli.program import EXIT_OK, usage_errors
from counterpoise.cli.progress import ProgressLine

if TYPE_CHECKING:
    from counterpoise.monitoring.standing import Outcome

EXIT_ALARM, EXIT_NOTHING = 3, 4
EXIT_CODES: "dict[Outcome, int]" = {"fine": EXIT_OK, "alarm": EXIT_ALARM, "nothing": EXIT_NOTHING}

Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
Predictions = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PREDICTIONS")]
Written = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Columns = Annotated[ColumnArguments, tyro.conf.arg(name="")]


@dataclass(frozen=True)
class Begin:
    """Begin a monitor with labelled predictions of a time when the model was fine."""

    folder: Folder
    """Of the monitor; made where it is not there."""
    predictions: Predictions
    """Labelled ones: a file, a folder or a glob of files. Not those that the model was trained on."""
    every: Every = "hour"
    """Length of the windows that predictions are counted by."""
    start: Annotated[str | None, tyro.conf.arg(metavar="TIME", help_behavior_hint="")] = None
    """A time in the first window, such as 2026-03-01; now, unless it is said."""
    level: float = DEFAULT_LEVEL
    """Probability that the monitor never gives a false alarm, however often it is looked at."""
    columns: Columns = field(default_factory=ColumnArguments)

    def run(self) -> None:
        with usage_errors():
            require_level(self.level)
            columns = self.columns.columns()
        from counterpoise.monitoring import begin

        with _asking("begin") as progress:
            reference = begin(
                self.folder,
                self.predictions,
                columns=columns,
                every=self.every,
                start=self.start,
                level=self.level,
                progress=progress.rows,
            )
        counts = reference.counts
        print(
            f"{self.folder}: a monitor by the {reference.every}, from {reference.shown_start} on, held against "
            f"{counts.samples:,} predictions, {counts.labelled:,} of them labelled"
        )


@dataclass(frozen=True)
class Update:
    """Count predictions into the monitor's windows; the same ones again, with more labels, take their own place."""

    folder: Folder
    """That `begin` made; any number of processes may write to it at a time."""
    predictions: Predictions
    """A file, a folder or a glob of files, with a column of times."""
    time: Name = None
    """Column of times, where its name does not tell: ISO 8601, or Unix seconds; UTC where no time zone is stated."""
    columns: Columns = field(default_factory=ColumnArguments)

    def run(self) -> None:
        with usage_errors():
            columns = self.columns.columns()
        from counterpoise.monitoring import update

        with _asking("update") as progress:
            found = update(self.folder, self.predictions, columns=columns, time=self.time, progress=progress.rows)
        for notice in found.notices:
            print(f"counterpoise: note: {printable(notice)}", file=sys.stderr)
        print(
            f"{found.predictions:,} predictions, {found.labelled:,} of them labelled, in {found.windows:,} windows; "
            f"{found.kept:,} files of counts written"
        )


@dataclass(frozen=True)
class Show:
    """Say how the model stands.

    Exit codes: 0 no alarm, 3 alarm, 4 nothing to judge yet, 1 a file was refused, 2 the command line was not
    understood.
    """

    folder: Folder
    """Of the monitor."""
    every: Annotated[Every | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Length of the windows that are shown, where they are longer than those that are counted."""
    html: Written = None
    """Write a page with the time lines here."""
    openmetrics: Written = None
    """Write OpenMetrics text for Prometheus here."""
    json: Flag = False
    """Print JSON instead of tables."""

    def run(self) -> None:
        with usage_errors():
            for option, path in (("--html", self.html), ("--openmetrics", self.openmetrics)):
                if path is not None:
                    require_file_path(path, option=option)
        from counterpoise.monitoring import show, texts
        from counterpoise.report.terminal import this_screen

        with _asking("show") as progress:
            standing = show(self.folder, every=self.every, progress=progress.rows)
        if self.html is not None:
            from counterpoise.monitoring.page import write_page

            write_page(self.html, standing, name=self.folder.absolute().name)
        if self.openmetrics is not None:
            write_text(self.openmetrics, texts.as_openmetrics(standing))
        screen = this_screen()
        shown = texts.as_lines(standing, width=screen.width, colour=screen.colour)
        print(texts.as_json(standing) if self.json else shown)
        sys.stdout.flush()
        sys.exit(EXIT_CODES[standing.outcome])


@dataclass(frozen=True)
class Monitor:
    """Follow a stream of predictions, and be told when the model is no longer what it was."""

    command: Annotated[
        Annotated[Begin, tyro.conf.subcommand("begin")]
        | Annotated[Update, tyro.conf.subcommand("update")]
        | Annotated[Show, tyro.conf.subcommand("show")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> None:
        self.command.run()


@contextmanager
def _asking(command: str) -> Iterator[ProgressLine]:
    """A line of progress; what can be read in more than one way is asked as complete commands."""
    import torch

    from counterpoise.predictions import AmbiguousInputError

    torch.set_num_threads(1)
    progress = ProgressLine()
    try:
        yield progress
    except AmbiguousInputError as question:
        raise ValueError(question.as_commands(sys.argv[3:], command=f"monitor {command}")) from None
    finally:
        progress.clear()
