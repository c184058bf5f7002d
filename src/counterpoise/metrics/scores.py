"""`Scores`: one small JSON with every estimate, bin sum and curve that a table or a figure needs."""

from dataclasses import dataclass, field
from pathlib import Path

from counterpoise._documents import from_document, to_document
from counterpoise._files import write_text
from counterpoise.metrics.estimates import Estimate, Key
from counterpoise.metrics.table import as_html, as_text

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


@dataclass(frozen=True)
class RankingScores:
    """Detection by one confidence score, with its curves.

    Attributes:
        score: name of the confidence score.
        positives: samples that should score high.
        negatives: samples that should score low.
        estimates: the ranking measures.
        curves: by falling `threshold`, what accepting everything from there on gives: `true_positive_rate` and
            `false_positive_rate`; `coverage` and `risk` where negative means wrong.
    """

    score: str
    positives: int
    negatives: int
    estimates: dict[Key, Estimate]
    curves: dict[str, list[float]]


@dataclass(frozen=True)
class GroupScores:
    """Some of the measures for the samples of one domain, corruption and severity; None where not stated."""

    domain: str | None
    corruption: str | None
    severity: int | None
    samples: int
    estimates: dict[Key, Estimate]


@dataclass(frozen=True)
class Recalibration:
    """What temperature scaling would change: fitted on some of the samples, measured on others.

    Attributes:
        temperature: that minimises the NLL of the samples it was fitted on.
        state: whether the minimum was found or lies at a bound.
        fitted_on: number of samples.
        measured_on: number of other samples.
        before: calibration measures without it, on the latter.
        after: the same with it.
        bins_before: bins of the predicted class without it.
        bins_after: the same with it.
    """

    temperature: float
    state: str
    fitted_on: int
    measured_on: int
    before: dict[Key, Estimate]
    after: dict[Key, Estimate]
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
        classes: number of classes.
        bins: number of calibration bins.
        level: nominal coverage of the intervals.
        estimates: performance and calibration.
        top_label: bins of the predicted class.
        by_class: calibration of each class.
        misclassification: telling right from wrong predictions.
        ood: telling in-distribution from foreign samples, for each set of foreign ones.
        groups: the samples of each domain, corruption and severity, where these are known.
        recalibration: what temperature scaling would change, where it was tried.
        class_names: one for each class, where they are known.
        source: where the predictions came from.
    """

    samples: int
    classes: int
    bins: int
    level: float
    estimates: dict[Key, Estimate]
    top_label: BinTable
    by_class: ClassTable
    misclassification: RankingScores
    ood: dict[str, RankingScores] = field(default_factory=dict)
    groups: list[GroupScores] = field(default_factory=list)
    recalibration: Recalibration | None = None
    class_names: list[str] | None = None
    source: Source = field(default_factory=Source)

    def __getitem__(self, key: str) -> Estimate:
        """The estimate of that name, of performance, calibration or misclassification detection."""
        everything = self.estimates | self.misclassification.estimates
        if key not in everything:
            raise KeyError(f"no measure {key!r}; there are {', '.join(everything)}")
        return everything[Key(key)]

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
