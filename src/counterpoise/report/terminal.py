"""An evaluation as text, as wide as the screen it is for."""

import os
import shutil
import sys
from dataclasses import dataclass

from counterpoise._text import shown, wrapped
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.estimates import Key, percent
from counterpoise.metrics.scores import Scores, verdict
from counterpoise.metrics.slices import WORST_SLICES
from counterpoise.report import numbers
from counterpoise.report.advice import advice_between
from counterpoise.report.data import name_of, severities, size_of
from counterpoise.report.guarantees import coverage_tables, sets_sentence, threshold_sentence
from counterpoise.report.sentences import selective_sentence, temperature_sentence, untested_sentences
from counterpoise.report.slices import slice_sentence, slice_table, slices_of
from counterpoise.report.tables import BETTER, MOST_COLUMNS, WORSE, Table
from counterpoise.report.tables import as_text as table_text

LEAST_COLUMNS = 60
"""On a narrower screen lines wrap: a title and a number with its interval need as many."""

OUTSIDE = "†"
_BIASED = (
    f"{OUTSIDE} a plug-in value, which is biased; the interval is for the value without that bias, and so leaves it out"
)


@dataclass(frozen=True)
class Screen:
    """What text is written for."""

    width: int = 80
    colour: bool = False


def this_screen() -> Screen:
    """The terminal that standard output goes to, or 80 columns without colour where it goes elsewhere.

    `COLUMNS` and `NO_COLOR` say otherwise.
    """
    width = max(LEAST_COLUMNS, shutil.get_terminal_size((Screen.width, 24)).columns)
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return Screen(width, colour=not plain)


def as_text(
    evaluation: Evaluation,
    *,
    risk: float,
    screen: Screen | None = None,
    everything: bool = False,
    rest: str = "--all",
) -> str:
    """The verdicts, the metrics, and how the models compare.

    Args:
        evaluation: of the models.
        risk: error rate that accepted predictions may have.
        screen: that it is for, by default this one.
        everything: all metrics, not the key ones alone.
        rest: what shows the others.
    """
    models, screen = evaluation.models, screen or this_screen()

    def table(source: Table) -> str:
        return table_text(source, width=screen.width, colour=screen.colour)

    def prose(text: str) -> str:
        return wrapped(text, min(MOST_COLUMNS, screen.width))

    several = len(models) > 1
    names = [f"{shown(name_of(model), most=40)}: " if several else "" for model in models]
    parts = ["\n".join(prose(name + _said(model)) for name, model in zip(names, models, strict=True))]
    if (advice := advice_between(evaluation)) is not None:
        parts.append(prose(f"{advice.line} {advice.why}"))
    summary = numbers.summary(evaluation, key_metrics=not everything, outside=OUTSIDE)
    if not several:
        summary = Table(summary.title, ("", f"value ({percent(models[0].level)} interval)"), summary.rows)
    notes = [_BIASED] if _has(summary, OUTSIDE) else []
    if not everything and (left_out := _left_out(evaluation)):
        notes.append(f"{left_out} more metrics: {rest}")
    if evaluation.comparison is not None and any(cell.best for row in summary.rows for cell in row):
        notes.insert(0, f"{BETTER} best of its row, beyond chance")
    parts.append("\n".join([table(summary), *map(prose, notes)]))
    differences = numbers.paired_differences(evaluation, key_metrics=not everything)
    if differences is not None:
        first = shown(name_of(models[0]), most=30)
        legend = f"{BETTER} better than {first}, {WORSE} worse, beyond chance; without a mark, chance may explain it"
        parts.append(f"{table(differences)}\n{prose(legend)}")
    if several:
        tables = [
            numbers.selective_table(evaluation, risk=risk),
            numbers.temperature_table(evaluation),
            numbers.scaled_differences(evaluation, key_metrics=not everything),
        ]
        parts += [table(found) for found in tables if found is not None]
    for name, model in zip(names, models, strict=True):
        parts += [prose(f"{name}{sentence}") for sentence in untested_sentences(model)]
        parts += (
            [] if several else [prose(sentence) for sentence in _sentences(model, risk=risk, everything=everything)]
        )
        means = numbers.severity_means(model) if len(severities(model)) > 1 else None
        groups, most = slices_of(model), None if everything else WORST_SLICES
        own = [means, slice_table(model, most=most)]
        parts += [table(numbers.titled(found, model) if several else found) for found in own if found is not None]
        if said := slice_sentence(model):
            parts.append(prose(f"{said} {BETTER} better than all samples beyond chance, {WORSE} worse"))
        if most is not None and len(groups) > most:
            parts.append(prose(f"{len(groups) - most:,} more groups: {rest}"))
    return "\n\n".join(parts)


def notices(evaluation: Evaluation, *, screen: Screen) -> list[str]:
    """What is to be known of the input, as paragraphs."""
    return [wrapped(f"Note: {notice}", min(MOST_COLUMNS, screen.width)) for notice in evaluation.notices]


def all_tables(evaluation: Evaluation) -> list[Table]:
    """All metrics, paired differences, and for each model its trials, corruptions and groups."""
    found = [
        numbers.summary(evaluation),
        numbers.paired_differences(evaluation),
        numbers.scaled_differences(evaluation),
    ]
    for model in evaluation.models:
        own = (
            numbers.recalibration_table(model),
            numbers.severity_table(model),
            slice_table(model),
            *coverage_tables(model),
        )
        found += [numbers.titled(table, model) for table in own if table is not None]
    return [table for table in found if table is not None]


def _said(scores: Scores) -> str:
    size = f"({size_of(scores)})"
    return f"{verdict(scores)} {size}" if Key.MEAN_GAP in scores and Key.ACCURACY in scores else size


def _sentences(scores: Scores, *, risk: float, everything: bool) -> list[str]:
    tried = [] if scores.recalibration is None else [temperature_sentence(scores.recalibration)]
    promised = filter(None, (threshold_sentence(scores), sets_sentence(scores))) if everything else ()
    return [selective_sentence(scores, risk=risk), *promised, *tried]


def _has(table: Table, mark: str) -> bool:
    return any(mark in cell.text for row in table.rows for cell in row[1:])


def _left_out(evaluation: Evaluation) -> int:
    """Metrics that are not among the key ones."""
    every = [
        list(dict.fromkeys(key for model in evaluation.models for key in section.estimates(model)))
        for section in numbers.sections(evaluation)
    ]
    return sum(len(keys) - len(numbers.shown_keys(keys)) for keys in every)
