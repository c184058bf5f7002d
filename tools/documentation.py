"""Writes measured figures into the documentation: `python -m tools.documentation [--check]`.

Figures come from `benchmarks/results/NAME.json`, each the standard output of `python -m benchmarks.NAME`, from the
records of the studies in `study/results`, `study/results-finetune` and `study/results-cost`, and from the benchmark's
plan. Each goes between a pair of marks, `<!-- figures: NAME -->` and `<!-- end -->`. What a page's own blocks print is
`tools/transcript.py --write`'s.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.coverage import is_clear
from counterpoise.metrics.estimates import KEY_INFO, Key
from counterpoise_study.collected import collect
from counterpoise_study.hardware_timing import assumed_timing
from counterpoise_study.plan import plan_of, plan_text
from counterpoise_study.store import Store
from counterpoise_study.studies import request_of, studies_at
from tools import cost_tables, finetuning_tables, guide_examples, scaling_tables, study_tables
from tools.comparison_tables import comparison_section
from tools.coverage_tables import few_errors_section, paired_section
from tools.decision_tables import gate_section, slices_section
from tools.guarantees_tables import guarantees_section
from tools.markdown import markdown_table, replace_section
from tools.monitor_tables import monitor_section
from tools.remote_tables import remote_section
from tools.study_claims import claims_section, verdicts_section

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PLANNED_FLOPS = 3e13
"""Operations a second that the documentation plans with, as its command says."""


def main() -> None:
    """Rewrite the pages, or say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 where a page is out of date")
    options = parser.parse_args()
    pages = {ROOT / "docs" / "benchmark.md": {"plan": paper_plan()}}
    for name, (page, section) in SECTIONS.items():
        pages.setdefault(ROOT / "docs" / page, {})[name] = section(result(name))
    study = study_tables.Study(Store(ROOT / "study" / "results"))
    for name, (page, shown) in STUDY_SECTIONS.items():
        pages.setdefault(ROOT / page, {})[name] = shown(study)
    (finetuning,) = collect(Store(ROOT / "study" / "results-finetune"))
    for name, (page, drawn) in finetuning_tables.SECTIONS.items():
        pages.setdefault(ROOT / page, {})[name] = drawn(finetuning)
    costs = {each.request.study: each for each in collect(Store(ROOT / "study" / "results-cost"))}
    for name, (page, of_study, tabled) in cost_tables.SECTIONS.items():
        pages.setdefault(ROOT / page, {})[name] = tabled(costs[of_study])
    for name, (page, said) in guide_examples.SECTIONS.items():
        pages.setdefault(ROOT / page, {})[name] = said()
    stale = []
    for path, sections in pages.items():
        text = path.read_text()
        fresh = text
        for name, body in sections.items():
            fresh = replace_section(fresh, name, body)
        if fresh != text:
            stale.append(str(path.relative_to(ROOT)))
            if not options.check:
                path.write_text(fresh)
    if stale:
        print(f"{'out of date' if options.check else 'written'}: {', '.join(stale)}", file=sys.stderr)
    sys.exit(1 if stale and options.check else 0)


def result(name: str) -> dict[str, Any]:
    """What a benchmark measured; of several sections of one benchmark, the first word is its name."""
    document: dict[str, Any] = json.loads((RESULTS / f"{name.partition('-')[0]}.json").read_text())
    return document


def paper_plan() -> str:
    """What all studies would take at the paper's scale, on a device of a stated speed."""
    requests = [request_of(study, "paper", seeds=range(3)) for study in studies_at("paper")]
    return f"```text\n{plan_text(plan_of(requests, timing=assumed_timing(PLANNED_FLOPS)))}\n```"


def coverage_section(document: dict[str, Any]) -> str:
    """A table over error and sample size, and what holds over all scenarios."""
    rows = document["figures"]["ece"]
    sizes = sorted({row["samples"] for row in rows})
    lines = [
        "| true ECE | " + " | ".join(f"N = {size:,}" for size in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    for error in sorted({row["error"] for row in rows}):
        cells = []
        for size in sizes:
            here = [row for row in rows if row["error"] == error and row["samples"] == size]
            lowest = min(row["coverage"] for row in here)
            width = sum(row["width"] for row in here) / len(here)
            cells.append(f"{lowest:.1%} ({100 * width:.1f})")
        lines.append(f"| {100 * error:g}% | " + " | ".join(cells) + " |")
    clear = [row["coverage"] for row in rows if is_clear(row["error"], row)]
    floors = [check["measured"] for check in document["checks"] if check["name"].startswith("noise floor")]
    worst_floor = max(abs(floor - 1) for floor in floors)
    summary = (
        f"Lowest coverage of the 95% interval over the shapes and distributions, and in brackets its mean width in "
        f"points. Over all {len(rows)} scenarios it is at least {min(row['coverage'] for row in rows):.1%}; in the "
        f"{len(clear)} where the error exceeds three noise floors, with 30 errors or more, it is between "
        f"{min(clear):.1%} and {max(clear):.1%}. The noise floor is within {worst_floor:.1%} of the simulated one."
    )
    return "\n".join([*lines, "", summary])


def speed_section(document: dict[str, Any]) -> str:
    """Times over one softmax, and megabytes."""
    figures = document["figures"]
    lines = ["| classwise ECE, 50,000 x 1,000, one thread | time over one `torch.softmax` of that shape |", "|---|---|"]
    names = {
        "counterpoise": "`Stream(ClasswiseCalibration)`, values checked, interval included",
        "plain bincounts": "a bin index for every probability, then bincounts; no checks, no interval",
        "torch-uncertainty": "torch-uncertainty's `ClasswiseCalibrationError`",
        "torchmetrics, class by class": "torchmetrics' binary error, class by class",
    }
    lines += [f"| {title} | {figures['relative_to_softmax'][name]:.1f} |" for name, title in names.items()]
    lines += ["", "| 50,000 samples streamed, K = | " + " | ".join(figures["megabytes_added_by_stream"]) + " |"]
    lines += ["|---|" + "---|" * len(figures["megabytes_added_by_stream"])]
    for name in ("counterpoise", "torch-uncertainty", "torchmetrics"):
        cells = [
            f"{sizes[name]:,.0f} MB added to the peak" if name in sizes else ""
            for sizes in figures["megabytes_added_by_stream"].values()
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def evaluate_section(document: dict[str, Any]) -> str:
    """Time and memory of scoring files."""
    figures = document["figures"]
    rows = [
        f"| {size}, Parquet | {figures[ratio]:.1f} | {figures[peak]:,.0f} MB |"
        for size, ratio, peak in (
            (f"{figures['rows']:,} x 10", "score_over_scan", "megabytes_long"),
            ("50,000 x 1,000", "wide_score_over_scan", "megabytes_wide"),
        )
    ]
    head = [
        "| file | time over a bare scan that computes only the softmax | peak memory, imports included |",
        "|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def float16_section(document: dict[str, Any]) -> str:
    """What half precision changes in each measure."""
    (file,) = list(document["figures"]["files"].values())[:1]
    lines = ["| metric | value | float16 logits | float16 probabilities |", "|---|---|---|---|"]
    for name, row in file["logits"].items():
        info = KEY_INFO[Key(name)]
        digits = 3 if info.scale > 1 else 5
        cells = [f"{file[kind][name]['change']:+.{digits}f}" for kind in ("logits", "probabilities")]
        lines.append(
            f"| {info.title.strip()}, {info.unit or 'no unit'} | {row['value']:.{digits}f} | {' | '.join(cells)} |"
        )
    return "\n".join(
        [*lines, "", f"{file['samples']:,} predictions of a ResNet18 of width 16 for the CIFAR-10 test set."]
    )


def training_section(document: dict[str, Any]) -> str:
    """What the engine costs, and what the data pipeline delivers."""
    figures = document["figures"]
    return "\n".join(
        [
            "| MTE-1, two ResNet18 of width 16, 100 CIFAR-10 images, bfloat16 on a CPU | |",
            "|---|---|",
            f"| a step through engine and data pipeline, over a bare loop | {figures['engine_over_bare']:.3f} |",
            f"| images per second from memory, augmented | {figures['memory_images_per_second']:,.0f} |",
            f"| by torchvision, v2 transforms, two workers | {figures['torchvision_images_per_second']:,.0f} |",
        ]
    )


def interruptions_section(document: dict[str, Any]) -> str:
    """How many killed runs ended as if nothing had happened, and where the kills fell."""
    figures, (check, *others) = document["figures"], document["checks"]
    places = ", ".join(f"{count} {place}" for place, count in figures["killed in the state"].items())
    text = (
        f"{check['measured']} of {figures['trials']} runs, killed at a random moment and resumed, ended with the same "
        f"SHA-256 over the complete state and the same losses. The kills fell: {places}."
    )
    if others:
        victims = ", ".join(f"{count} {role}" for role, count in figures["killed"].items())
        text += f" They hit: {victims}. The other processes had ended after at most {others[0]['measured']:.1f} s."
    return textwrap.fill(text, width=120)


def killed_section(document: dict[str, Any]) -> str:
    """The same of runs with every optimizer, pipeline and method, and what they left behind."""
    figures = document["figures"]["kills"]
    text = interruptions_section({"figures": figures, "checks": document["checks"][:1]})
    return textwrap.fill(f"{text} They left {figures['temporary files left']} temporary files.", width=120)


def disk_section(document: dict[str, Any]) -> str:
    """What came of a grid whose disk or clock fails."""
    rows = [
        (
            name,
            f"{each['faults']:,}",
            f"{each['stops']}",
            f"{each['cells']}",
            *(f"{each[kind]}" for kind in ("committed_twice", "other_records", "other_tables")),
        )
        for name, each in document["figures"].items()
    ]
    heads = ("", "faults", "stops", "cells", "committed twice", "other records", "other tables")
    return markdown_table(heads, rows)


def export_section(document: dict[str, Any]) -> str:
    """What the exported files give and take."""
    figures = document["figures"]
    lines = [
        f"| {figures['images']:,} images | largest logit difference | other predictions | time over the model |",
        "|---|---|---|---|",
    ]
    for name, differences in figures["largest_difference"].items():
        largest, others = max(differences.values()), figures["other_predictions"][name]
        lines.append(f"| {name} | {largest:.1e} | {others} | {figures['time_over_model'][name]:.2f} |")
    batches = ", ".join(sorted(next(iter(figures["largest_difference"].values())), key=int))
    apart = max(figures["largest_probability_difference"].values())
    summary = (
        f"ResNet18 of width 16, float32, batches of {batches}; weights in safetensors are equal bit for bit. With a\n"
        f"temperature folded in, probabilities are within {apart:.1e} of those of `TemperatureScaling`."
    )
    return "\n".join([*lines, "", summary])


def studies_section(document: dict[str, Any]) -> str:
    """What all studies take at smoke scale."""
    figures = document["figures"]
    text = (
        f"All {figures['studies']} studies at smoke scale, {figures['seeds']} seeds: {figures['cells']} cells, shared "
        f"by {figures['processes']} processes of one thread on two CPU cores, take {figures['seconds']:.0f} s from "
        f"nothing to the page (`{document['command']}`, in every CI run)."
    )
    return textwrap.fill(text, width=120)


def grid_section(document: dict[str, Any]) -> str:
    """What scheduling costs."""
    overhead = document["figures"]["overhead"]
    text = (
        f"Scheduling {overhead['tasks']} tasks that do nothing costs {overhead['mean_milliseconds']:.1f} ms each "
        f"without an engine (`{document['command']}`)."
    )
    return textwrap.fill(text, width=120)


def killed_grid_section(document: dict[str, Any]) -> str:
    """What kills change in a grid on Ray."""
    faults = document["figures"]["grid"]
    text = (
        f"In a grid of {faults['cells']} cells on a local Ray cluster of two workers, SIGKILL ended "
        f"{faults['killed_workers']} workers in mid-cell and {faults['killed_coordinators']} coordinators: "
        f"{faults['committed_twice']} tasks were committed more than once, {faults['other_records']} records and "
        f"{faults['other_tables']} files of tables differ from those of the undisturbed grid by a byte, and "
        f"{faults['left_behind']} workers were left behind (`{document['command']}`)."
    )
    return textwrap.fill(text, width=120)


def method_cost_section(document: dict[str, Any]) -> str:
    """Every method beside cross-entropy: time and memory of training, time of inference."""
    rows = [
        (
            found["title"],
            f"{found['training_seconds_ratio']:.2f}",
            f"{found['peak_megabytes_ratio']:.2f} ({found['peak_megabytes']:,.0f} MB)",
            f"{found['inference_seconds_ratio']:.1f}",
        )
        for found in document["figures"]["methods"].values()
    ]
    table = markdown_table(("over cross-entropy", "training time", "peak memory", "inference time"), rows)
    short = scaling_tables.not_reached(document["checks"])
    return "\n".join([table, "", "Not reached:", "", *short]) if short else table


def diagnosis_section(document: dict[str, Any]) -> str:
    """How far a run was from its equations, and where both of its models ended."""
    figures = document["figures"]
    found = {check["name"]: check["measured"] for check in document["checks"]}
    deviations = [(name, f"{value:.1e}" if value else "0") for name, value in found.items()]
    names = ["primary", *(f"auxiliary {number}" for number in range(1, len(figures["curves"])))]
    ends = [
        (
            name,
            f"{100 * last['training_accuracy']:.1f}",
            f"{last['training_nll']:.3f}",
            f"{100 * last['validation_accuracy']:.1f}",
            f"{last['validation_nll']:.3f}",
        )
        for name, (*_, last) in zip(names, figures["curves"], strict=True)
    ]
    heads = ("in the last epoch", "training accuracy, %", "training NLL", "validation accuracy, %", "validation NLL")
    checked = ("difference", f"largest of {figures['steps']:,} steps")
    return markdown_table(checked, deviations) + "\n\n" + markdown_table(heads, ends)


SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "coverage": ("metrics.md", coverage_section),
    "coverage-few-errors": ("metrics.md", few_errors_section),
    "coverage-pairs": ("metrics.md", paired_section),
    "slices": ("evaluate.md", slices_section),
    "gate": ("ship_or_not.md", gate_section),
    "guarantees": ("accept_or_refer.md", guarantees_section),
    "monitor": ("still_fine.md", monitor_section),
    "metrics": ("metrics.md", speed_section),
    "evaluate": ("evaluate.md", evaluate_section),
    "float16": ("predictions.md", float16_section),
    "training": ("runs.md", training_section),
    "interruptions": ("runs.md", interruptions_section),
    "interruptions_webdataset": ("runs.md", interruptions_section),
    "interruptions_finetuning": ("runs.md", interruptions_section),
    "interruptions_remote": ("runs.md", interruptions_section),
    "faults_kills": ("runs.md", killed_section),
    "faults_grid": ("benchmark.md", killed_grid_section),
    "faults_disk": ("benchmark.md", disk_section),
    "export": ("runs.md", export_section),
    "studies": ("benchmark.md", studies_section),
    "grid": ("benchmark.md", grid_section),
    "method_cost": ("cost.md", method_cost_section),
    "diagnosis": ("study.md", diagnosis_section),
    "comparison": ("comparison.md", comparison_section),
    "remote": ("scaling.md", remote_section),
    **{name: ("scaling.md", section) for name, section in scaling_tables.SECTIONS.items()},
}
"""By benchmark: the page that shows its figures, and how."""
STUDY_SECTIONS = {
    **study_tables.SECTIONS,
    "study-verdicts": ("docs/study.md", verdicts_section),
    "study-claims": ("docs/study.md", claims_section),
}
"""By name: the page that shows this of the reduced-scale study, and how."""


if __name__ == "__main__":
    main()
