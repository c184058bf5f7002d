"""The tables of docs/scaling.md: what the model says about sizes that nobody has run, and how far it was right."""

import math
import textwrap
from dataclasses import dataclass, fields
from typing import Any

from benchmarks.reporting import markdown_table
from benchmarks.scaling_counts import network
from benchmarks.scaling_model import (
    CHOICE_BYTES,
    FLOAT,
    HALF,
    Hardware,
    Job,
    Rates,
    checkpoint_bytes,
    classwise_bytes,
    decode_seconds,
    epoch_hours,
    evaluation_seconds,
    memory_loader_bytes,
    merge_rounds,
    prediction_bytes,
    step_flops,
    step_seconds,
    stream_index_bytes,
    traffic,
    training_memory,
    update_bytes,
)
from counterpoise._arrays import rows_at_a_time
from counterpoise.models import Backbone
from counterpoise.predictions.parquet import most_rows

SHAPE = (3, 224, 224)
PRIMARY, AUXILIARY = Backbone("resnet50", small_images=False), Backbone("resnet18", small_images=False)
IMAGENET, BILLION = 1_281_167, 10**9
CLASSES = (1_000, 21_841, 1_000_000)
WORKERS = 1_000
ROW_GROUP = 1_000

SIZES = (
    (1, 256, IMAGENET, 1_000, False),
    (1, 256, IMAGENET, 21_841, False),
    (1, 256, BILLION, 1_000, False),
    (8, 256, IMAGENET, 1_000, False),
    (8, 256, BILLION, 21_841, False),
    (8, 256, BILLION, 1_000_000, False),
    (1_000, 32, BILLION, 1_000, False),
    (1_000, 32, 10 * BILLION, 21_841, False),
    (1_000, 256, 10 * BILLION, 21_841, False),
    (1_000, 32, 10 * BILLION, 1_000_000, False),
    (1_000, 32, 10 * BILLION, 1_000_000, True),
)
"""Devices, images on each in a step, images of an epoch, classes, whether FSDP2 shards."""

AUXILIARIES = (
    None,
    Backbone("resnet10", width=16, small_images=False),
    Backbone("resnet10", small_images=False),
    Backbone("resnet18", width=32, small_images=False),
    AUXILIARY,
    Backbone("resnet34", small_images=False),
    PRIMARY,
)


@dataclass(frozen=True)
class Assumptions:
    """A GPU and its network, which nobody has measured here; every one is an option of the command."""

    peak_flops: float = 3.12e14
    utilisation: float = 0.2
    memory: float = 8e10
    memory_bandwidth: float = 1.5e12
    link: float = 2e11
    network: float = 2e10
    latency: float = 2e-5
    cores: int = 8

    def hardware(self, *, decode: float, decode_each: float) -> Hardware:
        """With the decoder's measured speed."""
        return Hardware(
            flops=self.peak_flops * self.utilisation,
            memory_bandwidth=self.memory_bandwidth,
            link=self.link,
            network=self.network,
            latency=self.latency,
            cores=self.cores,
            decode=decode,
            decode_each=decode_each,
        )


def training_rows(hardware: Hardware) -> list[dict[str, Any]]:
    """ResNet50 with a ResNet18 beside it, at the sizes of the table."""
    rows = []
    for devices, batch, images, classes, sharded in SIZES:
        primary, auxiliary = (network(each, classes=classes, shape=SHAPE, half=True) for each in (PRIMARY, AUXILIARY))
        job = Job(primary, (auxiliary,), classes, images, batch, devices, sharded=sharded)
        step, memory = step_seconds(job, hardware), training_memory(job)
        rows.append(
            {
                "devices": devices,
                "strategy": "FSDP2" if sharded else "DDP" if devices > 1 else "",
                "batch": batch,
                "images": images,
                "classes": classes,
                "memory": memory.peak,
                "traffic": traffic(job),
                "step": step.total,
                "communicating": step.communicating,
                "hours": epoch_hours(job, hardware),
                "cores": batch / step.total * decode_seconds(job.pixels, hardware),
                "checkpoint": checkpoint_bytes(job),
            }
        )
    return rows


def auxiliary_rows() -> list[dict[str, Any]]:
    """A step of ResNet50 with other auxiliaries, over one without."""
    classes, batch, rows = CLASSES[0], 256, []
    primary = network(PRIMARY, classes=classes, shape=SHAPE, half=True)
    alone = Job(primary, (), classes, 1, batch, 8)
    for backbone in AUXILIARIES:
        beside = () if backbone is None else (network(backbone, classes=classes, shape=SHAPE, half=True),)
        job = Job(primary, beside, classes, 1, batch, 8)
        rows.append(
            {
                "name": "" if backbone is None else f"{backbone.name}, width {backbone.width}",
                "flops": step_flops(job) / step_flops(alone),
                "memory": training_memory(job).peak / training_memory(alone).peak,
                "traffic": traffic(job) / traffic(alone),
            }
        )
    return rows


def evaluation_rows(rates: Rates) -> list[dict[str, Any]]:
    """Sums against files, by the number of classes."""
    rows = []
    for classes in CLASSES:
        batch = rows_at_a_time(4 * classes)
        seconds = [
            evaluation_seconds(samples=10**6, classes=classes, batch=each, rates=rates)
            for each in (batch, max(batch, 256))
        ]
        rows.append(
            {
                "classes": classes,
                "state": classwise_bytes(classes),
                "update": update_bytes(samples=256, classes=classes),
                "merged": merge_rounds(WORKERS) * classwise_bytes(classes),
                "million_files": seconds[0],
                "million_stream": seconds[1],
                "float32": prediction_bytes(samples=10 * BILLION, classes=classes, precision=FLOAT),
                "float16": prediction_bytes(samples=10 * BILLION, classes=classes, precision=HALF),
                "rows_of_file": most_rows(classes),
            }
        )
    return rows


def data_rows() -> list[dict[str, Any]]:
    """What loaders hold, by the number of images."""
    return [
        {
            "images": images,
            "memory": memory_loader_bytes(images, shape=SHAPE),
            "index": stream_index_bytes(images, row_group=ROW_GROUP, excluded=False),
            "excluded": stream_index_bytes(images, row_group=ROW_GROUP, excluded=True),
            "choice": CHOICE_BYTES * images,
        }
        for images in (IMAGENET, BILLION, 10 * BILLION)
    ]


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
        "index": f"stream, row groups of {ROW_GROUP:,}, in every process",
        "excluded": "the same where any row is left out",
        "choice": "while `counterpoise train` chooses the rows to hold out, in every process",
    }
    lines = [[title, *(bytes_text(row[key]) for row in rows)] for key, title in names.items()]
    return markdown_table([f"images of {SHAPE[1]} pixels", *(count_text(row["images"]) for row in rows)], lines)


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


SECTIONS = {
    "scaling-training": training_section,
    "scaling-auxiliaries": auxiliaries_section,
    "scaling-evaluation": evaluation_section,
    "scaling-data": data_section,
    "scaling-predictions": predictions_section,
}
"""Marks of docs/scaling.md, and what goes between them."""
