"""How a model stands: alarms, and a line for each window, from counts alone."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import torch

from counterpoise._choices import EVERY, Every
from counterpoise.functional.intervals import DEFAULT_LEVEL, mean_interval, normal_quantile, wilson_interval
from counterpoise.monitoring.counts import Counts, cell_values
from counterpoise.monitoring.evidence import (
    LABELLED,
    PARTS,
    Bounds,
    Fortunes,
    Part,
    Tallies,
    alarm_threshold,
    bounds_of,
    log_products,
    question,
)
from counterpoise.monitoring.store import Reference
from counterpoise.monitoring.windows import coarser, shown_start

Outcome = Literal["fine", "alarm", "nothing"]
_BINS = 20
_AT_A_TIME, _CLASSES_AT_A_TIME = 64, 200_000
"""Windows whose bets are placed at a time, unless these are windows of so many classes together."""
_DECIMALS = 9


@dataclass(frozen=True)
class Measured:
    """A value, and the limits of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Alarm:
    """What the evidence says of one part.

    Attributes:
        part: accuracy, calibration, classes or confidence.
        raised: whether the evidence has reached the threshold.
        samples: that it rests on; nothing is judged where there are none.
        log10_evidence: decimal logarithm of the e-process now.
        highest: of it at the end of any window, as the counts are now.
        highest_in: that window.
        about: of one that is raised, the question with most evidence.
        since: of one that is raised, the window in which it began most likely.
    """

    part: Part
    raised: bool
    samples: int
    log10_evidence: float
    highest: float
    highest_in: str
    about: str | None
    since: str | None


@dataclass(frozen=True)
class Line:
    """One window, or several of them.

    Attributes:
        start: of it, ISO 8601.
        predictions: in it.
        labelled: those with a label.
        accuracy: of the labelled ones.
        estimated_accuracy: of all, from their confidences and the reference.
        mean_confidence: of all.
        log10_evidence: at its end, of each part.
    """

    start: str
    predictions: int
    labelled: int
    accuracy: Measured | None
    estimated_accuracy: Measured
    mean_confidence: Measured
    log10_evidence: dict[str, float]


@dataclass(frozen=True)
class Standing:
    """How a model stands.

    Attributes:
        outcome: fine, alarm, or that there is nothing to judge yet.
        level: probability that nothing ever alarms falsely.
        threshold: decimal logarithm of the evidence that is an alarm.
        interval_level: coverage of each line's intervals, one by one.
        every: length of the windows that bets are placed in.
        shown: length of those that are shown.
        reference: what it is held against; its accuracy is known.
        alarms: one for each part that can be judged.
        lines: windows with predictions, in their order.
    """

    outcome: Outcome
    level: float
    threshold: float
    interval_level: float
    every: Every
    shown: Every
    reference: Line
    alarms: tuple[Alarm, ...]
    lines: tuple[Line, ...]

    @property
    def predictions(self) -> int:
        return sum(line.predictions for line in self.lines)

    @property
    def labelled(self) -> int:
        return sum(line.labelled for line in self.lines)


def judged(reference: Reference, windows: Iterable[tuple[int, Counts]], *, shown: Every | None = None) -> Standing:
    """Hold windows, in their order, against a reference.

    Args:
        reference: what the monitor began with.
        windows: number and counts of each.
        shown: length of the windows that are shown, not shorter than the monitor's.
    """
    shown = shown or reference.every
    require_coarser(reference.every, shown)
    by_confidence = Accuracies.of(reference.counts)
    bounds = bounds_of(
        _tallies([reference.counts], squeezed=True), torch.from_numpy(cell_values()), level=reference.level
    )
    table, lines = _Evidence(), list[Line]()
    group: tuple[int, Counts] | None = None
    evidence: dict[Part, float] = {}
    seen = Counts.zeros(reference.classes)
    for (window, counts), after in _followed(reference, windows, bounds, table):
        place = coarser(window, reference.every, shown=shown)
        if group is not None and group[0] != place:
            lines.append(_line(*group, shown, by_confidence, evidence))
            group = None
        group = (place, counts) if group is None else (place, group[1] + counts)
        evidence, seen = after, seen + counts
    if group is not None:
        lines.append(_line(*group, shown, by_confidence, evidence))
    threshold = round(math.log10(alarm_threshold(reference.level)), _DECIMALS)
    alarms = tuple(table.alarm(part, reference, seen, threshold) for part in PARTS if part in table.fortunes)
    raised = any(alarm.raised for alarm in alarms)
    return Standing(
        outcome="alarm" if raised else "fine" if lines else "nothing",
        level=reference.level,
        threshold=threshold,
        interval_level=DEFAULT_LEVEL,
        every=reference.every,
        shown=shown,
        reference=_line(reference.first, reference.counts, reference.every, by_confidence, {}),
        alarms=alarms,
        lines=tuple(lines),
    )


def require_coarser(every: Every, shown: Every) -> None:
    """Refuse windows that counts cannot be split into."""
    if EVERY.index(shown) < EVERY.index(every):
        raise ValueError(f"the monitor counts by the {every}, and cannot show every {shown}")


@dataclass(frozen=True)
class Accuracies:
    """Accuracy by confidence, of a reference, in bins of about as many labelled samples each.

    Attributes:
        bin_of: of each cell, `[CELLS]`.
        labelled: in each bin.
        hits: in each bin.
    """

    bin_of: np.ndarray[tuple[int], np.dtype[np.int64]]
    labelled: np.ndarray[tuple[int], np.dtype[np.int64]]
    hits: np.ndarray[tuple[int], np.dtype[np.int64]]

    @classmethod
    def of(cls, reference: Counts) -> "Accuracies":
        seen = reference.hits + reference.misses
        before = np.cumsum(seen) - seen
        places = np.minimum(before * _BINS // max(1, int(seen.sum())), _BINS - 1)
        occupied = np.unique(places[seen > 0])
        # A bin that one full cell leaves without samples goes to its neighbour.
        bin_of = np.maximum(np.searchsorted(occupied, places, side="right") - 1, 0).astype(np.int64)
        sums = [np.bincount(bin_of, counts, len(occupied)).astype(np.int64) for counts in (seen, reference.hits)]
        return cls(bin_of, *sums)

    def estimate(self, counts: Counts) -> Measured:
        """Accuracy of predictions whose labels nobody knows, if it hangs on the confidence as in the reference.

        The sum over bins of the share of predictions now, times the accuracy in the reference. The normal interval
        takes both samples into account; in it, accuracies are shrunk by Laplace's rule, because 100% has no variance.
        """
        samples = counts.samples
        share = np.bincount(self.bin_of, counts.predictions, len(self.hits)) / samples
        accuracy, smooth = self.hits / self.labelled, (self.hits + 1) / (self.labelled + 2)
        value = float(share @ accuracy)
        spread = share @ smooth**2 - (share @ smooth) ** 2
        variance = float(share**2 @ (smooth * (1 - smooth) / self.labelled)) + max(0.0, float(spread)) / samples
        half = normal_quantile(DEFAULT_LEVEL) * math.sqrt(variance)
        return _rounded(value, max(0.0, value - half), min(1.0, value + half))


class _Evidence:
    """The fortunes of all parts, and the highest that each has been."""

    def __init__(self) -> None:
        self.fortunes: dict[Part, Fortunes] = {}
        self.highest: dict[Part, tuple[float, int]] = {}

    def pass_window(self, index: int, products: dict[Part, torch.Tensor]) -> dict[Part, float]:
        found = {}
        for part, product in products.items():
            fortunes = self.fortunes.setdefault(part, Fortunes.none(tuple(product.shape)))
            fortunes.pass_window(index, product)
            found[part] = round(float(fortunes.log_evidence()) / math.log(10), 6)
            if found[part] > self.highest.get(part, (-math.inf, 0))[0]:
                self.highest[part] = found[part], index
        return found

    def alarm(self, part: Part, reference: Reference, seen: Counts, threshold: float) -> Alarm:
        fortunes = self.fortunes[part]
        value = round(float(fortunes.log_evidence()) / math.log(10), 6)
        raised, (asked, since) = value >= threshold, fortunes.leading()
        names = reference.class_names or tuple(f"class {index}" for index in range(reference.classes))
        highest, place = self.highest[part]

        def window(index: int) -> str:
            return shown_start(reference.first + index, reference.every)

        return Alarm(
            part=part,
            raised=raised,
            samples=seen.labelled if part in LABELLED else seen.samples,
            log10_evidence=value,
            highest=highest,
            highest_in=window(place),
            about=question(part, asked, class_names=names) if raised else None,
            since=window(since) if raised else None,
        )


def _followed(
    reference: Reference, windows: Iterable[tuple[int, Counts]], bounds: Bounds, table: _Evidence
) -> Iterator[tuple[tuple[int, Counts], dict[Part, float]]]:
    """Each window, with the evidence after it."""
    remaining = iter(windows)
    size = max(1, min(_AT_A_TIME, _CLASSES_AT_A_TIME // max(1, reference.classes)))
    while block := list(islice(remaining, size)):
        products = log_products(_tallies([counts for _, counts in block]), bounds)
        for row, each in enumerate(block):
            after = table.pass_window(each[0] - reference.first, {part: logs[row] for part, logs in products.items()})
            yield each, after


def _tallies(counts: list[Counts], *, squeezed: bool = False) -> Tallies:
    columns = ([getattr(each, name) for each in counts] for name in ("classes", "predictions", "hits", "misses"))
    tensors = (torch.from_numpy(np.stack(column)).double() for column in columns)
    return Tallies(*(tensor.squeeze(0) if squeezed else tensor for tensor in tensors))


def _line(window: int, counts: Counts, every: Every, by_confidence: Accuracies, evidence: dict[Part, float]) -> Line:
    labelled, hits = counts.labelled, int(counts.hits.sum())
    return Line(
        start=shown_start(window, every),
        predictions=counts.samples,
        labelled=labelled,
        accuracy=None if not labelled else _rounded(hits / labelled, *wilson_interval(hits, labelled)),
        estimated_accuracy=by_confidence.estimate(counts),
        mean_confidence=_mean_confidence(counts),
        log10_evidence={str(part): value for part, value in evidence.items()},
    )


def _mean_confidence(counts: Counts) -> Measured:
    values, seen = cell_values(), counts.predictions
    total, squares, cubes = (float(seen @ values**power) for power in (1, 2, 3))
    low, high = mean_interval(total, squares, cubes, counts.samples) if counts.samples > 1 else (0.0, 1.0)
    return _rounded(total / counts.samples, max(0.0, low), min(1.0, high))


def _rounded(value: float, low: float, high: float) -> Measured:
    return Measured(*(round(each, _DECIMALS) for each in (value, low, high)))
