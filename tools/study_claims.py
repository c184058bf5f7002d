"""The claims of the study and their verdicts, for the documentation."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.metrics.estimates import KEY_INFO, Key
from counterpoise.report.numbers import metric_title, number
from counterpoise_study.collected import Group, Row
from counterpoise_study.published import published_number
from counterpoise_study.summary import Summary, mean, paired_difference
from tools.markdown import markdown_table
from tools.study_tables import (
    BETTER,
    CLAIMS,
    MINUS,
    NOT_COMPARABLE,
    NOT_RUN,
    ONE_SEED,
    SPACE,
    UNDECIDED,
    VERDICTS,
    WORSE,
    Claim,
    Study,
    column_of,
    row_of,
)


@dataclass(frozen=True)
class Comparison:
    """A claim as far as it can be tested: the rows of both methods, and first minus second, seed by seed.

    It is not comparable where different kernels computed the two methods.
    """

    claim: Claim
    group: Group
    first: Row
    second: Row
    plain: Summary
    scaled: Summary
    is_comparable: bool

    def verdict(self, *, scaled: bool) -> str:
        """On the first method."""
        if not self.is_comparable:
            return NOT_COMPARABLE
        found = self.scaled if scaled else self.plain
        return verdict(found, higher_is_better=KEY_INFO[self.claim.key].higher_is_better)


def compared(study: Study, claims: Sequence[Claim]) -> list[Comparison]:
    """Those of some claims whose methods both have results of the same seed."""
    found = []
    for claim in claims:
        group = study.group(claim.study, claim.group)
        first, second = row_of(group, claim.first), row_of(group, claim.second)
        if group is not None and first is not None and second is not None:
            plain, scaled = (_difference(group, claim, first, second, scaled=scaled) for scaled in (False, True))
            if plain.count:
                kernels = [study.kernels([run.cell for run in row.runs if run.record]) for row in (first, second)]
                is_comparable = kernels[0] == kernels[1] and len(kernels[0]) == 1
                found.append(Comparison(claim, group, first, second, plain, scaled, is_comparable))
    return found


def verdicts_section(study: Study) -> str:
    """How many comparisons of every claim come out how."""
    heads = ("the paper's claim", "comparisons", "as trained", "after temperature scaling")
    rows = []
    for title, claims in CLAIMS.items():
        found = compared(study, claims)
        cells = [_counted([each.verdict(scaled=scaled) for each in found]) for scaled in (False, True)]
        rows.append((title, f"{len(found)} of {len(claims)}", *cells))
    return markdown_table(heads, rows)


def _counted(verdicts: Sequence[str]) -> str:
    """Such as `3 better, 1 inconclusive`."""
    counts = Counter(verdicts)
    return ", ".join(f"{counts[each]} {each}" for each in VERDICTS if counts[each]) or NOT_RUN


def claims_section(study: Study) -> str:
    """Every claim as differences, seed by seed."""
    heads = (f"first {MINUS} second", "metric", "the paper", "as trained", "after temperature scaling")
    parts = []
    for title, claims in CLAIMS.items():
        rows = [_claim_row(study, each) for each in compared(study, claims)]
        parts.append(f"**{title}.**\n\n{markdown_table(heads, rows) if rows else NOT_RUN}")
    return "\n\n".join(parts)


def _claim_row(study: Study, found: Comparison) -> list[str]:
    key = found.claim.key
    metric = metric_title(KEY_INFO[key])
    if found.group.ood:
        metric = f"{metric}, against {found.group.ood}"
    if found.claim.study == "corruptions":
        metric = f"{metric}, mean over corruptions and severities"
    return [
        f"{found.first.label} {MINUS} {found.second.label}",
        metric,
        _published_text(study, found),
        f"{difference_text(key, found.plain)}: {found.verdict(scaled=False)}",
        f"{difference_text(key, found.scaled)}: {found.verdict(scaled=True)}",
    ]


def _difference(group: Group, claim: Claim, first: Row, second: Row, *, scaled: bool) -> Summary:
    columns = [column for column in group.columns if column.key is claim.key]
    if claim.study == "corruptions":
        columns = columns[1:]  # without the clean images
    found = [[row.by_seed(column, scaled=scaled) for column in columns] for row in (second, first)]
    shared = sorted(set.intersection(*(set(values) for row in found for values in row)))
    return paired_difference(*([mean([values[seed] for values in row]) for seed in shared] for row in found))


def difference_text(key: Key, found: Summary) -> str:
    """Such as `−12.30 (−13.10 to −11.50)`."""
    value, low, high = (_signed(number(KEY_INFO[key], each)) for each in (found.mean, found.low, found.high))
    return value if math.isnan(found.low) else f"{value} ({low}{SPACE}to{SPACE}{high})"


def _signed(text: str) -> str:
    return text.replace("-", MINUS) if text.startswith("-") else f"+{text}"


def verdict(difference: Summary, *, higher_is_better: bool | None) -> str:
    """Whether the first is better or worse, beyond chance.

    >>> verdict(Summary(3, -1.0, 0.1, -1.2, -0.8), higher_is_better=False)
    'better'
    """
    if difference.count < 2:
        return ONE_SEED
    gain = (difference.low, difference.high) if higher_is_better else (-difference.high, -difference.low)
    return BETTER if gain[0] > 0 else WORSE if gain[1] < 0 else UNDECIDED


def _published_text(study: Study, found: Comparison) -> str:
    """The paper's own difference on the data set, at its own scale."""
    key = found.claim.key
    tables, ood = study.studies[found.claim.study].study.tables, column_of(found.group, key).ood
    numbers = [
        published_number(tables, row.setting.published, row.line.method, key, ood)
        for row in (found.first, found.second)
    ]
    values = [each.value for each in numbers if each is not None]
    return _signed(number(KEY_INFO[key], values[0] - values[1])) if len(values) == 2 else "none"
