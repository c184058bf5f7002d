"""`counterpoise check`: requirements and predictions in, a verdict and an exit code out."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from counterpoise._addresses import read_text
from counterpoise._choices import require_level
from counterpoise._text import printable
from counterpoise.cli.columns import ColumnArguments, Flag
from counterpoise.cli.paths import require_file_path
from counterpoise.cli.program import EXIT_OK, usage_errors
from counterpoise.cli.progress import ProgressLine

if TYPE_CHECKING:
    from counterpoise.metrics.gate import Outcome, Requirement

EXIT_MISSED, EXIT_UNDECIDED = 3, 4
EXIT_CODES: "dict[Outcome, int]" = {"met": EXIT_OK, "missed": EXIT_MISSED, "undecided": EXIT_UNDECIDED}
DEFAULT_GATE_LEVEL = 0.95
RULES = ("require", "level")
"""Keys of a file of rules."""

Written = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]


@dataclass(frozen=True)
class Check:
    """Decide whether a model meets requirements, by intervals: met, missed, or the samples cannot tell.

    A requirement is METRIC <= LIMIT or METRIC >= LIMIT, where LIMIT is a number, `base`, or `base` plus or minus a
    number: "ece <= 0.05" "accuracy >= base - 0.005" "nll <= base".
    Exit codes: 0 all met, 3 one is missed, 4 cannot tell, 1 a file was refused, 2 the command line was not understood.
    """

    predictions: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PREDICTIONS")]
    """Of the model: a file, a folder or a glob of files, or a manifest."""
    against: Annotated[str | None, tyro.conf.arg(metavar="BASE", help_behavior_hint="")] = None
    """Predictions of the model that it is held against; paired where the samples are the same."""
    require: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RULE ...", help_behavior_hint="")] = ()
    """Requirements, each in quotes."""
    rules: Written = None
    """TOML file with further requirements: require = ["ece <= 0.05"], and perhaps level = 0.99."""
    level: Annotated[float | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Probability that all verdicts together are right; 0.95, or what the rules say."""
    columns: Annotated[ColumnArguments, tyro.conf.arg(name="")] = field(default_factory=ColumnArguments)
    junit: Written = None
    """Write JUnit XML for CI systems here."""
    summary: Written = None
    """Append the table as Markdown to this file, such as the one that GITHUB_STEP_SUMMARY names."""
    json: Flag = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from counterpoise.metrics.gate import interval_level
        from counterpoise.predictions import AmbiguousInputError

        with usage_errors():
            requirements, level = self._asked()
            columns = self.columns.columns()
            for option, path in (("--junit", self.junit), ("--summary", self.summary)):
                if path is not None:
                    require_file_path(path, option=option)
        import torch

        from counterpoise.metrics.gate import decide
        from counterpoise.report import decisions
        from counterpoise.scoring import score_files

        torch.set_num_threads(1)
        progress = ProgressLine()
        paths = [self.predictions] if self.against is None else [self.against, self.predictions]
        try:
            evaluation = score_files(
                paths,
                columns=columns,
                read_as=None if self.against is None else "models",
                level=interval_level(len(requirements), level=level),
                progress=progress.rows,
            )
        except AmbiguousInputError as question:
            progress.clear()
            raise ValueError(question.as_commands(sys.argv[2:], command="check")) from None
        progress.clear()
        for notice in evaluation.notices:
            print(f"counterpoise: note: {printable(notice)}", file=sys.stderr)
        if len(evaluation.models) != len(paths):
            raise ValueError("a file with a column `model` holds several models; check takes one, and its base")
        decision = decide(evaluation, requirements, level=level)
        if self.junit is not None:
            self.junit.write_text(decisions.as_junit(decision), encoding="utf-8")
        if self.summary is not None:
            with self.summary.open("a", encoding="utf-8") as file:
                file.write(f"{decisions.as_lines(decision, markdown=True)}\n")
        print(decisions.as_json(decision) if self.json else decisions.as_lines(decision))
        sys.stdout.flush()
        sys.exit(EXIT_CODES[decision.outcome])

    def _asked(self) -> "tuple[list[Requirement], float]":
        from counterpoise.metrics.gate import Requirement

        texts, level = list(self.require), self.level
        if self.rules is not None:
            written, usual = read_rules(self.rules)
            texts += written
            level = usual if level is None else level
        if not texts:
            raise ValueError('check needs requirements: --require "ece <= 0.05", or --rules FILE')
        level = DEFAULT_GATE_LEVEL if level is None else level
        require_level(level)
        requirements = [Requirement.parsed(text) for text in texts]
        if self.against is None and (relative := [each for each in requirements if each.relative]):
            raise ValueError(f'"{relative[0]}" is about a base: name its predictions with --against')
        return requirements, level


def read_rules(path: Path) -> tuple[list[str], float | None]:
    """Requirements, and the level where it is said, of a TOML file."""
    import tomllib

    try:
        found = tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise ValueError(f"--rules: there is no file {path}") from None
    except (OSError, RecursionError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"--rules {path}: {error}") from None
    if unknown := sorted(set(found) - set(RULES)):
        raise ValueError(f"--rules {path}: there is no key {', '.join(unknown)}; there are {', '.join(RULES)}")
    rules, level = found.get("require", []), found.get("level")
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise ValueError(f'--rules {path}: require must be a list of texts, such as ["ece <= 0.05"]')
    if level is not None:
        require_level(level)
    return rules, level
