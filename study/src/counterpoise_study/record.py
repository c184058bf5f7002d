"""`cell.json`: all that tables and figures need of a cell, small enough to be kept in a repository."""

from dataclasses import dataclass, replace

from counterpoise._documents import from_document, to_document
from counterpoise.metrics import Key, Scores
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.protocol import Estimates
from counterpoise.metrics.scores import BinTable, GroupScores
from counterpoise.recipes.config import Recipe
from counterpoise.scoring import fit_temperature, score_files
from counterpoise.training.evaluation import ood_files, prediction_file, validation_metrics
from counterpoise.training.folder import RunFolder
from counterpoise_study.cross_fitting import score_cross_fitted

SCHEMA, SCHEMA_VERSION = "counterpoise.cell", 3

MEASURED_OF_GROUPS = (Key.ACCURACY, Key.NLL, Key.ECE)
"""Of every corruption and severity these alone, because there are many."""


@dataclass(frozen=True)
class Outcome:
    """What the test predictions of a cell are worth.

    Attributes:
        estimates: performance and calibration.
        misclassification: telling right from wrong.
        ood: telling in-distribution from OOD, for each OOD set.
        groups: some metrics of each corruption and severity, or domain.
        top_label: bins of the reliability diagram.
    """

    estimates: Estimates
    misclassification: Estimates
    ood: dict[str, Estimates]
    groups: list[GroupScores]
    top_label: BinTable


@dataclass(frozen=True)
class CellRecord:
    """A finished cell.

    Attributes:
        recipe: everything that decided it.
        source: SHA-256 of the file that its method comes from; empty for the methods of the package.
        validation: metrics of the validation images.
        samples: test images.
        classes: number of them.
        level: nominal coverage of the intervals of estimates.
        temperature: fitted on the validation images.
        temperature_state: whether its optimum was found, or lies at a bound.
        plain: the model as it was trained.
        scaled: the same after temperature scaling.
        in_domain: where the test images are of a domain that was left out, the validation images as they are predicted.
        in_domain_scaled: the same, each half of them at the temperature of the other.
    """

    recipe: Recipe
    source: str
    validation: dict[str, float]
    samples: int
    classes: int
    level: float
    temperature: float
    temperature_state: str
    plain: Outcome
    scaled: Outcome
    in_domain: Outcome | None = None
    in_domain_scaled: Outcome | None = None

    def outcome(self, *, scaled: bool) -> Outcome:
        """Of the test images, with or without temperature scaling."""
        return self.scaled if scaled else self.plain

    def in_domain_outcome(self, *, scaled: bool) -> Outcome | None:
        """The same of the validation images."""
        return self.in_domain_scaled if scaled else self.in_domain

    def to_json(self) -> str:
        """Strict JSON."""
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION)

    @classmethod
    def from_json(cls, text: str) -> "CellRecord":
        """Read what `to_json` wrote; anything else is a `ValueError` that names the place."""
        return from_document(cls, text, schema=SCHEMA, version=SCHEMA_VERSION)


def record_of(run: RunFolder, *, source: str) -> CellRecord:
    """The scores of a finished run, and those of its stored predictions after temperature scaling."""
    (plain,) = Evaluation.from_json(run.scores.read_text()).models
    scaling = fit_temperature(prediction_file(run, "validation"))
    test, ood = prediction_file(run, "test"), ood_files(run)
    (scaled,) = score_files([test], ood=ood, temperature=scaling.temperature).models
    in_domain = in_domain_scaled = None
    if run.recipe().data.domain is not None:
        validation = prediction_file(run, "validation")
        (inside,) = score_files([validation]).models
        in_domain, in_domain_scaled = _outcome(inside), _outcome(score_cross_fitted(validation))
    return CellRecord(
        recipe=run.recipe(),
        source=source,
        validation=validation_metrics(run),
        samples=plain.samples,
        classes=plain.classes,
        level=plain.level,
        temperature=scaling.temperature,
        temperature_state=str(scaling.state),
        plain=_outcome(plain),
        scaled=_outcome(scaled),
        in_domain=in_domain,
        in_domain_scaled=in_domain_scaled,
    )


def _outcome(scores: Scores) -> Outcome:
    return Outcome(
        estimates=scores.estimates,
        misclassification=scores.misclassification.estimates,
        ood={name: ranking.estimates for name, ranking in scores.ood.items()},
        groups=[_shortened(group) for group in scores.groups],
        top_label=scores.top_label,
    )


def _shortened(group: GroupScores) -> GroupScores:
    kept = {str(key): group.estimates[key] for key in MEASURED_OF_GROUPS if key in group.estimates}
    return replace(group, estimates=kept, simultaneous={})
