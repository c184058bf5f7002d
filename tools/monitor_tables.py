"""Tables of `benchmarks.monitor` for the documentation."""

from typing import Any

from benchmarks.monitor import AFTER, BEFORE, IN_CHANGED_WINDOW
from tools.markdown import markdown_table


def monitor_section(document: dict[str, Any]) -> str:
    """How often streams without a change alarm, and how many samples a change takes to be found."""
    figures = document["figures"]
    quiet = figures["no_change"]
    rows = []
    for name, title in (("accuracy", "accuracy, labels known"), ("confidence", "mean confidence, without labels")):
        for row in figures["delays"][name]:
            samples = (f"{row[key]:,.0f}" for key in ("median_samples", "p90_samples"))
            rows.append((f"{title}, by {row['points']:g} points", *samples, f"{row['found']:.1%}"))
    heads = ("lower", "samples until the alarm, median", "90% of streams", f"found in {AFTER * IN_CHANGED_WINDOW:,}")
    table = markdown_table(heads, rows)
    return "\n".join(
        [
            f"Without a change, {quiet['ever_alarmed']:.1%} of {quiet['streams']:,} streams ever alarm, looked at "
            f"{quiet['looks']:,} times each, after every {quiet['samples_in_window']} predictions. With one, held "
            f"against {figures['reference_samples']:,} labelled predictions with an accuracy of "
            f"{figures['accuracy']:.0%}, after {BEFORE * IN_CHANGED_WINDOW:,} predictions without:",
            "",
            table,
            "",
            f"Of {figures['partitions']['partitions']} ways to divide and order the files, "
            f"{figures['partitions']['same']} give the same bytes; of {figures['kills']['kills']} writers that were "
            f"killed and run again, {figures['kills']['same']} leave what an undisturbed one does.",
        ]
    )
