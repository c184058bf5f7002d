"""A decision as people and CI systems read it: text, Markdown, JUnit XML, JSON."""

import json
import math
from dataclasses import asdict
from xml.etree import ElementTree as ET

from counterpoise._text import printable
from counterpoise.metrics.estimates import percent
from counterpoise.metrics.gate import Decision, Outcome, Verdict
from counterpoise.report.tables import as_markdown, as_text, table

SCHEMA, SCHEMA_VERSION = "counterpoise.decision", 1
WORDS: dict[Outcome, str] = {"met": "met", "missed": "MISSED", "undecided": "cannot tell"}
_SENTENCES: dict[Outcome, str] = {
    "met": "All requirements are met.",
    "missed": "A requirement is missed.",
    "undecided": "The samples cannot tell whether all requirements are met.",
}


def as_lines(decision: Decision, *, markdown: bool = False) -> str:
    """A table of the verdicts, and a sentence."""
    rows = [
        (str(each.requirement), _measured(each), _interval(each), WORDS[each.outcome], _more(each))
        for each in decision.verdicts
    ]
    heads = ("requirement", "measured", "interval", "", "")
    against = "" if decision.base is None else f" against {decision.base}"
    made = table(f"{decision.model}{against}", heads, rows)
    written = as_markdown(made) if markdown else as_text(made)
    sure = f"All verdicts together are right with a probability of {percent(decision.level)}."
    return f"{written}\n\n{_SENTENCES[decision.outcome]} {sure}"


def as_junit(decision: Decision) -> str:
    """JUnit XML: a test case for each requirement; one that is undecided is an error, one that is missed a failure."""
    counts = {word: sum(each.outcome == word for each in decision.verdicts) for word in WORDS}
    suite = ET.Element(
        "testsuite",
        name="counterpoise check",
        tests=str(len(decision.verdicts)),
        failures=str(counts["missed"]),
        errors=str(counts["undecided"]),
    )
    for each in decision.verdicts:
        case = ET.SubElement(
            suite, "testcase", classname=printable(decision.model), name=printable(str(each.requirement))
        )
        if each.outcome != "met":
            kind = "failure" if each.outcome == "missed" else "error"
            interval = f"interval {_interval(each)}" if _interval(each) else ""
            message = ", ".join(filter(None, (f"{each.estimate.value:.6g}", interval, _more(each))))
            ET.SubElement(case, kind, message=message)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


def as_json(decision: Decision) -> str:
    """Strict JSON; limits of intervals that are not known are null."""
    document = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "outcome": decision.outcome, **asdict(decision)}
    return json.dumps(_finite(document), indent=1, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and value - value != 0 else value


def _measured(verdict: Verdict) -> str:
    """A value, or the difference from the base with its sign."""
    return f"{verdict.estimate.value:+.4g}" if verdict.requirement.relative else f"{verdict.estimate.value:.4g}"


def _interval(verdict: Verdict) -> str:
    if math.isnan(verdict.estimate.low):
        return ""
    paired = ", paired" if verdict.paired else ", as independent samples" if verdict.requirement.relative else ""
    return f"{verdict.estimate.low:.4g} to {verdict.estimate.high:.4g}{paired}"


def _more(verdict: Verdict) -> str:
    if verdict.outcome != "undecided":
        return ""
    if math.isnan(verdict.estimate.value):
        return "undefined on these samples"
    if math.isnan(verdict.estimate.low):
        return "this metric has no interval here"
    return "too near to say how many more samples" if verdict.more_samples is None else more_samples(verdict)


def more_samples(verdict: Verdict) -> str:
    """With how many more samples there is an even chance of a decision; a few are not counted."""
    few = math.ceil(verdict.samples / 10)
    known = verdict.more_samples or 0
    return f"fewer than {few:,} more samples" if known < few else f"{known:,} more samples"
