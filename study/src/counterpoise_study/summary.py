"""Statistics over seeds: means with their intervals, and what paired differences allow to call best.

A seed decides which images are held out, and for methods that train one run also their order and augmentation. So
methods are compared seed by seed; overlap of two intervals is not a test.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from scipy.special import stdtrit

from counterpoise.functional.intervals import DEFAULT_LEVEL

_SAME = 1e-9
"""Differences that agree so closely, relative to the values, differ by rounding alone."""


@dataclass(frozen=True)
class Summary:
    """Values over seeds.

    Attributes:
        count: values that are defined.
        mean: of these; NaN where there are none.
        deviation: standard deviation, by n - 1; NaN of fewer than two.
        low: lower limit of the t interval of the mean; NaN of fewer than two.
        high: upper limit.
    """

    count: int
    mean: float
    deviation: float = math.nan
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Marks:
    """The rows that are best and second best, as far as that can be told."""

    best: int | None = None
    second: int | None = None


@cache
def student_quantile(level: float, degrees: int) -> float:
    """Central quantile of Student's t, exact for any degrees of freedom.

    >>> round(student_quantile(0.95, 2), 4)
    4.3027
    """
    return float(stdtrit(degrees, 0.5 + level / 2))


def mean(values: Sequence[float]) -> float:
    """Of one or more."""
    return math.fsum(values) / len(values)


def summarise(values: Sequence[float], *, level: float = DEFAULT_LEVEL) -> Summary:
    """Mean, standard deviation and t interval; values that are NaN do not count.

    >>> found = summarise([1.0, 2.0, 3.0])
    >>> found.mean, found.deviation, round(found.high, 3)
    (2.0, 1.0, 4.484)
    """
    defined = [value for value in values if not math.isnan(value)]
    if len(defined) < 2:
        return Summary(len(defined), defined[0] if defined else math.nan)
    centre = mean(defined)
    deviation = math.sqrt(math.fsum((value - centre) ** 2 for value in defined) / (len(defined) - 1))
    half = student_quantile(level, len(defined) - 1) * deviation / math.sqrt(len(defined))
    return Summary(len(defined), centre, deviation, centre - half, centre + half)


def paired_difference(first: Sequence[float], second: Sequence[float], *, level: float = DEFAULT_LEVEL) -> Summary:
    """Second minus first over the seeds that both are defined for.

    Differences that are all the same show no chance to measure them by (metrics of few images are coarse): they have
    no interval.
    """
    found = summarise([after - before for before, after in zip(first, second, strict=True)], level=level)
    largest = max((abs(value) for value in (*first, *second) if not math.isnan(value)), default=0.0)
    return replace(found, low=math.nan, high=math.nan) if found.deviation <= _SAME * largest else found


def adjusted_level(rows: int) -> float:
    """Level of each comparison, so that naming a best of so many errs as seldom as one comparison (Bonferroni).

    >>> adjusted_level(2), adjusted_level(6)
    (0.95, 0.99)
    """
    return 1 - (1 - DEFAULT_LEVEL) / max(1, rows - 1)


def marks(rows: Sequence[Sequence[float]], *, higher_is_better: bool | None) -> Marks:
    """Which of some rows `[M][seeds]` is best and second best; NaN stands for a missing value.

    A row is best if its paired difference to every other is beyond chance. The second best is so against all but the
    best. Rows without any value do not take part; two others that share fewer than two seeds cannot be told apart.
    """
    compared = [index for index, row in enumerate(rows) if not all(math.isnan(value) for value in row)]
    if higher_is_better is None:
        return Marks()
    level = adjusted_level(len(compared))

    def leader(indices: Sequence[int]) -> int | None:
        """The one that is better than all others, if there are others."""
        for index in indices:
            others = [other for other in indices if other != index]
            if others and all(
                _is_better(rows[index], rows[other], higher_is_better=higher_is_better, level=level) for other in others
            ):
                return index
        return None

    best = leader(compared)
    return Marks(best, None if best is None else leader([index for index in compared if index != best]))


def _is_better(row: Sequence[float], other: Sequence[float], *, higher_is_better: bool, level: float) -> bool:
    difference = paired_difference(other, row, level=level)
    return difference.low > 0 if higher_is_better else difference.high < 0
