"""`Scores`: one small JSON with every estimate, bin sum and curve that a table or a figure needs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise._addresses import as_path, read_text
from counterpoise._documents import from_document, to_document
from counterpoise._extras import view
from counterpoise._files import write_text
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key, MetricInfo, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

SCHEMA = "counterpoise.scores"
SCHEMA_VERSION = 1
CURVE_POINTS = 512
"""Curves are thinned to at most this many points, ends included: evenly by samples, or by those of either side."""


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
    curves: dict[str, list[float]] = field(repr=False)


@dataclass(frozen=True)
class GroupScores:
    """Some of the metrics for the samples of one domain, corruption and severity; None where not stated.

    Other columns that describe groups are in `columns`, with None for a value that is missing. Each interval of
    `estimates` holds for its group alone; those of `simultaneous`, which are wider, hold for all groups of the same
    scores together.
    """

    domain: str | None
    corruption: str | None
    severity: int | None
    samples: int
    estimates: dict[str, Estimate]
    columns: dict[str, str | None] = field(default_factory=dict)
    simultaneous: dict[str, Estimate] = field(default_factory=dict)


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
class CoverageTable:
    """Prediction sets of each kind of samples: how many there are, how many hold the label, and their labels in all."""

    samples: list[int]
    held: list[int]
    labels: list[int]


@dataclass(frozen=True)
class GuaranteeTrial:
    """What prediction sets and a threshold of the confidence promise, fitted on some of the samples, and do on others.

    Attributes:
        alpha: largest probability that a set misses the label, as promised.
        fitted_on: number of samples.
        measured_on: number of other samples, which all that follows is about.
        sizes: how many sets have 0 labels, 1 label and so on, to the largest.
        by_class: of the samples of each class.
        by_group: of the samples of each of `Scores.groups`.
        risk: largest share of wrong predictions among accepted ones, as promised with probability `1 - delta`.
        delta: largest probability that the share is larger.
        threshold: confidence from which predictions are accepted; infinite where nothing can be.
        accepted: how many are.
        errors: how many of these are wrong.
    """

    alpha: float
    fitted_on: int
    measured_on: int
    sizes: list[int]
    by_class: CoverageTable
    by_group: CoverageTable
    risk: float
    delta: float
    threshold: float
    accepted: int
    errors: int


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
class Scores(Mapping[str, Estimate]):
    """All that is known of how far some predictions can be trusted; prints as a table, renders in a notebook.

    A mapping from the names of metrics to their estimates: `scores["ece"].value`, `for key in scores`.

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
        guarantees: what prediction sets and a threshold of the confidence promise and do, where it was tried.
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
    guarantees: GuaranteeTrial | None = None

    def __getitem__(self, key: str) -> Estimate:
        """The estimate of that name, of performance, calibration or misclassification detection."""
        for estimates in (self.estimates, self.misclassification.estimates):
            if key in estimates:
                return estimates[key]
        if key in self.missing:
            raise KeyError(f"no metric {key!r}: {self.missing[key]}")
        raise KeyError(f"no metric {key!r}; there are {', '.join(self)}")

    def __iter__(self) -> Iterator[str]:
        return map(str, self.estimates | self.misclassification.estimates)

    def __len__(self) -> int:
        return len(self.estimates | self.misclassification.estimates)

    def info_of(self, key: str) -> MetricInfo:
        """Title, unit and better direction of a metric."""
        return KEY_INFO.get(key) or self.info[key]

    def __repr__(self) -> str:
        name = f" of {self.source.name!r}" if self.source.name else ""
        values = [f", {key} {self[key].value:.4g}" for key in (Key.ACCURACY, Key.ECE) if key in self]
        return f"<Scores{name}: {self.samples:,} samples, {self.classes:,} classes{''.join(values)}>"

    def __str__(self) -> str:
        return str(view("text")(self))

    def _repr_html_(self) -> str:
        return str(view("html")(self))

    def plot(self) -> "Figure":
        """The reliability diagram, a matplotlib figure."""
        figure: Figure = view("figure")(self)
        return figure

    def report(self, path: str | Path) -> None:
        """Write the report, one self-contained HTML file."""
        view("page")(self, path)

    def to_pandas(self) -> "DataFrame":
        """A row for each estimate, of OOD sets and groups too: what `counterpoise evaluate --csv` prints."""
        table: DataFrame = view("table")(self)
        return table

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
        return cls.from_json(read_text(as_path(path)))


def label_notices(scores: Scores, names: Sequence[str] | None) -> list[str]:
    """What to say if labels that are numbers may count from 1: none is 0, of so many that five would be due."""
    shares = scores.by_class.frequency
    if names is not None or len(shares) < 3 or shares[0] > 0 or scores.samples < 5 * len(shares):
        return []
    listed = ",".join(map(str, range(1, 1 + len(shares)))) if len(shares) <= 20 else f"1,2,...,{len(shares)}"
    return [
        f"no label is 0, the class of the first of {len(shares)} outputs; if labels count from 1, subtract 1 (on the "
        f"command line, --class-names {listed})"
    ]


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
    ece = scores.get(Key.ECE)
    if ece is not None and ece.low > 0 and ece.value > (ece.floor or 0):
        limits = f"{percent(scores.level)} interval {100 * ece.low:.1f} to {100 * ece.high:.1f}"
        floor = "" if ece.floor is None else f", noise floor {100 * ece.floor:.1f}"
        return f"{says}, but single confidences are too high or too low: ECE {ece.value:.1%} ({limits}{floor})."
    interval = f"({percent(scores.level)} interval {100 * gap.low:.1f} to {100 * gap.high:.1f} points)"
    return f"{says}: no difference beyond chance {interval}."
