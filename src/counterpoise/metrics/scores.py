"""`Scores`: one small JSON with every estimate, bin sum and curve that a table or a figure needs."""

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from counterpoise.metrics.estimates import Estimate, Key
from counterpoise.metrics.table import as_html, as_text

SCHEMA = "counterpoise.scores"
SCHEMA_VERSION = 1
CURVE_POINTS = 512
"""Curves are thinned to at most this many points, evenly by samples, ends included."""


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
    """Per class: its share of the labels, its mean probability, its calibration error and noise floor."""

    frequency: list[float]
    mean_probability: list[float]
    ece: list[float]
    floor: list[float]


@dataclass(frozen=True)
class RankingScores:
    """Detection by one confidence score, with its curves.

    Attributes:
        score: name of the confidence score.
        positives: samples that should score high.
        negatives: samples that should score low.
        estimates: the ranking measures.
        curves: `true_positive_rate` and `false_positive_rate`; `coverage` and `risk` where negative means wrong.
    """

    score: str
    positives: int
    negatives: int
    estimates: dict[Key, Estimate]
    curves: dict[str, list[float]]


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
        ood: telling in-distribution from foreign samples, where foreign ones were given.
    """

    samples: int
    classes: int
    bins: int
    level: float
    estimates: dict[Key, Estimate]
    top_label: BinTable
    by_class: ClassTable
    misclassification: RankingScores
    ood: RankingScores | None = None

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
        document = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION} | asdict(self)
        return json.dumps(_to_plain(document), allow_nan=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Scores":
        """Read what `to_json` wrote; anything else is a `ValueError`."""
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
            raise ValueError(f"not a scores document: its 'schema' is not {SCHEMA!r}")
        version = document.pop("schema_version", None)
        if version != SCHEMA_VERSION:
            raise ValueError(f"scores have schema version {version!r}, this release reads {SCHEMA_VERSION}")
        try:
            return cls(
                **_pick(document, Scores, "estimates", "top_label", "by_class", "misclassification", "ood"),
                estimates=_estimates(document["estimates"]),
                top_label=BinTable(**_pick(document["top_label"], BinTable)),
                by_class=ClassTable(**_pick(document["by_class"], ClassTable)),
                misclassification=_ranking(document["misclassification"]),
                ood=None if document["ood"] is None else _ranking(document["ood"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"scores document is incomplete or malformed: {type(error).__name__} {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the JSON."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Scores":
        """Read the JSON."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


def _estimates(document: dict[str, Any]) -> dict[Key, Estimate]:
    return {Key(key): Estimate(**_pick(value, Estimate)) for key, value in document.items()}


def _ranking(document: dict[str, Any]) -> RankingScores:
    return RankingScores(**_pick(document, RankingScores, "estimates"), estimates=_estimates(document["estimates"]))


def _pick(document: dict[str, Any], kind: type[Any], *omitted: str) -> dict[str, Any]:
    """The fields of a dataclass from a JSON object, refusing missing and unknown ones."""
    names = {field.name for field in fields(kind)}
    if set(document) != names:
        raise TypeError(f"{kind.__name__} has the fields {sorted(document)}, expected {sorted(names)}")
    return {name: _from_plain(kind, name, value) for name, value in document.items() if name not in omitted}


def _from_plain(kind: type[Any], name: str, value: Any) -> Any:
    if kind is Estimate and name in ("value", "low", "high"):
        return math.nan if value is None else float(value)
    return float(value) if value in ("inf", "-inf") else value


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
