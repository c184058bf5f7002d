"""What `benchmarks.comparison` measured, as the tables of docs/comparison.md. Imports none of the libraries."""

import textwrap
from typing import Any

from counterpoise.metrics.estimates import KEY_INFO, Key
from tools.markdown import markdown_table

SHOWN = {"netcal": "net:cal"}
"""Names of libraries that are written otherwise than their packages."""


def comparison_section(document: dict[str, Any]) -> str:
    """Agreement, differences with their reasons, invalid predictions, intervals."""
    figures = document["figures"]
    versions = ", ".join(f"{shown(name)} {number}" for name, number in figures["libraries"].items())
    command = f"Measured by `{document['command']}` with {versions}, torch {document['versions']['torch']}."
    parts = [command, *agreement(figures), *differences(figures), *invalid(figures), *intervals(figures)]
    return "\n\n".join(part if part.startswith("|") else textwrap.fill(part, width=120) for part in parts)


def agreement(figures: dict[str, Any]) -> list[str]:
    """Values, and how far other libraries are from them."""
    libraries = list(figures["libraries"])
    rows = [
        [
            KEY_INFO[Key(key)].title.strip(),
            f"{row['ours']:.6f}",
            *(distance(row["differences"].get(n)) for n in libraries),
        ]
        for key, row in figures["agreement"].items()
    ]
    found = {name: row["temperature"] for name, row in figures["temperature"].items()}
    ours = found["counterpoise"]
    apart = [distance(abs(found[name] - ours) if name in found else None) for name in libraries]
    rows.append(["T of temperature scaling", f"{ours:.6f}", *apart])
    lost = max(row["excess_nll"] for row in figures["temperature"].values())
    return [
        f"**Where all agree.** {figures['samples']:,} predictions over {figures['classes']} classes, float64, too sure "
        "above 60% and not sure enough below: our value, and how far each library that has the metric is from it.",
        markdown_table(["metric", "counterpoise", *map(shown, libraries)], rows),
        "What is not rounding: equal-mass bins whose number does not divide that of the samples; the width of the "
        "kernel of smooth ECE, which both others search in ten halvings; AURC by trapezoids. The NLL at these "
        f"temperatures is within {lost:.0e} of the best.",
    ]


def differences(figures: dict[str, Any]) -> list[str]:
    """Inputs on which libraries do not agree."""
    rows = [
        [
            row["about"],
            row["measure"],
            f"{row['ours']:.4f}",
            "; ".join(f"{shown(name)} {value:.4f}" for name, value in row["theirs"].items()),
            row["reason"],
        ]
        for row in figures["differences"]
    ]
    return [
        "**Where they differ, and why.**",
        markdown_table(["input", "metric", "counterpoise", "others", "why"], rows),
    ]


def invalid(figures: dict[str, Any]) -> list[str]:
    """What becomes of predictions that are none."""
    libraries = ["counterpoise", *figures["libraries"]]
    rows = [[fault, *(row[name] for name in libraries)] for fault, row in figures["invalid"].items()]
    return [
        "**Predictions that are not valid**, given to ECE (scikit-learn: the Brier score; relplot: smooth ECE).",
        markdown_table(["", *map(shown, libraries)], rows),
    ]


def intervals(figures: dict[str, Any]) -> list[str]:
    """How often an interval contains the truth."""
    found = figures["intervals"]
    trials = found["trials"]
    rows = [
        [f"{float(error):.0%}", f"{row['counterpoise']} of {trials}", f"{row['torchmetrics']} of {trials}"]
        for error, row in found["contains"].items()
    ]
    return [
        f"**Does a 95% interval for ECE contain the true ECE?** {trials} draws of {found['samples']:,} samples.",
        markdown_table(["true ECE", "counterpoise", "torchmetrics' `BootStrapper`, 2.5% and 97.5% quantiles"], rows),
    ]


def shown(name: str) -> str:
    """A library as it calls itself."""
    return SHOWN.get(name, name)


def distance(value: float | None) -> str:
    """Powers of ten are enough for a difference."""
    if value is None:
        return "-"
    return f"{value:.0e}" if value >= 1e-12 else "< 1e-12"
