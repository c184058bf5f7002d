"""An evaluation as text for a terminal, at most 100 columns wide."""

import textwrap

from counterpoise._text import printable, shown, width_of
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.scores import MOST_COLUMNS, Scores, verdict
from counterpoise.report import numbers
from counterpoise.report.data import name_of, severities
from counterpoise.report.sentences import selective_sentence, temperature_sentence
from counterpoise.report.tables import as_text as table_text


def as_text(evaluation: Evaluation, *, risk: float) -> str:
    """The verdicts, all metrics, and how the models compare."""
    models = evaluation.models
    if len(models) == 1:
        parts = [str(models[0]), *_remarks(models[0], risk=risk)]
    else:
        parts = [_wrapped(f"{shown(name_of(model), most=40)}: {verdict(model)}") for model in models]
        parts.append(table_text(numbers.summary(evaluation)))
        differences = numbers.paired_differences(evaluation)
        if differences is not None:
            parts += [table_text(differences), "* better, beyond chance"]
        for model in models:
            parts.append(shown(name_of(model), most=60))
            parts += _remarks(model, risk=risk)
    return "\n\n".join(parts)


def _remarks(scores: Scores, *, risk: float) -> list[str]:
    remarks = [_wrapped(selective_sentence(scores, risk=risk))]
    if scores.recalibration is not None:
        remarks.append(_wrapped(temperature_sentence(scores.recalibration)))
    tables = [numbers.severity_means(scores) if len(severities(scores)) > 1 else None, numbers.group_table(scores)]
    return remarks + [table_text(table) for table in tables if table is not None]


def _wrapped(text: str) -> str:
    line = printable(text)
    return textwrap.fill(line, MOST_COLUMNS - (width_of(line) - len(line)))
