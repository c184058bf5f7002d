"""Selective prediction: where to set the threshold so that what is accepted is right often enough."""

from dataclasses import dataclass

from counterpoise._choices import DEFAULT_RISK as DEFAULT_RISK
from counterpoise.functional.intervals import DEFAULT_LEVEL, wilson_interval
from counterpoise.metrics.scores import RankingScores


@dataclass(frozen=True)
class OperatingPoint:
    """Accepting every prediction whose score is at least `threshold`.

    Attributes:
        threshold: of the confidence score.
        coverage: share of the samples that are accepted.
        risk: share of wrong ones among these.
        low: lower limit of the risk.
        high: upper limit (Wilson; it takes the threshold as given, though it was chosen on the same samples).
    """

    threshold: float
    coverage: float
    risk: float
    low: float
    high: float


def operating_point(
    ranking: RankingScores, *, risk: float = DEFAULT_RISK, level: float = DEFAULT_LEVEL
) -> OperatingPoint | None:
    """The point of the risk-coverage curve that accepts most at no more than `risk`; None where none does.

    The curve is thinned, so a slightly larger coverage may be possible.
    """
    if not 0 <= risk <= 1:
        raise ValueError(f"risk must lie between 0 and 1, got {risk}")
    curves = ranking.curves
    reached = [index for index, value in enumerate(curves["risk"]) if value <= risk]
    if not reached:
        return None
    chosen = max(reached, key=lambda index: curves["coverage"][index])
    coverage, measured = curves["coverage"][chosen], curves["risk"][chosen]
    accepted = coverage * (ranking.positives + ranking.negatives)
    interval = wilson_interval(measured * accepted, accepted, level=level)
    return OperatingPoint(curves["threshold"][chosen], coverage, measured, *interval)
