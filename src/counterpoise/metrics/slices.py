"""Which groups of samples are surely worse than the rest.

Of many slices, the one that looks worst is worst by chance too. So their intervals hold for all of them together: of S
slices, each interval has the level `1 - (1 - level) / S` (Bonferroni), whatever slices have to do with each other.
Accuracy's are Clopper and Pearson's. There are none of NLL and Brier score: at such levels, means of a few skewed
values have no interval that holds.
"""

import math

from counterpoise.metrics.estimates import Estimate, Key, MetricInfo
from counterpoise.metrics.scores import GroupScores, Scores

WORST_SLICES = 10


def simultaneous_level(slices: int, *, level: float) -> float:
    """Coverage of each of several intervals that all hold together with probability `level`.

    >>> round(simultaneous_level(5, level=0.95), 4)
    0.99
    """
    return 1 - (1 - level) / max(1, slices)


def worst_slices(scores: Scores, metric: str = Key.ACCURACY, *, most: int = WORST_SLICES) -> list[GroupScores]:
    """The groups that are surely bad first: ordered by the better end of their simultaneous interval, then by value.

    A slice of three samples that are all wrong is not worse than one of a thousand of which half are: it may be fine.

    Args:
        scores: of samples that have groups.
        metric: key of one that groups have.
        most: number of groups.

    >>> import counterpoise
    >>> by = {"region": ["north"] * 200 + ["south"] * 200}
    >>> scores = counterpoise.evaluate(probabilities=[[0.8, 0.2]] * 400, labels=[0] * 300 + [1] * 100, by=by)
    >>> [slice.columns["region"] for slice in worst_slices(scores)]
    ['south', 'north']
    """
    having = [group for group in scores.groups if metric in group.simultaneous]
    if scores.groups and not having:
        known = ", ".join(scores.groups[0].simultaneous)
        raise ValueError(f"groups have no metric {metric!r} with simultaneous intervals; they have {known}")
    info = scores.info_of(metric) if having else None
    return sorted(having, key=lambda group: _badness(group.simultaneous[metric], info), reverse=True)[:most]


def _badness(estimate: Estimate, info: MetricInfo | None) -> tuple[float, float]:
    """How bad it is at least, and how bad it looks; what is not defined comes last."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if math.isnan(value) or math.isnan(low):
        return -math.inf, -math.inf
    if info is None or info.higher_is_better is None:
        return max(low, -high, 0.0), abs(value)
    return (-high, -value) if info.higher_is_better else (low, value)


def against_whole(scores: Scores, group: GroupScores, metric: str) -> int:
    """1 where a group is better than all samples beyond chance, -1 where it is worse, 0 where neither is known."""
    better, own, whole = scores.info_of(metric).higher_is_better, group.simultaneous.get(metric), scores.get(metric)
    if better is None or own is None or whole is None:
        return 0
    above, below = own.low > whole.high, own.high < whole.low
    return (int(above) - int(below)) * (1 if better else -1)
