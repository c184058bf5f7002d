"""The page of a monitor: one file, light and dark, that loads nothing and runs no script."""

from dataclasses import dataclass
from pathlib import Path

from counterpoise import __version__
from counterpoise._files import write_text
from counterpoise.metrics.estimates import percent
from counterpoise.monitoring import figures
from counterpoise.monitoring.evidence import LABELLED
from counterpoise.monitoring.standing import Alarm, Standing
from counterpoise.monitoring.texts import SENTENCES, TITLES, evidence_text, state_of, window_table
from counterpoise.report.html import inside, layout
from counterpoise.report.page import STYLE_SHEET

_MOST_ROWS = 400
"""Of the table of windows: a page that a browser opens at once."""
_PICTURES = (
    (
        figures.accuracy,
        "Accuracy",
        "Of the predictions that have labels, and estimated for all: the accuracy of each confidence in the reference, "
        "weighted by how often that confidence is seen now. The estimate holds only while a confidence is right as "
        "often as it was.",
    ),
    (
        figures.evidence,
        "Evidence of a change",
        "At the end of each window, as the counts are now. An alarm is the last value above the dotted line.",
    ),
    (figures.confidence, "Confidence", "Mean of the predicted class's probability."),
    (figures.volume, "Predictions", "How many there were, and for how many labels have come."),
)


@dataclass(frozen=True)
class _Picture:
    title: str
    text: str
    light: str
    dark: str


def write_page(path: str | Path, standing: Standing, *, name: str) -> None:
    """Write the page, atomically."""
    write_text(path, render(standing, name=name))


def render(standing: Standing, *, name: str) -> str:
    """The page as text; the same standing always gives the same text."""
    page = layout(
        "counterpoise.monitoring",
        template="page.html.jinja",
        sheets=(STYLE_SHEET, ("counterpoise.monitoring", "page.css")),
    )
    pictures = [
        _Picture(title, text, *inside(draw(standing))) for draw, title, text in (_PICTURES if standing.lines else ())
    ]
    last = standing.lines[-1] if standing.lines else None
    return page.template.render(
        title=name,
        style=page.style,
        style_digest=page.style_digest,
        verdict=SENTENCES[standing.outcome],
        why=_why(standing),
        lead=_lead(standing),
        cards=[_card(alarm, standing) for alarm in standing.alarms],
        rows=[pictures[:2], pictures[2:]] if pictures else [],
        windows=window_table(standing, most=_MOST_ROWS, brief=False) if last else None,
        version=__version__,
    )


def _why(standing: Standing) -> str:
    return (
        f"The chance of any false alarm, ever, however often this is looked at, is at most "
        f"{percent(round(1 - standing.level, 6))}."
    )


def _lead(standing: Standing) -> str:
    if not standing.lines:
        return f"held against {standing.reference.predictions:,} predictions"
    span = f"{standing.lines[0].start} to {standing.lines[-1].start}"
    return (
        f"{span}, by the {standing.shown} · {standing.predictions:,} predictions, {standing.labelled:,} with labels · "
        f"held against {standing.reference.predictions:,}"
    )


def _card(alarm: Alarm, standing: Standing) -> dict[str, object]:
    needs = "needs labels" if alarm.part in LABELLED else "needs no labels"
    return {
        "title": TITLES[alarm.part].capitalize(),
        "state": "off" if alarm.raised else "none",
        "word": state_of(alarm),
        "evidence": evidence_text(alarm.log10_evidence) if alarm.samples else "none",
        "note": f"evidence; {evidence_text(standing.threshold)} is an alarm",
        "text": f"{needs} · {alarm.samples:,} samples",
        "about": f"{alarm.about}, since about {alarm.since}" if alarm.raised else "",
    }
