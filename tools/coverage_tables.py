"""Tables of `benchmarks.coverage` for the documentation: metrics with few errors, and paired differences."""

from typing import Any

from benchmarks.coverage import LOWEST_OF_FEW
from tools.markdown import markdown_table


def few_errors_section(document: dict[str, Any]) -> str:
    """A line for each model, a column for each metric."""
    rows = document["figures"]["few_errors"]
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    head = ("model", "K", "N", "errors", *(f"`{metric}`" for metric in metrics))
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        here = {row["metric"]: row for row in rows if row["model"] == model}
        one = here[metrics[0]]
        cells = (coverage_cell(here[metric]["coverage"]) for metric in metrics)
        lines.append((model, str(one["classes"]), f"{one['samples']:,}", f"{one['errors']:.1f}", *cells))
    return markdown_table(head, lines)


def paired_section(document: dict[str, Any]) -> str:
    """A line for each metric, a column for each pair of models; in brackets what the jackknife alone covers."""
    rows = document["figures"]["pairs"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    found = {(row["model"], row["metric"]): row for row in rows}
    lines = [
        ("errors", *(f"{found[model, 'accuracy']['errors']:.1f}" for model in models)),
        ("discordant samples", *(f"{found[model, 'accuracy']['discordant']:.1f}" for model in models)),
    ]
    for metric in dict.fromkeys(row["metric"] for row in rows):
        here = (found[model, metric] for model in models)
        lines.append((f"`{metric}`", *(f"{coverage_cell(row['coverage'])} ({row['jackknife']:.1%})" for row in here)))
    return markdown_table(("two models of", *models), lines)


def coverage_cell(coverage: float) -> str:
    """Emphasised where it is short of what is asked."""
    return f"{coverage:.1%}" if coverage >= LOWEST_OF_FEW else f"**{coverage:.1%}**"
