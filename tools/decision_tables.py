"""Tables of `benchmarks.slices` and `benchmarks.gate` for the documentation."""

from typing import Any

from tools.markdown import markdown_table


def slices_section(document: dict[str, Any]) -> str:
    """How often the intervals of all slices hold."""
    head = ("", "repetitions", "accuracy", "overconfidence", "ECE", "accuracy, each interval by itself")
    rows = []
    for name, found in document["figures"].items():
        together = found["all hold, simultaneous"]
        shares = [together[metric] for metric in ("accuracy", "mean_gap", "ece")]
        alone = found["all hold, each by itself"]["accuracy"]
        rows.append((name, f"{found['repetitions']:,}", *(f"{share:.1%}" for share in (*shares, alone))))
    return markdown_table(head, rows)


def gate_section(document: dict[str, Any]) -> str:
    """How often *met* is wrong at the boundary, and how often a true difference is seen."""
    figures = document["figures"]
    wrong, told = figures["met at the boundary"], figures["met where accuracy is better by"]
    lines = [(f"`{rule}`, limit at the truth", f"{share:.1%}") for rule, share in wrong.items()]
    lines.append(("any of the five, all asked together", f"{figures['any of five met at the boundary']:.1%}"))
    lines += [
        (f"accuracy against the base, truly better by {100 * float(points):g} points", f"{share:.1%}")
        for points, share in told.items()
    ]
    table = markdown_table(
        (f"{figures['repetitions']:,} pairs of models, {figures['samples']:,} samples", "met"), lines
    )
    named = figures["samples named over needed"]
    return (
        f"{table}\n\nWhere the truth is one point from the limit and nothing is decided, the number of samples that is "
        f"named is {float(named['50% quantile']):.2f} times the one needed in the median; a quarter of the numbers are "
        f"below {float(named['25% quantile']):.2f} times it, and {_upper_quarter(named['75% quantile'])}."
    )


def _upper_quarter(ratio: str) -> str:
    return (
        "for a quarter or more none is named" if ratio == "inf" else f"a quarter are above {float(ratio):.2f} times it"
    )
