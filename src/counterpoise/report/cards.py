"""The large numbers at the top of the page."""

import math
from dataclasses import dataclass

from counterpoise.metrics.estimates import Key
from counterpoise.metrics.scores import Scores, verdict
from counterpoise.metrics.selective import operating_point
from counterpoise.report import numbers
from counterpoise.report.advice import advice_for
from counterpoise.report.data import (
    errors_of,
    find,
    name_of,
    threshold_text,
)
from counterpoise.report.style import Look

LARGE_NUMBERS = 3


@dataclass(frozen=True)
class LargeNumber:
    """A number to be seen first, what it is, and its small print."""

    title: str
    value: str
    note: str


@dataclass(frozen=True)
class Card:
    """What is most important about one model."""

    name: str
    look: Look
    numbers: list[LargeNumber]
    verdict: str
    advice: str


def card_of(scores: Scores, look: Look, models: list[Scores], *, risk: float) -> Card:
    """The three large numbers of a model, and its verdict."""
    gap = find(scores, Key.MEAN_GAP)
    words = "" if gap is None or find(scores, Key.ACCURACY) is None else verdict(scores)
    # Of a single model, the advice stands above.
    advice = "" if len(models) == 1 else advice_for(scores).line
    return Card(name_of(scores), look, _large_numbers(scores, risk=risk), words, advice)


def _large_numbers(scores: Scores, *, risk: float) -> list[LargeNumber]:
    """The first three of what these scores have: how often it is right, how far confidence is off, what is kept."""
    found = []
    for key in dict.fromkeys((Key.ACCURACY, Key.ECE, None, Key.NLL, Key.BRIER, Key.AUROC, *scores.estimates)):
        number = _kept(scores, risk=risk) if key is None else _large(scores, key)
        found += [] if number is None else [number]
    return found[:LARGE_NUMBERS]


def _large(scores: Scores, key: str) -> LargeNumber | None:
    estimate, info = find(scores, key), scores.info_of(key)
    if estimate is None:
        return None

    def shown(value: float) -> str:
        return f"{info.scale * value:.{1 if info.scale > 1 else 3}f}"

    note = "" if math.isnan(estimate.low) else f"{shown(estimate.low)} to {shown(estimate.high)}"
    if estimate.floor is not None:
        note += f"; {shown(estimate.floor)} by chance alone"
    if estimate.value > estimate.high:
        note += "; biased upwards, so it may lie above its interval"
    unit = "%" if info.unit == "%" else ""
    title = info.title.strip() if unit else numbers.metric_title(info).strip()
    title = "Calibration error, ECE" if key == Key.ECE else title
    return LargeNumber(title, f"{shown(estimate.value)}{unit}", note)


def _kept(scores: Scores, *, risk: float) -> LargeNumber | None:
    ranking = errors_of(scores)
    if ranking is None:
        return None
    title = f"Kept at {100 * risk:g}% errors"
    point = operating_point(ranking, risk=risk, level=scores.level)
    if point is None:
        return LargeNumber(title, "none", "at no threshold are errors so few")
    what = "confidence" if ranking.score == "max_softmax" else ranking.score
    return LargeNumber(
        title,
        f"{100 * point.coverage:.1f}%",
        f"{what} from {threshold_text(point.threshold)} on; errors {100 * point.low:.1f} to {100 * point.high:.1f}%",
    )
