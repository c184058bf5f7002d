"""What the documentation shows of the study of costs, from the records that are kept of it so far."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from counterpoise.metrics.estimates import Key
from counterpoise_study.collected import Row, StudyResults
from counterpoise_study.cost import relative_cost
from counterpoise_study.summary import adjusted_level, paired_difference
from tools.finetuning_tables import choices_section, column_of, head, progress_text, value_text
from tools.markdown import markdown_table
from tools.study_claims import difference_text

PAGE = "docs/cost.md"
SHOWN = ((Key.ACCURACY, False), (Key.ECE, False), (Key.NLL, False), (Key.NLL, True))
"""Metrics, as trained or after temperature scaling."""

HEADLINE = (*SHOWN[:2], (Key.ECE, True), *SHOWN[2:])
"""Those of the README."""

REFERENCES = ("ce", "ls", "fl", "pskd", "dml", "de3", "mte1", "mte2")
"""What the others are held against: plain training, the rivals, and MTE as published."""

RECOMMENDED = "trunk-2-every-2-rate-follows"
"""The saving that is the method `mte-lite`."""


def results_section(study: StudyResults) -> str:
    """Every row with its means over seeds, and what its training costs."""
    (group,) = study.groups
    rows = [
        [
            row.label,
            f"{relative_cost(replace(row.setting.recipe, method=row.line.method)):.2f}",
            *(value_text(row, column_of(group, key, "test"), scaled=scaled) for key, scaled in SHOWN),
            f"{len(row.records)} of {len(row.line.seeds)}",
        ]
        for row in group.rows
    ]
    return markdown_table(("", "FLOPs of training", *map(head, SHOWN), "seeds"), rows)


def headline_section(study: StudyResults) -> str:
    """Methods as published, and the one that is recommended, of those all of whose seeds are finished."""
    (group,) = study.groups
    rows = [
        [
            row.label if not row.setting.variant else "MTE-lite",
            f"{relative_cost(replace(row.setting.recipe, method=row.line.method)):.2f}",
            *(value_text(row, column_of(group, key, "test"), scaled=scaled) for key, scaled in HEADLINE),
        ]
        for row in group.rows
        if _is_finished(row) and (not row.setting.variant or row.setting.name.endswith(RECOMMENDED))
    ]
    return markdown_table(("", "FLOPs of training", *map(head, HEADLINE)), rows)


def _is_finished(row: Row) -> bool:
    return len(row.records) == len(row.line.seeds)


def differences_section(study: StudyResults) -> str:
    """Every finished row against each reference, seed by seed, at a level that allows for the number of rows."""
    (group,) = study.groups
    level = adjusted_level(len(group.rows))
    tables = []
    for method in REFERENCES:
        reference = next(row for row in group.rows if row.line.method == method)
        rows = []
        for row in group.rows:
            if row is reference or not _is_finished(row) or not _is_finished(reference):
                continue
            cells = []
            for key, scaled in SHOWN:
                column = column_of(group, key, "test")
                ours, theirs = (each.by_seed(column, scaled=scaled) for each in (row, reference))
                shared = sorted(ours.keys() & theirs.keys())
                found = paired_difference(
                    [theirs[seed] for seed in shared], [ours[seed] for seed in shared], level=level
                )
                cells.append(difference_text(key, found) if shared else "")
            rows.append([row.label, *cells])
        title = f"**Against {reference.label}**, intervals at {100 * level:.2f}%"
        tables += [title, markdown_table(("", *map(head, SHOWN)), rows) if rows else "Nothing is finished yet."]
    return "\n\n".join(tables)


SECTIONS: Mapping[str, tuple[str, str, Callable[[StudyResults], str]]] = {
    "cost-progress": (PAGE, "cost", progress_text),
    "cost-choices": (PAGE, "cost", choices_section),
    "cost-results": (PAGE, "cost", results_section),
    "cost-differences": (PAGE, "cost", differences_section),
    "cost-headline": ("README.md", "cost", headline_section),
    "cost-large-results": (PAGE, "cost-large", results_section),
}
"""By name: the page that shows it, of which study, and how."""
