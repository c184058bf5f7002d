"""Names of the package's own metrics, in one place, and the type of an estimate."""

import math
from dataclasses import dataclass
from enum import StrEnum

from counterpoise.functional.intervals import Interval


class Key(StrEnum):
    """The key of one of the package's own metrics wherever it is kept, printed or looked up."""

    ACCURACY = "accuracy"
    NLL = "nll"
    BRIER = "brier"
    BRIER_CALIBRATION = "brier_calibration"
    BRIER_REFINEMENT = "brier_refinement"
    MEAN_GAP = "mean_gap"
    DEBIASED_ECE = "debiased_ece"
    ECE = "ece"
    EQUAL_MASS_ECE = "equal_mass_ece"
    SMOOTH_ECE = "smooth_ece"
    MCE = "mce"
    CLASSWISE_ECE = "classwise_ece"
    POSITIVE_ECE = "positive_ece"
    AUROC = "auroc"
    AUPR_POSITIVE = "aupr_positive"
    AUPR_NEGATIVE = "aupr_negative"
    FPR_AT_TPR95 = "fpr_at_tpr95"
    MINIMUM_DETECTION_ERROR = "minimum_detection_error"
    DETECTION_ERROR_AT_TPR95 = "detection_error_at_tpr95"
    AURC = "aurc"
    EXCESS_AURC = "excess_aurc"


@dataclass(frozen=True)
class MetricInfo:
    """How a metric is shown, and which direction is better.

    Attributes:
        title: its name in tables and figures.
        scale: that values are multiplied by where they are shown.
        unit: that follows them there.
        higher_is_better: None where neither direction is.
    """

    title: str
    scale: float
    unit: str
    higher_is_better: bool | None

    def __post_init__(self) -> None:
        if not self.title.strip():
            raise ValueError("a metric needs a title")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale must be positive, got {self.scale}")


KEY_INFO: dict[str, MetricInfo] = {
    Key.ACCURACY: MetricInfo("Accuracy", 100, "%", True),
    Key.NLL: MetricInfo("NLL", 1, "nats", False),
    Key.BRIER: MetricInfo("Brier score", 1, "", False),
    Key.BRIER_CALIBRATION: MetricInfo("  calibration part", 1, "", False),
    Key.BRIER_REFINEMENT: MetricInfo("  refinement part", 1, "", False),
    Key.MEAN_GAP: MetricInfo("Overconfidence", 100, "points", None),
    Key.DEBIASED_ECE: MetricInfo("ECE, debiased", 100, "%", False),
    Key.ECE: MetricInfo("ECE", 100, "%", False),
    Key.EQUAL_MASS_ECE: MetricInfo("ECE, equal-mass bins", 100, "%", False),
    Key.SMOOTH_ECE: MetricInfo("ECE, smooth", 100, "%", False),
    Key.MCE: MetricInfo("Maximum calibration error", 100, "%", False),
    Key.CLASSWISE_ECE: MetricInfo("Classwise ECE", 1000, "e-3", False),
    Key.POSITIVE_ECE: MetricInfo("ECE of the positive class", 100, "%", False),
    Key.AUROC: MetricInfo("AUROC", 100, "%", True),
    Key.AUPR_POSITIVE: MetricInfo("AUPR, positives", 100, "%", True),
    Key.AUPR_NEGATIVE: MetricInfo("AUPR, negatives", 100, "%", True),
    Key.FPR_AT_TPR95: MetricInfo("FPR at 95% TPR", 100, "%", False),
    Key.MINIMUM_DETECTION_ERROR: MetricInfo("Detection error, minimum", 100, "%", False),
    Key.DETECTION_ERROR_AT_TPR95: MetricInfo("Detection error at 95% TPR", 100, "%", False),
    Key.AURC: MetricInfo("AURC", 1000, "e-3", False),
    Key.EXCESS_AURC: MetricInfo("Excess AURC", 1000, "e-3", False),
}


KEY_METRICS = (
    Key.ACCURACY,
    Key.NLL,
    Key.BRIER,
    Key.MEAN_GAP,
    Key.DEBIASED_ECE,
    Key.ECE,
    Key.POSITIVE_ECE,
    Key.AUROC,
    Key.FPR_AT_TPR95,
    Key.AURC,
)
"""What is shown where there is no room for every metric."""


@dataclass(frozen=True)
class Estimate:
    """The value of a metric and how far it can be trusted.

    Attributes:
        value: of the metric on these samples; NaN where it is not defined (no errors to detect, for example).
        low: lower limit of the interval of the population value.
        high: upper limit. For plug-in calibration errors the value itself may lie above it: it is biased, the interval
            is not.
        floor: what a perfectly calibrated model with these confidences would show on average, where that is not 0.
        error_bound: largest possible difference to the exact value, where the metric was streamed through a histogram.
    """

    value: float
    low: float
    high: float
    floor: float | None = None
    error_bound: float | None = None

    def __str__(self) -> str:
        interval = f" ({self.low:.4g} to {self.high:.4g})"
        if math.isnan(self.low) or math.isinf(self.value):
            interval = ""
        return f"{self.value:.4g}{interval}"

    @classmethod
    def of(
        cls, value: float, interval: Interval, *, floor: float | None = None, error_bound: float | None = None
    ) -> "Estimate":
        """An estimate from its value and interval."""
        return cls(float(value), float(interval.low), float(interval.high), floor, error_bound)


UNDEFINED = Interval(math.nan, math.nan)


def percent(level: float) -> str:
    """A nominal coverage as it is shown.

    >>> percent(0.95), percent(0.999)
    ('95%', '99.9%')
    """
    return f"{100 * level:g}%"
