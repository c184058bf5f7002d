"""What the machine at hand does: seconds, memory and bytes on the wire of real steps, best of several."""

import io
import json
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from benchmarks.scaling_counts import network
from benchmarks.scaling_model import Job
from counterpoise import MutualTransport, Stream
from counterpoise.functional.transport import mutual_transport
from counterpoise.metrics import ClasswiseCalibration, Performance, TopLabelCalibration
from counterpoise.metrics.inputs import prediction_table
from counterpoise.models import Backbone, build_model
from counterpoise.predictions import Predictions, PredictionWriter

ALPHA = 0.8
_BYTES_SENT = 200
"""Offset of `tcpi_bytes_sent` in Linux's `struct tcp_info`; `tcpi_bytes_retrans` follows."""


@dataclass(frozen=True)
class Size:
    """A training step that can be run: MTE-1 on images of noise, float32 on a CPU."""

    primary: Backbone
    auxiliary: Backbone
    batch: int
    classes: int
    pixels: int = 32

    def job(self, *, devices: int = 1) -> Job:
        """What the model is asked about."""
        shape = (3, self.pixels, self.pixels)
        primary, auxiliary = (
            network(each, classes=self.classes, shape=shape, half=False) for each in (self.primary, self.auxiliary)
        )
        return Job(primary, (auxiliary,), self.classes, self.batch, self.batch, devices, half=False, pixels=0)

    def __str__(self) -> str:
        networks = " + ".join(f"{each.name} of width {each.width}" for each in (self.primary, self.auxiliary))
        return f"{networks}, {self.batch} images, {self.classes:,} classes"


def objective(size: Size) -> MutualTransport:
    """Both networks, in the layout that the engine trains them in."""
    primary, auxiliary = (
        build_model(each, classes=size.classes, seed=seed) for seed, each in enumerate((size.primary, size.auxiliary))
    )
    model = MutualTransport(primary, [auxiliary], ALPHA)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def stepper(size: Size, *, parallel: bool = False) -> Callable[[], None]:
    """A complete step; gradients stay allocated, as in DDP's buckets."""
    model = objective(size)
    optimizer = torch.optim.SGD(model.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9, weight_decay=5e-4)
    images, labels = torch.randn(size.batch, 3, size.pixels, size.pixels), torch.randint(size.classes, (size.batch,))
    images = images.to(memory_format=torch.channels_last)
    trained = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True) if parallel else model

    def step() -> None:
        trained(images, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def best_seconds(runs: Sequence[Callable[[], object]], *, repetitions: int) -> list[float]:
    """The shortest CPU time of each, of all threads of this process, taking turns after a first call."""
    for run in runs:
        run()
    best = [float("inf")] * len(runs)
    for _ in range(repetitions):
        for index, run in enumerate(runs):
            started = time.process_time()
            run()
            best[index] = min(best[index], time.process_time() - started)
    return best


def loss_run(*, samples: int, classes: int, auxiliaries: int = 1) -> Callable[[], None]:
    """The loss of random logits, forward and backward."""
    logits = [torch.randn(samples, classes, requires_grad=True) for _ in range(1 + auxiliaries)]
    labels = torch.randint(classes, (samples,))

    def run() -> None:
        mutual_transport(logits[0], logits[1:], labels, alpha=ALPHA).loss.backward()  # type: ignore[no-untyped-call]

    return run


def evaluation_run(*, samples: int, classes: int) -> Callable[[], None]:
    """A batch of confident predictions through all exact sums."""
    logits, labels = predictions(samples=samples, classes=classes)
    metrics = (Performance(), TopLabelCalibration(), ClasswiseCalibration(num_classes=classes))
    streams: list[Stream] = [Stream(metric) for metric in metrics]

    def run() -> None:
        batch = prediction_table(logits=logits, labels=labels).checked_rows()
        for stream in streams:
            stream.update_checked(batch)

    return run


def predictions(*, samples: int, classes: int) -> tuple[Tensor, Tensor]:
    """Logits of which the label's is mostly the largest."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(samples, classes, generator=generator)
    labels = torch.randint(classes, (samples,), generator=generator)
    logits[torch.arange(samples), labels] += 6
    return logits, labels


def file_bytes(*, samples: int, classes: int, precision: str) -> int:
    """Size of a real file of predictions."""
    logits, labels = predictions(samples=samples, classes=classes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.parquet"
        with PredictionWriter(path) as writer:
            writer.append(Predictions.of(logits=logits.numpy().astype(precision), labels=labels))
        return path.stat().st_size


def decode_run(*, width: int, height: int, size: int) -> Callable[[], object]:
    """A smooth JPEG picture of some 90% quality through the library's decoder, resized as a stream does it."""
    from PIL import Image

    from counterpoise.data.decode import decoded

    random = np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8))
    encoded = io.BytesIO()
    coarse.resize((width, height), Image.Resampling.BICUBIC).save(encoded, "JPEG", quality=90)
    return lambda: decoded(encoded.getvalue(), channels=3, size=size)


def peak_added(run: Callable[..., None], *arguments: object) -> float:
    """Bytes that a function adds to the resident memory of a new process, at its peak (Linux)."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    # Else freed memory may stay with the process, and count.
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    process = context.Process(target=_added, args=(sender, run, arguments))
    process.start()
    sender.close()
    added: float = receiver.recv()
    process.join()
    return added


def _added(sender: Any, run: Callable[..., None], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    stepper(Size(Backbone("cnn", 2), Backbone("cnn", 2), 2, 2))()  # libraries load what they need
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _resident("VmRSS")
    run(*arguments)
    sender.send(_resident("VmHWM") - before)


def _resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(field))


def train_twice(size: Size) -> None:
    """Two steps, the second with momentum."""
    step = stepper(size)
    step()
    step()


def evaluate_twice(samples: int, classes: int) -> None:
    """Two batches through a classwise stream."""
    logits, labels = predictions(samples=samples, classes=classes)
    stream = Stream(ClasswiseCalibration(num_classes=classes))
    for _ in range(2):
        stream.update(logits=logits, labels=labels)


@dataclass(frozen=True)
class Together:
    """What two processes over gloo's loopback did.

    Attributes:
        payload: bytes that were reduced, of one buffer.
        sent: bytes that a rank put on the wire for it.
        seconds: CPU time of that in a rank, its threads that copy included.
        latency: the same of reducing one number.
        gradients: bytes of the gradients of primary and auxiliary in a DDP step.
        gradients_sent: bytes that a rank put on the wire in that step.
        steps: CPU seconds of a DDP step of each size in a rank.
    """

    payload: int
    sent: int
    seconds: float
    latency: float
    gradients: int
    gradients_sent: int
    steps: list[float]


def together(sizes: Sequence[Size] = (), *, repetitions: int = 5, world: int = 2) -> Together:
    """Run an all-reduce and DDP steps in processes of one thread each."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, args=(world, folder, tuple(sizes), repetitions), nprocs=world)  # type: ignore[no-untyped-call]
        return Together(**json.loads((Path(folder) / "result.json").read_text()))


def _rank(rank: int, world: int, folder: str, sizes: tuple[Size, ...], repetitions: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    result = _together(sizes, repetitions)
    if rank == 0:
        (Path(folder) / "result.json").write_text(json.dumps(vars(result)))
    dist.barrier()
    dist.destroy_process_group()


def _together(sizes: tuple[Size, ...], repetitions: int) -> Together:
    """What several processes measure; no model outlives it, for a group whose last holder is a model can hang."""
    buffer, number = torch.zeros(1 << 22), torch.zeros(1)
    seconds, latency = best_seconds(
        [lambda: dist.all_reduce(buffer), lambda: dist.all_reduce(number)], repetitions=repetitions
    )
    linear = MutualTransport(nn.Linear(1000, 500), [nn.Linear(1000, 500)], ALPHA)
    parallel = nn.parallel.DistributedDataParallel(linear)
    images, labels = torch.zeros(1, 1000), torch.zeros(1, dtype=torch.long)
    return Together(
        payload=buffer.nbytes,
        sent=_sent_by(lambda: dist.all_reduce(buffer)),
        seconds=seconds,
        latency=latency,
        gradients=sum(parameter.nbytes for parameter in linear.parameters()),
        gradients_sent=_sent_by(lambda: parallel(images, labels=labels).loss.backward()),
        steps=best_seconds([stepper(size, parallel=True) for size in sizes], repetitions=repetitions),
    )


def _sent_by(run: Callable[[], object]) -> int:
    """Bytes that this process puts on the wire, by the kernel's own count for its connections (Linux)."""
    run()
    dist.barrier()
    before = bytes_sent()
    run()
    return bytes_sent() - before


def bytes_sent() -> int:
    """Bytes that the connections of this process have put on the wire, by the kernel's own count (Linux)."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
                    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    # On a busy machine a segment may be sent twice; that is no part of what was to be sent.
                    sent, repeated = struct.unpack_from("QQ", state, _BYTES_SENT)
                    total += sent - repeated
        except (FileNotFoundError, OSError):  # closed meanwhile
            continue
    return total
