"""Findings in words."""

from counterpoise.metrics.estimates import Key, percent
from counterpoise.metrics.scores import Recalibration, Scores
from counterpoise.metrics.selective import operating_point
from counterpoise.report.data import threshold_text, untested_classes, worst_classes


def selective_sentence(scores: Scores, *, risk: float) -> str:
    """The threshold for a chosen risk."""
    score = scores.misclassification.score
    title = "a confidence" if score == "max_softmax" else f"a score ({score})"
    point = operating_point(scores.misclassification, risk=risk, level=scores.level)
    if point is None:
        return f"No threshold keeps errors at {100 * risk:g}% of what is accepted."
    return (
        f"To be wrong at most {100 * risk:g}% of the time, accept predictions with {title} of at least "
        f"{threshold_text(point.threshold)}: that keeps {point.coverage:.1%} of them, of which {point.risk:.1%} are "
        f"wrong ({point.low:.1%} to {point.high:.1%})."
    )


def temperature_sentence(tried: Recalibration) -> str:
    """What temperature scaling would change."""
    before, after = tried.before[Key.ECE], tried.after[Key.ECE]
    return (
        f"Temperature scaling (T = {tried.temperature:.3f}, {tried.state}, fitted on {tried.fitted_on:,} samples) "
        f"would move ECE on {tried.measured_on:,} others from {before.value:.2%} "
        f"({before.low:.2%} to {before.high:.2%}) to {after.value:.2%} ({after.low:.2%} to {after.high:.2%})."
    )


def worst_classes_sentence(scores: Scores) -> str:
    """The classes whose error is likely more than noise, how many there are, and how many noise alone would give."""
    clear = [row for row in worst_classes(scores, most=scores.classes) if row.low > 0 and row.ece > row.floor]
    untested = "".join(f" {said}" for said in untested_sentences(scores))
    if not clear:
        tested = "tested " if untested else ""
        return f"No {tested}class has a calibration error that is clearly more than noise.{untested}"
    listed = "; ".join(f"{_class(row.name)}: {row.ece:.2%} ({row.low:.2%} to {row.high:.2%})" for row in clear[:3])
    verb = "is" if len(clear) == 1 else "are"
    return (
        f"Worst calibrated {verb} {listed}. The intervals of {len(clear):,} of {scores.classes:,} classes lie above 0; "
        f"each is for its class alone, and of calibrated classes about {percent((1 - scores.level) / 2)} lie above 0 "
        f"by chance.{untested}"
    )


def untested_sentences(scores: Scores) -> list[str]:
    """A sentence on the classes without samples, or none."""
    names = untested_classes(scores)
    if not names:
        return []
    listed = ", ".join(map(_class, names[:3])) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
    verb = "has" if len(names) == 1 else "have"
    return [
        f"{len(names):,} of {scores.classes:,} classes {verb} no sample here and so {verb} not been tested: {listed}."
    ]


def _class(name: str) -> str:
    """A class in a sentence, where a number by itself would read as an amount.

    >>> _class("9"), _class("cat")
    ('class 9', 'cat')
    """
    return name if any(character.isalpha() for character in name) else f"class {name}"
