"""The tables of docs/scaling.md: what the model says about sizes that nobody has run, and how far it was right."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from benchmarks.scaleout import SHARDS
from benchmarks.scaling_rows import BILLION, ROW_GROUP, SHAPE, VALIDATION, WORKERS, Assumptions
from benchmarks.streams import KINDS
from tools.markdown import markdown_table


def bytes_text(number: float) -> str:
    """Bytes with a unit and two or three digits.

    >>> bytes_text(1_536_000), bytes_text(4e16), bytes_text(0)
    ('1.5 MB', '40 PB', '0')
    """
    if number < 1:
        return "0"
    power = min(5, int(math.log10(number) // 3))
    value = number / 1000**power
    return f"{value:.{1 if value < 10 else 0}f} {('B', 'kB', 'MB', 'GB', 'TB', 'PB')[power]}"


def seconds_text(seconds: float) -> str:
    """Seconds with a unit.

    >>> seconds_text(0.25), seconds_text(90), seconds_text(3e5)
    ('250 ms', '90 s', '83 h')
    """
    hours = seconds / 3600
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 1000:
        return f"{seconds:.3g} s"
    return f"{hours:,.2g} h" if hours < 10 else f"{hours:,.0f} h"


def count_text(number: int) -> str:
    """Images or classes in words.

    >>> count_text(1_281_167), count_text(10**10), count_text(21_841)
    ('1.3 M', '10 B', '21,841')
    """
    for unit, name in ((BILLION, "B"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.2g} {name}"
    return f"{number:,}"


def training_section(document: dict[str, Any]) -> str:
    """Training, by size."""
    assumed, rows = document["figures"]["assumptions"], document["figures"]["training"]
    memory = assumed["memory"]
    lines = [
        [
            f"{row['devices']:,}" + (f", {row['strategy']}" if row["strategy"] else ""),
            str(row["batch"]),
            count_text(row["images"]),
            count_text(row["classes"]),
            bytes_text(row["memory"]) + (" (too much)" if row["memory"] > memory else ""),
            bytes_text(row["traffic"]),
            seconds_text(row["step"]),
            f"{row['communicating']:.0%}",
            seconds_text(3600 * row["hours"]),
            str(math.ceil(row["cores"])),
            bytes_text(row["checkpoint"]),
        ]
        for row in rows
    ]
    head = ["GPUs", "images each", "images", "classes", "memory each", "sent each a step", "step", "communication"]
    named = ", ".join(f"`{each.name}` {assumed[each.name]:g}" for each in fields(Assumptions))
    return (
        textwrap.fill(f"Assumed: {named}.", width=120)
        + "\n\n"
        + markdown_table([*head, "epoch", "cores each to decode", "checkpoint"], lines)
    )


def auxiliaries_section(document: dict[str, Any]) -> str:
    """What an auxiliary costs."""
    lines = [
        [row["name"] or "none: cross-entropy", *(f"{row[key]:.2f}" for key in ("flops", "memory", "traffic"))]
        for row in document["figures"]["auxiliaries"]
    ]
    return markdown_table(["auxiliary of a ResNet50", "FLOPs of a step", "memory", "traffic"], lines)


def evaluation_section(document: dict[str, Any]) -> str:
    """Sums against files, and what loaders hold."""
    figures = document["figures"]
    head = ["", *(f"{row['classes']:,} classes" for row in figures["evaluation"])]
    names = {
        "state": ("sums of `ClasswiseCalibration`, kept, saved or sent", bytes_text),
        "update": ("memory while 256 samples are added to them", bytes_text),
        "merged": (f"sent by one worker until the sums of {WORKERS:,} are merged in a tree", bytes_text),
        "million_files": ("sums of 1 M samples on one core, `counterpoise evaluate`", seconds_text),
        "million_stream": ("the same, `Stream` with 256 samples or more at a time", seconds_text),
        "float32": ("10 B predictions as files, float32", bytes_text),
        "float16": ("10 B predictions as files, float16", bytes_text),
        "rows_of_file": ("most rows of one file", lambda number: f"{number:,}"),
    }
    lines = [[title, *(form(row[key]) for row in figures["evaluation"])] for key, (title, form) in names.items()]
    return markdown_table(head, lines)


def data_section(document: dict[str, Any]) -> str:
    """What loaders hold."""
    rows = document["figures"]["data"]
    names = {
        "memory": "memory pipeline, on every device",
        "index": f"stream, row groups of {ROW_GROUP:,}, {VALIDATION:,} rows held out, in every process",
        "large_groups": f"the same, row groups of {10 * ROW_GROUP:,}",
    }
    lines = [[title, *(bytes_text(row[key]) for row in rows)] for key, title in names.items()]
    return markdown_table([f"images of {SHAPE[1]} pixels", *(count_text(row["images"]) for row in rows)], lines)


def streams_section(document: dict[str, Any]) -> str:
    """What starting to stream takes."""
    figures = document["figures"]
    kinds = [figures[kind] for kind in KINDS]
    lines = [
        ["memory beyond Python and its libraries", *(bytes_text(1e6 * kind["megabytes_added"]) for kind in kinds)],
        ["processor time, imports included", *(seconds_text(kind["processor_seconds"]) for kind in kinds)],
        ["imports alone", *(seconds_text(kind["processor_seconds_of_imports"]) for kind in kinds)],
    ]
    head = f"{count_text(figures['rows'])} rows in {figures['files']:,} files, {figures['row_groups']:,} row groups"
    return markdown_table([head, *KINDS.values()], lines)


def predictions_section(document: dict[str, Any]) -> str:
    """How far the model was right."""
    forms = {"bytes": bytes_text, "seconds": seconds_text}
    lines = [
        [
            row["what"],
            *(forms[row["unit"]](row[key]) for key in ("predicted", "measured")),
            f"{row['predicted'] / row['measured']:.2f}",
        ]
        for row in document["figures"]["predictions"]
    ]
    return markdown_table(["", "predicted", "measured", "ratio"], lines)


def scaleout_section(document: dict[str, Any]) -> str:
    """Shards in one process and on a cluster."""
    titles = {"long": "16 M x 10", "wide": "200,000 x 1,000"}
    lines = []
    for name, figures in document["figures"].items():
        if name not in titles:
            continue
        alone = figures["runs"]
        for which, run in figures["runs"].items():
            used = run["processor seconds"]
            one = alone["one process, S3" if "S3" in which else "one process"]["processor seconds"]["driver"]
            total = used["driver"] + used["workers"]
            worker = run["megabytes"]["worker"]
            lines.append(
                [
                    titles[name],
                    which,
                    f"{total:.0f} s",
                    f"{total / one:.2f}",
                    f"{run['megabytes']['driver']:,.0f} MB",
                    f"{worker:,.0f} MB" if worker else "",
                    f"{run['bytes sent over size']:.3f}" if "S3" in which else "",
                ]
            )
    head = ["rows x classes", "where", "processor", "over one process", "driver", "a worker", "fetched over size"]
    return markdown_table(head, lines)


def scaleout_more_section(document: dict[str, Any]) -> str:
    """What follows for sizes that were not measured, and what was besides."""
    figures = document["figures"]
    lines = []
    for name, title, rows in (("long", "10 classes", 16_000_000), ("wide", "1,000 classes", 200_000)):
        predicted = figures[name]["predicted"]
        each = SHARDS * predicted["seconds of a shard"] / rows
        lines.append(
            f"- **{title}**: {each * 1e6:.2g} s of processor time for a million rows, so {each * 1e10 / 3600:,.0f} "
            "hours of a core for 10 B rows in 10,000 shards. Checked at two sizes: "
            f"{predicted['predicted']} s were predicted for {SHARDS} shards from 10 and 30 of them, "
            f"{predicted['measured']} s measured."
        )
    merged, compared = figures["merged"], figures["compared"]
    lines.append(
        f"- **{merged['states']:,} states of {merged['classes']:,} classes**, "
        f"{bytes_text(merged['bytes of a state'])} each, are merged by one process in {merged['seconds']:.0f} s and "
        f"{merged['megabytes']:,.0f} MB, its imports included."
    )
    lines.append(
        f"- **Two models of {SHARDS} shards**, {compared['rows']:,} rows each, compared on Ray: of "
        f"{compared['values']:,} values the largest difference from two single files is {compared['difference']:.1e}."
    )
    filled = [textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in lines]
    return "\n".join([*filled, "", "Not reached:", "", *not_reached(document["checks"])])


def not_reached(checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of each quantity that had an upper limit in some runs and was above it: the limit, and what was measured."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for check in checks:
        if not check["passed"]:
            found.setdefault(check["name"].rpartition(": ")[2], []).append(check)
    lines = []
    for name, short in found.items():
        runs = sum(check["name"].endswith(name) for check in checks)
        often = f" in {len(short)} of {runs} runs" if runs > 1 else ""
        measured = _range([check["measured"] for check in short])
        lines.append(f"- {name}: at most {short[0]['at_most']:,} wanted, {measured} measured{often}")
    return lines


def _range(values: Sequence[float]) -> str:
    low, high = (f"{value:,.4g}" if value < 100 else f"{value:,.0f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


SECTIONS = {
    "scaleout": scaleout_section,
    "scaleout-more": scaleout_more_section,
    "scaling-training": training_section,
    "scaling-auxiliaries": auxiliaries_section,
    "scaling-evaluation": evaluation_section,
    "scaling-data": data_section,
    "scaling-predictions": predictions_section,
    "streams": streams_section,
}
"""Marks of docs/scaling.md, and what goes between them."""
