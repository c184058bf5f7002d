"""How a model stands, as people and programs read it: text, JSON, OpenMetrics."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from counterpoise._documents import to_document
from counterpoise.metrics.estimates import percent
from counterpoise.monitoring.evidence import LABELLED, Part
from counterpoise.monitoring.standing import Alarm, Line, Measured, Outcome, Standing
from counterpoise.report.tables import Cell, Table, as_text, table

SCHEMA, VERSION = "counterpoise.standing", 1
TITLES: dict[Part, str] = {
    "accuracy": "accuracy",
    "calibration": "calibration",
    "classes": "predicted classes",
    "confidence": "confidence",
}
SENTENCES: dict[Outcome, str] = {
    "fine": "No alarm.",
    "alarm": "Alarm: the model does not do as it did in the reference.",
    "nothing": "There is nothing to judge yet: no predictions have been counted.",
}
_BARS = "▁▂▃▄▅▆▇█"
_SHOWN_WINDOWS = 12


def as_json(standing: Standing) -> str:
    """Strict JSON: the same bytes for the same counts, however files were divided and ordered."""
    return to_document(standing, schema=SCHEMA, version=VERSION)


def as_lines(standing: Standing, *, width: int = 100, colour: bool = False) -> str:
    """The alarms, the last windows, and a sentence."""
    parts = []
    if standing.alarms:
        parts.append(as_text(alarm_table(standing), width=width, colour=colour))
    if standing.lines:
        parts.append(as_text(window_table(standing, most=_SHOWN_WINDOWS, brief=True), width=width))
        parts.append("\n".join(_time_lines(standing, width)))
    parts.append("\n".join([*reasons(standing), sentence(standing)]))
    return "\n\n".join(parts)


def sentence(standing: Standing) -> str:
    """The outcome, and what it is worth."""
    worth = f"The chance of any false alarm, ever, is at most {percent(round(1 - standing.level, 6))}."
    unlabelled = (
        " No labels have come yet, so accuracy and calibration are not judged."
        if standing.lines and not standing.labelled
        else ""
    )
    return f"{SENTENCES[standing.outcome]}{unlabelled} {worth}"


def alarm_table(standing: Standing) -> Table:
    """A row for each part."""
    rows = [
        (
            Cell(TITLES[alarm.part]),
            Cell(evidence_text(alarm.log10_evidence) if alarm.samples else "-"),
            Cell(f"{alarm.samples:,}"),
            Cell(state_of(alarm), worse=alarm.raised),
        )
        for alarm in standing.alarms
    ]
    title = f"Evidence of a change since the reference; {evidence_text(standing.threshold)} is an alarm"
    return Table(title, ("alarm", "evidence", "samples", ""), tuple(rows))


def reasons(standing: Standing) -> list[str]:
    """Of each alarm that is raised, what has changed and since when."""
    return [
        f"{TITLES[alarm.part]}: {alarm.about}, since about {alarm.since}" for alarm in standing.alarms if alarm.raised
    ]


def window_table(standing: Standing, *, most: int, brief: bool) -> Table:
    """A row for the reference and for each of the last windows; `brief` is without most of the intervals."""
    lines = standing.lines[-most:]
    left_out = len(standing.lines) - len(lines)
    before = f", after {left_out:,} more" if left_out else ""
    title = f"Windows{before}; intervals of {percent(standing.interval_level)}, each by itself"
    heads = (standing.shown, "predictions", "labelled", "accuracy", "estimated", "confidence")
    rows = [("reference", standing.reference), *((line.start, line) for line in lines)]
    return table(title, heads, [_cells(line, name, brief=brief) for name, line in rows])


def _cells(line: Line, name: str, *, brief: bool) -> tuple[str, ...]:
    rest = [f"{100 * each.value:.1f}%" if brief else measured_text(each) for each in _without_labels(line)]
    accuracy = "-" if line.accuracy is None else measured_text(line.accuracy)
    return (name, f"{line.predictions:,}", f"{line.labelled:,}", accuracy, *rest)


def _without_labels(line: Line) -> tuple[Measured, Measured]:
    return line.estimated_accuracy, line.mean_confidence


def measured_text(value: Measured) -> str:
    """In percent, with its interval."""
    return f"{100 * value.value:.1f}% ({100 * value.low:.1f} to {100 * value.high:.1f})"


def evidence_text(log10: float) -> str:
    """An e-value as it is read.

    >>> evidence_text(2), evidence_text(-1.5), evidence_text(7.25), evidence_text(1489.2)
    ('100', '0.032', '1.8e+07', '1e1489')
    """
    if log10 >= 300:  # floats end at 1e308
        return f"1e{log10:.0f}"
    return f"{10**log10:,.0f}" if 2 <= log10 <= 4 else f"{10**log10:.2g}"


def state_of(alarm: Alarm) -> str:
    """A word."""
    return "ALARM" if alarm.raised else "no alarm" if alarm.samples else "not judged"


def _time_lines(standing: Standing, width: int) -> Iterator[str]:
    lines = standing.lines[-max(10, width - 24) :]
    shown = (
        ("accuracy", [math.nan if line.accuracy is None else line.accuracy.value for line in lines]),
        ("estimated accuracy", [line.estimated_accuracy.value for line in lines]),
        ("mean confidence", [line.mean_confidence.value for line in lines]),
    )
    for name, values in shown:
        yield f"{name:20}{sparkline(values)}"


def sparkline(values: Sequence[float]) -> str:
    """Values from the lowest to the highest as bars; a space where there is none.

    >>> sparkline([0.5, 0.75, float("nan"), 1.0])
    '▁▄ █'
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (len(_BARS) - 1) / ((high - low) or 1)
    return "".join(" " if math.isnan(value) else _BARS[int((value - low) * step)] for value in values)


def as_openmetrics(standing: Standing) -> str:
    """OpenMetrics text: totals, the last window, evidence and alarms."""
    return "\n".join([*_families(standing), "# EOF", ""])


def _families(standing: Standing) -> Iterator[str]:
    yield from _family(
        "predictions", "counter", "Predictions that were counted", [("_total", "", standing.predictions)]
    )
    yield from _family("labelled", "counter", "Predictions with a label", [("_total", "", standing.labelled)])
    evidence = [("", _label(alarm), alarm.log10_evidence) for alarm in standing.alarms if alarm.samples]
    raised = [("", _label(alarm), int(alarm.raised)) for alarm in standing.alarms if alarm.samples]
    yield from _family("log10_evidence", "gauge", "Decimal logarithm of the evidence of a change", evidence)
    yield from _family("log10_threshold", "gauge", "Of the evidence that is an alarm", [("", "", standing.threshold)])
    yield from _family("alarm", "gauge", "1 where the evidence has reached the threshold", raised)
    last = standing.lines[-1] if standing.lines else None
    if last is None:
        return
    start = datetime.fromisoformat(last.start)
    seconds = (start if start.tzinfo is not None else start.replace(tzinfo=UTC)).timestamp()
    yield from _family(
        "window_start_seconds", "gauge", "Start of the last window", [("", "", int(seconds))], unit="seconds"
    )
    for name, value, help_ in (
        ("accuracy", last.accuracy, "Accuracy of the labelled predictions of the last window"),
        ("estimated_accuracy", last.estimated_accuracy, "Accuracy of the last window, estimated without labels"),
        ("mean_confidence", last.mean_confidence, "Mean confidence of the last window"),
    ):
        if value is not None:
            limits = [(f'{{limit="{each}"}}', getattr(value, each)) for each in ("value", "low", "high")]
            yield from _family(
                f"{name}_ratio", "gauge", help_, [("", label, own) for label, own in limits], unit="ratio"
            )


def _label(alarm: Alarm) -> str:
    return f'{{part="{alarm.part}",labels="{"needed" if alarm.part in LABELLED else "none"}"}}'


def _family(
    name: str, kind: str, help_: str, samples: Sequence[tuple[str, str, float]], *, unit: str | None = None
) -> Iterator[str]:
    full = f"counterpoise_{name}"
    yield f"# TYPE {full} {kind}"
    if unit is not None:
        yield f"# UNIT {full} {unit}"
    yield f"# HELP {full} {help_}."
    for suffix, labels, value in samples:
        yield f"{full}{suffix}{labels} {value:.10g}"
