"""What the model says about sizes that nobody has run: a dictionary for each row of a table of docs/scaling.md."""

from dataclasses import dataclass
from typing import Any

from benchmarks.scaling_counts import network
from benchmarks.scaling_model import (
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
from counterpoise._blocks import rows_at_a_time
from counterpoise.models import Backbone
from counterpoise.predictions.parquet import most_rows

SHAPE = (3, 224, 224)
PRIMARY, AUXILIARY = Backbone("resnet50", small_images=False), Backbone("resnet18", small_images=False)
IMAGENET, BILLION = 1_281_167, 10**9
CLASSES = (1_000, 21_841, 1_000_000)
WORKERS = 1_000
ROW_GROUP, VALIDATION = 1_000, 50_000

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
            "index": stream_index_bytes(images, row_group=ROW_GROUP, excluded=VALIDATION),
            "large_groups": stream_index_bytes(images, row_group=10 * ROW_GROUP, excluded=VALIDATION),
        }
        for images in (IMAGENET, BILLION, 10 * BILLION)
    ]
