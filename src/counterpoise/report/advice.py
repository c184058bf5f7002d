"""One line on what to do, computed from scores; and the sentence that says why."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist

from counterpoise._text import listed
from counterpoise.metrics.comparison import Comparison, Evaluation
from counterpoise.metrics.estimates import Estimate, Key, MetricInfo
from counterpoise.metrics.scores import Recalibration, Scores
from counterpoise.report.data import contrasts, find, name_of, unit_of
from counterpoise.report.numbers import number

DECIDING = (Key.NLL, Key.BRIER, Key.ACCURACY, Key.ECE)
"""Models are chosen by the first of these that all of them have: proper scores come first."""

SURE = 0.8
"""Chance of a decision that is stated beside the even one."""

HOPELESS = 100
"""Times the samples at hand, beyond which nobody will collect them."""


@dataclass(frozen=True)
class Advice:
    """What to do, and why."""

    line: str
    why: str = ""


def advice_for(scores: Scores) -> Advice:
    """What would mend one model's confidence."""
    tried = scores.recalibration
    if tried is not None and _mends(tried):
        return Advice(
            f"Divide the {_divided(scores)} by {tried.temperature:.2f}: {_change(tried)}.",
            f"Temperature scaling, fitted on {tried.fitted_on:,} samples and measured on {tried.measured_on:,} others. "
            "It changes no decision, so accuracy stays.",
        )
    gap, ece = find(scores, Key.MEAN_GAP), find(scores, Key.ECE)
    leans = gap is not None and (gap.low > 0 or gap.high < 0)
    if not leans and (ece is None or not ece.low > 0):
        if gap is None and ece is None:
            return Advice("No advice: these predictions hold nothing that calibration can be measured by.")
        return Advice(f"Nothing to mend: confidence is right as far as {scores.samples:,} {unit_of(scores)} can tell.")
    if tried is not None:
        return Advice(
            f"One temperature does not clearly mend this ({_change(tried)}).",
            "Look at the bins and classes that are off, or try a calibrator with more parameters on other samples.",
        )
    if gap is None or not leans:
        return Advice("Confidence is wrong in places, and right on average: look at the bins that are off.")
    side = "Overconfident" if gap.low > 0 else "Underconfident"
    return Advice(f"{side} by {100 * abs(gap.value):.1f} points: fit a calibrator on other labelled samples.")


def advice_between(evaluation: Evaluation) -> Advice | None:
    """Which model to take, or how many more samples would tell; None where models are not compared."""
    comparison, models = evaluation.comparison, evaluation.models
    key = None if comparison is None else _deciding(comparison, models)
    if comparison is None or key is None:
        return None
    info = evaluation.info_of(key)
    lead = _lead(comparison, key, [model[key].value for model in models], info)
    scaled = _scaled_lead(evaluation, key)
    name, title = name_of(models[lead.place]), info.title
    if scaled is not None and _overtakes(scaled, lead):
        unscaled = "chance may explain who leads" if lead.undecided else f"{name} leads"
        return _advice_to_scale(evaluation, info, scaled, unscaled=unscaled)
    if not lead.undecided:
        stays = "chance may explain what is left" if scaled is not None and scaled.undecided else "it stays ahead"
        why = [] if scaled is None else [f"Once each has its temperature scaled, {stays}."]
        best = f"its {title} is" if len(models) == 2 else f"the best {title},"
        return Advice(
            f"Take {name}: {best} {_margin(models, info, lead)}.", " ".join([*why, *_losses(evaluation, lead.place)])
        )
    needed = {other: _samples_to_decide(lead.over[other], comparison.samples) for other in lead.undecided}
    other = max(needed, key=lambda index: needed[index])
    margin = _amount(info, abs(models[lead.place][key].value - models[other][key].value))
    if models[lead.place][key].value == models[other][key].value:
        return Advice(f"{name} and {name_of(models[other])} have the same {title}.")
    line = f"{name} leads {name_of(models[other])} in {title} by {margin}, which may be chance"
    total = needed[other]
    if total > HOPELESS * comparison.samples:
        return Advice(f"{line}: over {HOPELESS} times as many samples would be needed to tell. Treat them as equal.")
    quantile = NormalDist().inv_cdf
    usual = quantile((1 + comparison.level) / 2)
    surely = total * ((usual + quantile(SURE)) / usual) ** 2
    return Advice(
        f"{line}: {_about(total - comparison.samples)} more {unit_of(models[0])} would decide, if it stays.",
        "Intervals narrow with the square root of the number of samples. If the true difference is the measured one, "
        "so many more give an even chance that its interval leaves out 0; "
        f"{_about(surely - comparison.samples)} more give {100 * SURE:.0f}%.",
    )


@dataclass(frozen=True)
class _Lead:
    """The model whose value is best, what that is above or below each other's, and whom chance may have put behind."""

    place: int
    over: dict[int, Estimate]
    undecided: list[int]


def _lead(comparison: Comparison, key: str, values: list[float], info: MetricInfo) -> _Lead:
    wants_more = bool(info.higher_is_better)
    place = values.index(max(values) if wants_more else min(values))
    over = dict(_differences(comparison, key, place))
    undecided = [other for other, e in over.items() if not (e.low > 0 if wants_more else e.high < 0)]
    return _Lead(place, over, undecided)


def _scaled_lead(evaluation: Evaluation, key: str) -> _Lead | None:
    """The same once each model is scaled; None where that was not tried of this metric."""
    tried = [model.recalibration for model in evaluation.models if model.recalibration is not None]
    if evaluation.scaled is None or any(key not in each.after or each.state != "converged" for each in tried):
        return None
    after = [each.after[key].value for each in tried]
    return _lead(evaluation.scaled, key, after, evaluation.info_of(key))


def _overtakes(scaled: _Lead, lead: _Lead) -> bool:
    """Whether it is sure of a model, once each is scaled, that it is ahead of what leads as it is, or of all."""
    if scaled.place != lead.place:
        return lead.place not in scaled.undecided
    return bool(lead.undecided) and not scaled.undecided


def _advice_to_scale(evaluation: Evaluation, info: MetricInfo, lead: _Lead, *, unscaled: str) -> Advice:
    """To take the model that is the best once each is scaled, which it may not be as it is."""
    models = evaluation.models
    chosen = models[lead.place]
    tried, scaled = chosen.recalibration, evaluation.scaled
    assert tried is not None  # noqa: S101
    assert scaled is not None  # noqa: S101
    then = f"its {info.title} is then" if len(models) == 2 else f"it then has the best {info.title},"
    return Advice(
        f"Divide the {_divided(chosen)} of {name_of(chosen)} by {tried.temperature:.2f}, and take it: {then} "
        f"{_margin(models, info, lead, scaled=True)}.",
        " ".join(
            [
                f"As they are, {unscaled}. Temperatures were fitted on {tried.fitted_on:,} samples, and "
                f"{scaled.samples:,} others compared.",
                *_losses(evaluation, lead.place, unless=scaled),
            ]
        ),
    )


def _margin(models: list[Scores], info: MetricInfo, lead: _Lead, *, scaled: bool = False) -> str:
    """How far the leader is ahead, beyond chance."""
    too = ", scaled too" if scaled else ""
    if len(lead.over) > 1:
        sure = [name_of(models[other]) for other in lead.over if other not in lead.undecided]
        which = listed(sure) if lead.undecided else f"each of the {len(sure)} others"
        return f"beyond chance against {which}{too}"
    ((other, estimate),) = lead.over.items()
    low, high = sorted(abs(limit) for limit in (estimate.low, estimate.high))
    word = "higher" if info.higher_is_better else "lower"
    return (
        f"{_amount(info, abs(estimate.value))} {word} than that of {name_of(models[other])}{too} "
        f"({number(info, low)} to {number(info, high)})"
    )


def _amount(info: MetricInfo, value: float) -> str:
    return f"{number(info, value)} {'points' if info.unit == '%' else info.unit}".strip()


def _divided(scores: Scores) -> str:
    """What a temperature divides."""
    if scores.source.members is not None:
        return "log of the mean probabilities"
    return "logits" if scores.source.kind in ("", "logits") else "log-probabilities"


def _mends(tried: Recalibration) -> bool:
    """Whether ECE falls below the whole interval that it has without, at a temperature that was found."""
    before, after = tried.before[Key.ECE], tried.after[Key.ECE]
    return tried.state == "converged" and after.value < before.low and after.value < before.value


def _change(tried: Recalibration) -> str:
    return f"ECE from {tried.before[Key.ECE].value:.1%} to {tried.after[Key.ECE].value:.1%}"


def _deciding(comparison: Comparison, models: list[Scores]) -> Key | None:
    for key in DECIDING:
        known = all(key in each.estimates and _is_finite(each.estimates[key]) for each in comparison.differences)
        if known and all(find(model, key) is not None for model in models):
            return key
    return None


def _is_finite(estimate: Estimate) -> bool:
    return math.isfinite(estimate.low) and math.isfinite(estimate.high) and math.isfinite(estimate.value)


def _differences(comparison: Comparison, key: str, leader: int) -> Iterator[tuple[int, Estimate]]:
    """Of the leader minus each other model."""
    for each in comparison.differences:
        found = each.estimates[key]
        if each.second == leader:
            yield each.first, found
        elif each.first == leader:
            yield each.second, Estimate(-found.value, -found.high, -found.low)


def _samples_to_decide(difference: Estimate, samples: int) -> float:
    """How many samples there must be for the interval to leave out 0, if its middle stays and its width shrinks.

    The middle and not the value: calibration errors are biased, and their intervals are not.
    """
    middle, half = (difference.low + difference.high) / 2, (difference.high - difference.low) / 2
    return math.inf if middle == 0 else samples * (half / middle) ** 2


def _losses(evaluation: Evaluation, leader: int, *, unless: Comparison | None = None) -> list[str]:
    """Where the leader is worse than another, beyond chance; a sentence, or none.

    Args:
        evaluation: of the models.
        leader: place of the model.
        unless: the comparison once each is scaled, where the metrics that it has are those of the other.
    """
    changed = set() if unless is None else {key for each in unless.differences for key in each.estimates}
    found: dict[str, None] = {}
    for comparison, left_out in ((evaluation.comparison, changed), (unless, set[str]())):
        for each in [] if comparison is None else comparison.differences:
            state = "worse" if each.second == leader else "better" if each.first == leader else ""
            kept = {key: value for key, value in each.estimates.items() if key not in left_out}
            rows = contrasts(evaluation, replace(each, estimates=kept))
            found |= {row.title: None for row in rows if row.state == state}
    name, nll = name_of(evaluation.models[leader]), find(evaluation.models[leader], Key.NLL)
    said = [f"But {name} is worse, beyond chance, in {listed([*found])}."] if found else []
    if nll is not None and math.isinf(nll.value):
        said.append(f"But {name} gives some labels the probability 0, so that its NLL is infinite.")
    return said


def _about(count: float) -> str:
    """A number of samples, rounded up to two digits.

    >>> _about(481.2), _about(12_345), _about(3.2)
    ('490', '13,000', '4')
    """
    step = 10 ** max(0, math.floor(math.log10(max(count, 1))) - 1)
    return f"{max(1, math.ceil(count / step)) * step:,}"
