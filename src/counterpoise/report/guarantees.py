"""Prediction sets and the threshold that promises a risk: what was promised, and what other samples then showed."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import torch

from counterpoise._text import listed
from counterpoise.functional.conformal import conformal_rank
from counterpoise.functional.proportions import clopper_pearson
from counterpoise.metrics.estimates import percent
from counterpoise.metrics.scores import CoverageTable, GuaranteeTrial, Scores
from counterpoise.metrics.slices import simultaneous_level
from counterpoise.report.data import class_name, is_slice, slice_name, threshold_text
from counterpoise.report.tables import Cell, Table

_EACH = 12
"""Sizes that are shown one by one; larger ones in ranges that double."""
_NAMED = 3
"""Classes or groups that a sentence names."""


@dataclass(frozen=True)
class Coverage:
    """How often the sets of some samples hold the label, with an interval, and how many labels they have.

    Attributes:
        name: of the samples.
        samples: their number.
        share: of the sets that hold the label.
        low: lower limit of the share, which holds for all rows of a table together (Clopper and Pearson).
        high: upper limit.
        size: labels a set, on average.
    """

    name: str
    samples: int
    share: float
    low: float
    high: float
    size: float


def overall_coverage(tried: GuaranteeTrial, *, level: float) -> Coverage:
    """Of all samples."""
    every = tried.by_class
    whole = CoverageTable([sum(every.samples)], [sum(every.held)], [sum(every.labels)])
    (found,) = _coverages(whole, lambda _: "all", level=level)
    return found


def class_coverage(scores: Scores) -> list[Coverage]:
    """Of each class that has samples: those first whose sets surely miss the label most often."""
    tried = scores.guarantees
    return [] if tried is None else _worst_first(tried.by_class, lambda place: class_name(scores, place), scores.level)


def group_coverage(scores: Scores) -> list[Coverage]:
    """The same of each group that severities do not tell apart."""
    tried = scores.guarantees
    if tried is None:
        return []
    slices = [place for place, group in enumerate(scores.groups) if is_slice(group)]
    columns = (tried.by_group.samples, tried.by_group.held, tried.by_group.labels)
    table = CoverageTable(*([column[place] for place in slices] for column in columns))
    return _worst_first(table, lambda place: slice_name(scores.groups[slices[place]]), scores.level)


def coverage_table(title: str, rows: Sequence[Coverage], *, limit: float, most: int | None = None) -> Table:
    """Marks the rows whose share is surely below the limit."""
    cells = [
        (
            Cell(row.name),
            Cell(f"{row.samples:,}"),
            Cell(f"{row.share:.1%} ({row.low:.1%} to {row.high:.1%})", worse=row.high < limit),
            Cell(f"{row.size:.2f}"),
        )
        for row in rows[:most]
    ]
    return Table(title, ("", "samples", "sets that hold the label", "labels a set"), tuple(cells))


def coverage_tables(scores: Scores, *, most: int | None = None) -> list[Table]:
    """Coverage by class and by group."""
    tried = scores.guarantees
    if tried is None:
        return []
    found = {"Sets by class": class_coverage(scores), "Sets by group": group_coverage(scores)}
    limit = _limit(tried, overall_coverage(tried, level=scores.level))
    return [coverage_table(title, rows, limit=limit, most=most) for title, rows in found.items() if rows]


def size_shares(tried: GuaranteeTrial, *, largest: int) -> dict[str, float]:
    """Which share of the sets has 0 labels, 1, 2 and so on up to `largest`; many in ranges.

    >>> none = CoverageTable([], [], [])
    >>> tried = GuaranteeTrial(0.1, 5, 5, [0, 4, 1], none, none, 0.05, 0.1, 0.9, 3, 0)
    >>> size_shares(tried, largest=3), list(size_shares(tried, largest=20))
    ({'0': 0.0, '1': 0.8, '2': 0.2, '3': 0.0}, ['0', '1', '2', '3-4', '5-8', '9-16', '17-20'])
    """
    ranges = [(size, size) for size in range(min(largest, _EACH if largest <= _EACH else 2) + 1)]
    while (first := ranges[-1][1] + 1) <= largest:
        ranges.append((first, min(2 * (first - 1), largest)))
    return {
        str(low) if low == high else f"{low}-{high}": sum(tried.sizes[low : high + 1]) / tried.measured_on
        for low, high in ranges
    }


def sets_sentence(scores: Scores) -> str:
    """What was promised of prediction sets, what they did, and for which samples less."""
    tried = scores.guarantees
    if tried is None:
        return ""
    whole = overall_coverage(tried, level=scores.level)
    low, high = _law_of_chance(tried, level=scores.level)
    said = (
        f"Sets for {percent(1 - tried.alpha)}, fitted on {tried.fitted_on:,} samples, hold the label of "
        f"{whole.share:.1%} of {whole.samples:,} others (by chance, between about {low:.1%} and {high:.1%}), and have "
        f"{whole.size:.2f} labels on average."
    )
    limit = _limit(tried, whole)
    few = [row.name for row in (*class_coverage(scores), *group_coverage(scores)) if row.high < limit]
    if few:
        more = [f"{len(few) - _NAMED:,} more"] if len(few) > _NAMED else []
        said += (
            f" They promise it of all samples together, and hold the label of {listed([*few[:_NAMED], *more])} less "
            "often, beyond chance; ConformalSets.fit promises it by_class, or of each of its slices."
        )
    return said


def threshold_sentence(scores: Scores) -> str:
    """The risk that a threshold promises, and the one that was seen."""
    tried = scores.guarantees
    if tried is None:
        return ""
    promised = (
        f"with probability {percent(1 - tried.delta)}, at most {100 * tried.risk:g}% of what is accepted is wrong"
    )
    if math.isinf(tried.threshold):
        return f"No threshold can promise that, {promised}: {tried.fitted_on:,} samples do not show it."
    said = (
        f"From a confidence of {threshold_text(tried.threshold)} on, {promised}: that is a promise, made by "
        f"{tried.fitted_on:,} samples. Of {tried.measured_on:,} others it accepts "
        f"{tried.accepted / tried.measured_on:.1%}"
    )
    if not tried.accepted:
        return f"{said}."
    ((low, high),) = _limits((tried.errors,), (tried.accepted,), level=scores.level)
    return f"{said}, of which {tried.errors / tried.accepted:.1%} are wrong ({low:.1%} to {high:.1%})."


def _law_of_chance(tried: GuaranteeTrial, *, level: float) -> tuple[float, float]:
    """Where the share of sets that hold the label lies if all is as promised: the beta-binomial law, as a normal one.

    Of n samples that sets are fitted on, the k-th smallest score is the threshold: the probability that a set holds the
    label is then distributed as Beta(k, n + 1 - k).
    """
    n, m = tried.fitted_on, tried.measured_on
    k = min(conformal_rank(n, tried.alpha), n + 1)
    mean = k / (n + 1)
    deviation = math.sqrt(mean * (1 - mean) * (n + 1 + m) / (m * (n + 2)))
    reach = NormalDist().inv_cdf((1 + level) / 2) * deviation
    return max(0.0, mean - reach), min(1.0, mean + reach)


def _limit(tried: GuaranteeTrial, whole: Coverage) -> float:
    """Below it, sets of a class or group hold the label less often than was promised, and than those of all samples."""
    return min(1 - tried.alpha, whole.low)


def _worst_first(table: CoverageTable, name: Callable[[int], str], level: float) -> list[Coverage]:
    found = _coverages(table, name, level=simultaneous_level(sum(map(bool, table.samples)), level=level))
    return sorted(found, key=lambda row: (row.high, row.share))


def _coverages(table: CoverageTable, name: Callable[[int], str], *, level: float) -> Iterator[Coverage]:
    """Of all kinds that have samples."""
    there = [place for place, samples in enumerate(table.samples) if samples]
    samples, held, labels = (
        tuple(column[place] for place in there) for column in (table.samples, table.held, table.labels)
    )
    for place, n, hits, total, (low, high) in zip(
        there, samples, held, labels, _limits(held, samples, level=level), strict=True
    ):
        yield Coverage(name(place), n, hits / n, low, high, total / n)


@lru_cache(maxsize=64)
def _limits(hits: tuple[int, ...], trials: tuple[int, ...], *, level: float) -> list[tuple[float, float]]:
    """Kept, because tables and sentences of a page ask for the same ones."""
    if not trials:
        return []
    found = clopper_pearson(torch.tensor(hits), torch.tensor(trials), error=(1 - level) / 2)
    return list(zip(found.low.tolist(), found.high.tolist(), strict=True))
