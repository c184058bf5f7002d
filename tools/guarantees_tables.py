"""Tables of `benchmarks.guarantees` for the documentation."""

from typing import Any

from tools.markdown import markdown_table


def guarantees_section(document: dict[str, Any]) -> str:
    """What sets cover, by size and number of classes, and how often the risk of what is accepted is too large."""
    figures = document["figures"]
    rows = figures["sets"]
    sizes = list(dict.fromkeys(row["samples"] for row in rows))
    law = {row["samples"]: row["expected"] for row in rows}
    lines = []
    for classes in dict.fromkeys(row["classes"] for row in rows):
        for ties in (False, True):
            cells = []
            for size in sizes:
                here = [
                    row["coverage"]
                    for row in rows
                    if (row["classes"], row["ties"], row["samples"]) == (classes, ties, size)
                ]
                cells.append(f"{min(here):.1%} to {max(here):.1%}")
            lines.append((f"{classes:,}{', with ties' if ties else ''}", *cells))
    lines.append(("by the exact law, without ties", *(f"{law[size]:.1%}" for size in sizes)))
    head = ("share of sets that hold the label, K =", *(f"n = {size:,}" for size in sizes))
    sets = markdown_table(head, lines)
    risks = list(dict.fromkeys(row["risk"] for row in figures["selective"]))
    found = {(row["population"], row["risk"]): row for row in figures["selective"]}
    shown = [
        (
            name,
            *(
                f"{found[name, risk]['violations']:.1%} ({found[name, risk]['accepted']:.0%} of "
                f"{found[name, risk]['could_be_accepted']:.0%})"
                for risk in risks
            ),
        )
        for name in dict.fromkeys(name for name, _ in found)
    ]
    accepted = markdown_table(("population", *(f"risk {risk:.0%}" for risk in risks)), shown)
    draws = figures["selective"][0]["draws"]
    by_class = max(abs(row["standard_errors"]) for row in figures["by_class"])
    return "\n\n".join(
        [
            f"Sets for {1 - figures['alpha']:.0%}, from {figures['draws']:,} draws of n calibration samples and "
            f"{figures['tested']} others; least and most of `lac`, `aps` and `raps`:",
            sets,
            f"Without ties, the mean is at most {figures['largest_deviation_in_standard_errors']:.1f} standard errors "
            f"from the law, and by class at most {by_class:.1f}. With ties, from probabilities that are rounded up to "
            "one decimal, sets can only cover more.",
            f"Accepted predictions, from {draws:,} draws of {figures['selected_from']:,} calibration samples at "
            f"$\\delta$ = {figures['delta']}: how often the risk is too large, and in brackets the share that is "
            "accepted, of what could be if the risk were known:",
            accepted,
            "`ordered`: the error rate falls evenly with the confidence, from 50% to 0. `overconfident`: half as many "
            "again are wrong as it says, and most confidences are near 1. `the surest are wrong`: too many of the top "
            "5% are. `at the limit`: the error rate is 1.02 times the risk everywhere, so that nothing may be "
            "accepted.",
        ]
    )
