"""`Scores`: one small JSON with every estimate, bin sum and curve that a table or a figure needs.

Printed as text of at most 100 columns, and as HTML in notebooks.
"""

import html
import math
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from counterpoise._documents import from_document, to_document
from counterpoise._files import write_text
from counterpoise._text import shown
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key, MetricInfo, percent

SCHEMA = "counterpoise.scores"
SCHEMA_VERSION = 1
CURVE_POINTS = 512
"""Curves are thinned to at most this many points, ends included: evenly by samples, or by those of either side."""

MOST_COLUMNS = 100

Row = tuple[str, str, str, str]
"""Metric, value, interval, noise floor."""


@dataclass(frozen=True)
class BinTable:
    """What a reliability diagram is drawn from: per bin, the samples, the sum of confidences and the hits."""

    count: list[int]
    hits: list[int]
    confidence: list[float]
    confidence_squared: list[float]
    confidence_hits: list[float]


@dataclass(frozen=True)
class ClassTable:
    """Per class: its share of the labels, mean probability, calibration error with interval, and noise floor."""

    frequency: list[float]
    mean_probability: list[float]
    ece: list[float]
    low: list[float]
    high: list[float]
    floor: list[float]


NO_CLASSES = ClassTable([], [], [], [], [], [])
"""Where only the confidence of the predicted class is known."""


@dataclass(frozen=True)
class RankingScores:
    """Detection by one confidence score, with its curves.

    Attributes:
        score: name of the confidence score.
        positives: samples that should score high.
        negatives: samples that should score low.
        estimates: the ranking metrics.
        curves: by falling `threshold`, what accepting everything from there on gives: `true_positive_rate` and
            `false_positive_rate`; `coverage` and `risk` where negative means wrong.
    """

    score: str
    positives: int
    negatives: int
    estimates: dict[str, Estimate]
    curves: dict[str, list[float]]


@dataclass(frozen=True)
class GroupScores:
    """Some of the metrics for the samples of one domain, corruption and severity; None where not stated.

    Other columns that describe the group are in `columns`.
    """

    domain: str | None
    corruption: str | None
    severity: int | None
    samples: int
    estimates: dict[str, Estimate]
    columns: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recalibration:
    """What temperature scaling would change: fitted on some of the samples, measured on others.

    Attributes:
        temperature: that minimises the NLL of the samples it was fitted on.
        state: whether the minimum was found or lies at a bound.
        fitted_on: number of samples.
        measured_on: number of other samples.
        before: calibration metrics without it, on the latter.
        after: the same with it.
        bins_before: bins of the predicted class without it.
        bins_after: the same with it.
    """

    temperature: float
    state: str
    fitted_on: int
    measured_on: int
    before: dict[str, Estimate]
    after: dict[str, Estimate]
    bins_before: BinTable
    bins_after: BinTable


@dataclass(frozen=True)
class Source:
    """Where the predictions came from, as far as it is known."""

    name: str = ""
    path: str = ""
    digest: str | None = None
    kind: str = ""
    members: int | None = None
    model: str = ""
    method: str = ""
    seed: int | None = None
    config_digest: str = ""
    data_sets: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Scores:
    """All that is known of how far some predictions can be trusted; prints as a table, renders in a notebook.

    Attributes:
        samples: number of labelled samples.
        classes: number of classes; 1 where only the confidence of the predicted class is known.
        bins: number of calibration bins.
        level: nominal coverage of the intervals.
        estimates: performance and calibration.
        top_label: bins of the predicted class.
        by_class: calibration of each class; empty where only the confidence of the predicted class is known.
        misclassification: telling right from wrong predictions.
        ood: telling in-distribution from OOD samples, for each set of these.
        groups: the samples of each domain, corruption and severity, where these are known.
        recalibration: what temperature scaling would change, where it was tried.
        class_names: one for each class, where they are known.
        source: where the predictions came from.
        info: title, unit and better direction of each metric that is not the package's own.
        positive: bins of the probability of the class 1, where there are two.
        missing: metrics that the predictions do not allow, with the reason.
    """

    samples: int
    classes: int
    bins: int
    level: float
    estimates: dict[str, Estimate]
    top_label: BinTable
    by_class: ClassTable
    misclassification: RankingScores
    ood: dict[str, RankingScores] = field(default_factory=dict)
    groups: list[GroupScores] = field(default_factory=list)
    recalibration: Recalibration | None = None
    class_names: list[str] | None = None
    source: Source = field(default_factory=Source)
    info: dict[str, MetricInfo] = field(default_factory=dict)
    positive: BinTable | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Estimate:
        """The estimate of that name, of performance, calibration or misclassification detection."""
        everything = self.estimates | self.misclassification.estimates
        if key in self.missing:
            raise KeyError(f"no metric {key!r}: {self.missing[key]}")
        if key not in everything:
            raise KeyError(f"no metric {key!r}; there are {', '.join(everything)}")
        return everything[key]

    def info_of(self, key: str) -> MetricInfo:
        """Title, unit and better direction of a metric."""
        return KEY_INFO.get(key) or self.info[key]

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def to_json(self) -> str:
        """Strict JSON: NaN is null, infinities are the strings "inf" and "-inf"."""
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION)

    @classmethod
    def from_json(cls, text: str) -> "Scores":
        """Read what `to_json` wrote; anything else is a `ValueError`."""
        return from_document(cls, text, schema=SCHEMA, version=SCHEMA_VERSION)

    def save(self, path: str | Path) -> None:
        """Write the JSON, atomically."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Scores":
        """Read the JSON."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


def as_text(scores: Scores) -> str:
    """A table with a line for each metric."""
    width = max(len(row[0]) for _, rows in _sections(scores) for row in rows)
    lines = [textwrap.fill(verdict(scores), MOST_COLUMNS), f"({_size(scores)})", ""]
    lines.append(f"{'':{width}}  {'value':>14}  {f'{percent(scores.level)} interval':>20}  {'noise floor':>11}")
    for title, rows in _sections(scores):
        lines.append(title)
        for name, value, interval, floor in rows:
            lines.append(f"{name:{width}}  {value:>14}  {interval:>20}  {floor:>11}".rstrip())
    return "\n".join(lines)


def as_html(scores: Scores) -> str:
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


def verdict(scores: Scores) -> str:
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


def _size(scores: Scores) -> str:
    return f"{scores.samples:,} samples, {scores.classes:,} classes, {scores.bins} bins"


def _sections(scores: Scores) -> list[tuple[str, list[Row]]]:
    sections = [("Performance and calibration", _rows(scores, scores.estimates))]
    sections.append(_ranking_section(scores, "Right from wrong", scores.misclassification))
    for name, ranking in scores.ood.items():
        title = f"In-distribution from {shown(name, most=40)}"
        sections.append(_ranking_section(scores, title, ranking))
    return sections


def _ranking_section(scores: Scores, title: str, ranking: RankingScores) -> tuple[str, list[Row]]:
    size = f"({ranking.positives:,} : {ranking.negatives:,})"
    return f"{title}, by {ranking.score} {size}", _rows(scores, ranking.estimates)


def _rows(scores: Scores, estimates: dict[str, Estimate]) -> list[Row]:
    return [_row(scores.info_of(key), estimate) for key, estimate in estimates.items()]


def _row(info: MetricInfo, estimate: Estimate) -> Row:
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
