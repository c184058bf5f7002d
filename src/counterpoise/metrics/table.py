"""`Scores` as text of at most 100 columns, and as HTML for notebooks."""

import html
import math
import textwrap
from typing import TYPE_CHECKING

from counterpoise._text import shown
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key, percent

if TYPE_CHECKING:
    from counterpoise.metrics.scores import RankingScores, Scores

MOST_COLUMNS = 100

Row = tuple[str, str, str, str]
"""Measure, value, interval, noise floor."""


def as_text(scores: "Scores") -> str:
    """A table with a line for each measure."""
    width = max(len(row[0]) for _, rows in _sections(scores) for row in rows)
    lines = [textwrap.fill(verdict(scores), MOST_COLUMNS), f"({_size(scores)})", ""]
    lines.append(f"{'':{width}}  {'value':>14}  {f'{percent(scores.level)} interval':>20}  {'noise floor':>11}")
    for title, rows in _sections(scores):
        lines.append(title)
        for name, value, interval, floor in rows:
            lines.append(f"{name:{width}}  {value:>14}  {interval:>20}  {floor:>11}".rstrip())
    return "\n".join(lines)


def as_html(scores: "Scores") -> str:
    """The same table as HTML, every text escaped."""

    def cells(tag: str, texts: tuple[str, ...]) -> str:
        return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)

    body = ""
    for title, rows in _sections(scores):
        body += f'<tr><th colspan="4" style="text-align:left">{html.escape(title)}</th></tr>'
        body += "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = cells("th", ("", "value", f"{percent(scores.level)} interval", "noise floor"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<p>{html.escape(verdict(scores))} ({_size(scores)})</p>{table}"


def verdict(scores: "Scores") -> str:
    """One sentence on whether confidence and accuracy agree."""
    gap, accuracy = scores[Key.MEAN_GAP], scores[Key.ACCURACY].value
    says = f"Says {accuracy + gap.value:.1%} on average, is right {accuracy:.1%} of the time"
    low, high = sorted((100 * abs(gap.low), 100 * abs(gap.high)))
    interval = f"({percent(scores.level)} interval {low:.1f} to {high:.1f})"
    if gap.low > 0:
        return f"{says}: overconfident by {100 * gap.value:.1f} points {interval}."
    if gap.high < 0:
        return f"{says}: underconfident by {-100 * gap.value:.1f} points {interval}."
    interval = f"({percent(scores.level)} interval {100 * gap.low:.1f} to {100 * gap.high:.1f} points)"
    return f"{says}: no difference beyond chance {interval}."


def _size(scores: "Scores") -> str:
    return f"{scores.samples:,} samples, {scores.classes:,} classes, {scores.bins} bins"


def _sections(scores: "Scores") -> list[tuple[str, list[Row]]]:
    sections = [("Performance and calibration", _rows(scores.estimates))]
    sections.append(_ranking_section("Right from wrong", scores.misclassification))
    for name, ranking in scores.ood.items():
        title = f"In-distribution from {shown(name, most=40)}"
        sections.append(_ranking_section(title, ranking))
    return sections


def _ranking_section(title: str, ranking: "RankingScores") -> tuple[str, list[Row]]:
    return f"{title}, by {ranking.score} ({ranking.positives:,} : {ranking.negatives:,})", _rows(ranking.estimates)


def _rows(estimates: dict[Key, Estimate]) -> list[Row]:
    return [_row(key, estimate) for key, estimate in estimates.items()]


def _row(key: Key, estimate: Estimate) -> Row:
    info = KEY_INFO[key]
    digits = 2 if info.scale > 1 else 4
    name = f"  {info.title}"
    if math.isnan(estimate.value):
        return name, "undefined", "", ""

    def shown(value: float) -> str:
        return f"{info.scale * value:.{digits}f}"

    interval = "" if math.isnan(estimate.low) else f"{shown(estimate.low)} to {shown(estimate.high)}"
    return (
        name,
        f"{shown(estimate.value)} {info.unit:6}",
        interval,
        "" if estimate.floor is None else shown(estimate.floor),
    )
