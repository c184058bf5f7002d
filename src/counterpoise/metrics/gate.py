"""Requirements that a model must meet, and whether what was measured says that it does, does not, or cannot tell.

A requirement is about the population that samples were drawn from. It is met where the whole interval of the metric, or
of the difference from a base, is on the right side of the limit; it is missed where all of it is on the wrong side.
Each of m requirements has a one-sided error of `(1 - level) / m`, so that all verdicts together are right with
probability `level`, whatever the metrics have to do with each other (Bonferroni).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from counterpoise.functional.intervals import normal_quantile, proportion_interval
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key, MetricInfo

Outcome = Literal["met", "missed", "undecided"]

BASE = "base"
_RULE = re.compile(
    r"\s*(?P<metric>[A-Za-z_]\w*)\s*(?P<sign><=|>=)\s*"
    r"(?:(?P<base>base)\s*(?:(?P<direction>[+-])\s*(?P<margin>[0-9.eE+-]+))?|(?P<limit>[0-9.eE+-]+))\s*"
)
_LARGEST_MEAN = 20.0
"""In standard errors: a distance that any sample would show."""

_GRAMMAR = "such as `ece <= 0.05`, `nll <= base` or `accuracy >= base - 0.005`"


@dataclass(frozen=True)
class Requirement:
    """A limit of a metric, or of its difference from a base.

    Attributes:
        metric: key of it.
        at_most: whether the limit is an upper one.
        limit: of the metric, or of the model's value minus the base's.
        relative: whether it is of the difference.

    >>> Requirement.parsed("accuracy >= base - 0.005")
    Requirement(metric='accuracy', at_most=False, limit=-0.005, relative=True)
    """

    metric: str
    at_most: bool
    limit: float
    relative: bool = False

    @classmethod
    def parsed(cls, text: str) -> "Requirement":
        """Read `METRIC <= LIMIT` or `METRIC >= LIMIT`, where LIMIT is a number, `base`, or `base` plus or minus one."""
        found = _RULE.fullmatch(text)
        if found is None:
            raise ValueError(f"requirement {text!r} is not understood; write one {_GRAMMAR}")
        written = found["limit"] or found["margin"] or "0"
        try:
            limit = float(written)
        except ValueError:
            raise ValueError(f"requirement {text!r}: {written!r} is no number; write one {_GRAMMAR}") from None
        if not math.isfinite(limit):
            raise ValueError(f"requirement {text!r}: the limit must be finite")
        signed = -limit if found["direction"] == "-" else limit
        return cls(found["metric"], found["sign"] == "<=", signed, relative=found["base"] is not None)

    def __str__(self) -> str:
        margin = f" {'-' if self.limit < 0 else '+'} {abs(self.limit):g}" if self.limit else ""
        limit = f"{BASE}{margin}" if self.relative else f"{self.limit:g}"
        return f"{self.metric} {'<=' if self.at_most else '>='} {limit}"


@dataclass(frozen=True)
class Verdict:
    """What was measured says of one requirement.

    Attributes:
        requirement: of which.
        outcome: met, missed, or undecided.
        estimate: of the metric or of the difference, with the interval that decided.
        paired: whether a difference is of the same samples.
        samples: that were measured.
        more_samples: with which there is an even chance that it is decided; None where it is, or too near to say.
    """

    requirement: Requirement
    outcome: Outcome
    estimate: Estimate
    paired: bool
    samples: int
    more_samples: int | None = None


@dataclass(frozen=True)
class Decision:
    """All requirements of a model.

    Attributes:
        model: name of it.
        base: name of what it is held against, or None.
        level: probability that all verdicts are right.
        verdicts: one for each requirement.
    """

    model: str
    base: str | None
    level: float
    verdicts: tuple[Verdict, ...]

    @property
    def outcome(self) -> Outcome:
        """Missed where any requirement is, else undecided where any is, else met."""
        outcomes = {verdict.outcome for verdict in self.verdicts}
        return "missed" if "missed" in outcomes else "undecided" if "undecided" in outcomes else "met"


def interval_level(requirements: int, *, level: float) -> float:
    """Coverage of the two-sided intervals, each side of which errs with `(1 - level) / requirements`.

    >>> round(interval_level(1, level=0.95), 3), round(interval_level(5, level=0.95), 3)
    (0.9, 0.98)
    """
    return 1 - 2 * (1 - level) / requirements


def decide(evaluation: Evaluation, requirements: Sequence[Requirement], *, level: float) -> Decision:
    """Hold a model against requirements.

    Args:
        evaluation: of the model alone, or of the base and then the model, with intervals of `interval_level`.
        requirements: at least one.
        level: probability that all verdicts are right.
    """
    if not requirements:
        raise ValueError(f"there is nothing to decide; give requirements, {_GRAMMAR}")
    *before, model = evaluation.models
    base = before[0] if before else None
    if base is None and (relative := [str(each) for each in requirements if each.relative]):
        raise ValueError(f"{relative[0]} is about a base, and there is none: --against BASE")
    differences = {} if evaluation.comparison is None else evaluation.comparison.differences[0].estimates
    needed = interval_level(len(requirements), level=level)
    _require_level(evaluation, needed=needed)
    quantile = normal_quantile(needed)
    verdicts = []
    for each in requirements:
        known = evaluation.models
        if any(each.metric not in estimates for estimates in (known if each.relative else known[-1:])):
            raise ValueError(f"there is no metric {each.metric!r} here; there are {', '.join(known[-1])}")
        _require_share(each, evaluation.info_of(each.metric))
        estimate = known[-1][each.metric]
        paired = each.relative and each.metric in differences
        if each.relative:
            estimate = differences[each.metric] if paired else _apart(known[0][each.metric], estimate)
        elif each.metric == Key.ACCURACY:
            estimate = _exact(estimate, model.samples, error=(1 - needed) / 2)
        outcome = _outcome(each, estimate)
        more = _more_samples(estimate, each.limit, model.samples, quantile) if outcome == "undecided" else None
        verdicts.append(Verdict(each, outcome, estimate, paired, model.samples, more))
    return Decision(model.source.name, None if base is None else base.source.name, level, tuple(verdicts))


def _require_share(requirement: Requirement, info: MetricInfo) -> None:
    """Refuse a limit as it is shown of what is a share: it would be met, or missed, whatever was measured."""
    is_share = info.unit == "%" or (requirement.metric in KEY_INFO and info.scale > 1)
    if is_share and abs(requirement.limit) > 1:
        shown = f"{requirement.limit:g}{'' if info.unit == '%' else ' '}{info.unit}"
        raise ValueError(
            f"{requirement}: {requirement.metric} is at most 1; {shown} is {requirement.limit / info.scale:g}"
        )


def _require_level(evaluation: Evaluation, *, needed: float) -> None:
    """Reject intervals that err more often than the decision may."""
    levels = [(each.source.name or "the model", each.level) for each in evaluation.models]
    if evaluation.comparison is not None:
        levels.append(("the comparison", evaluation.comparison.level))
    for name, level in levels:
        if level < needed - 1e-9:
            raise ValueError(
                f"{name} has intervals of level {level:g}, and these requirements need {needed:g}: measure with "
                f"level={needed:g}"
            )


def _exact(accuracy: Estimate, samples: int, *, error: float) -> Estimate:
    """The accuracy with an interval neither side of which errs more often."""
    if math.isnan(accuracy.value):
        return accuracy
    low, high = proportion_interval(round(accuracy.value * samples), samples, level=1 - 2 * error)
    return replace(accuracy, low=min(accuracy.low, low), high=max(accuracy.high, high))


def _outcome(requirement: Requirement, estimate: Estimate) -> Outcome:
    limit = requirement.limit
    below, above = estimate.high <= limit, estimate.low >= limit
    met, missed = (below, estimate.low > limit) if requirement.at_most else (above, estimate.high < limit)
    return "met" if met else "missed" if missed else "undecided"


def _more_samples(estimate: Estimate, limit: float, samples: int, quantile: float) -> int | None:
    """Samples at which half of the interval would be the true distance from the limit, less those that there are.

    Intervals shrink with the root of the samples, around their middle: plug-in errors are biased, it is not. Whoever
    asks has seen no decision: the distance, in standard errors, is the size of a normal variable, cut at the quantile z
    of the interval. Taken as it is, it would be too small, and the samples too many. It is corrected to the value for
    which what was seen is the median of what can be seen without a decision. Where a value right at the limit would
    more often look farther from it than this one does, there is no such value.
    """
    middle = (estimate.low + estimate.high) / 2
    half, distance = (estimate.high - estimate.low) / 2, abs(middle - limit)
    if not 0 < half < math.inf:
        return None
    corrected = _median_unbiased(quantile * min(1.0, distance / half), quantile)
    return None if corrected == 0 else max(1, math.ceil(samples * ((quantile / corrected) ** 2 - 1)))


def _median_unbiased(seen: float, quantile: float) -> float:
    """The mean of a normal variable of variance 1 whose size, given that it is below the quantile, has this median.

    >>> round(_median_unbiased(1.0, 1.645), 2), round(_median_unbiased(5.0, 10.0), 2), _median_unbiased(0.5, 1.645)
    (1.7, 5.0, 0.0)
    """

    def below(size: float, mean: float) -> float:
        return (math.erfc((mean - size) / math.sqrt(2)) - math.erfc((mean + size) / math.sqrt(2))) / 2

    low, high = 0.0, _LARGEST_MEAN
    if below(seen, low) <= below(quantile, low) / 2:
        return 0.0
    for _ in range(60):
        mean = (low + high) / 2
        low, high = (mean, high) if below(seen, mean) > below(quantile, mean) / 2 else (low, mean)
    return high


def _apart(base: Estimate, model: Estimate) -> Estimate:
    """The difference of two independent estimates, by the distances of their limits, squared and added.

    Zou and Donner, Statistics in Medicine 2008 (MOVER).
    """
    value = model.value - base.value
    centres = [(each.low + each.high) / 2 for each in (base, model)]
    middle = centres[1] - centres[0]
    low = middle - math.hypot(centres[1] - model.low, base.high - centres[0])
    high = middle + math.hypot(model.high - centres[1], centres[0] - base.low)
    return Estimate(value, low, high)
