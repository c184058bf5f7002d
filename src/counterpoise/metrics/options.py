"""What is computed from predictions: one value that travels wherever scores are made."""

from dataclasses import dataclass

from counterpoise._choices import require_count as require_count
from counterpoise._choices import require_level as require_level
from counterpoise._choices import require_score as require_score
from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics.estimates import KEY_INFO
from counterpoise.metrics.protocol import Metric, require_metric

JACKKNIFE_GROUPS = 100


@dataclass(frozen=True)
class ScoreOptions:
    """Which scores are made of some predictions, and how.

    Attributes:
        score: confidence score for misclassification and OOD detection (see `counterpoise.functional.confidence`).
        bins: number of calibration bins.
        level: nominal coverage of the intervals.
        metrics: in addition to the standard ones.
        paired: keep sums by jackknife group too, so that models can be compared on the same samples.
        clustered: samples with the same id depend on each other, as the labels of a multilabel problem do: intervals
            are those of the delete-a-group jackknife over ids.
        exact_samples: up to how many samples ranks are exact; beyond, they come from a fine histogram with a stated
            error bound. None for any number.

    >>> ScoreOptions(bins=0)
    Traceback (most recent call last):
    ValueError: bins must be a whole number of at least 1, got 0
    """

    score: str = "max_softmax"
    bins: int = DEFAULT_BINS
    level: float = DEFAULT_LEVEL
    metrics: tuple[Metric, ...] = ()
    paired: bool = False
    clustered: bool = False
    exact_samples: int | None = None

    def __post_init__(self) -> None:
        require_score(self.score)
        require_count(self.bins, "bins")
        require_level(self.level)
        if self.exact_samples is not None:
            require_count(self.exact_samples, "exact_samples")
        taken = set(KEY_INFO)
        for metric in self.metrics:
            require_metric(metric)
            if clash := taken.intersection(metric.info):
                raise ValueError(f"{metric!r} has the name of another metric: {', '.join(sorted(clash))}; rename it")
            taken.update(metric.info)

    @property
    def groups(self) -> int:
        """Jackknife groups that sums are kept for."""
        return JACKKNIFE_GROUPS if self.paired or self.clustered else 1
