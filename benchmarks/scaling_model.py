"""What training with MTE and evaluating cost at any size: pure functions over a `Job` and its `Hardware`.

Bytes per sample and class are counted in the library's own code; `python -m benchmarks.scaling` counts them again.
"""

import math
from dataclasses import dataclass

from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise_study.cost import BACKWARD

FLOAT, HALF, INTEGER = 4, 2, 8
BUCKET_BYTES = 25 * 2**20
"""Gradients that DDP sends at a time."""

LOSS_PEAK_ALONE, LOSS_PEAK, LOSS_PEAK_EACH = 12, 16, 14
"""Bytes per sample and class of the loss at its peak, beside the logits: of cross-entropy alone; of mutual transport,
and what each auxiliary adds to it."""

LOSS_MOVED, LOSS_MOVED_EACH = 52, 224
"""Bytes per sample and class that it reads and writes, forward and backward, and for each auxiliary."""

OPTIMIZER_MOVED = 44
"""Bytes per parameter that a step of SGD with momentum and weight decay reads and writes."""

BIN_SUMS = 5
"""Numbers of 8 bytes that `BinSums` keeps for each bin."""

IMAGE_BYTES = 2 * INTEGER
"""Label and id of an image in memory, beside its pixels."""

ORDER_BYTES = 48
"""Bytes per image while `MemoryLoader` shuffles."""

ROW_GROUP_BYTES = 5 * INTEGER
"""Bytes per row group that a process of `StreamLoader` holds in an epoch: where it is, its first row, how many of its
rows take part, its turn, and the position after it."""

EXCLUDED_BYTES = INTEGER
"""Bytes per row that a stream leaves out, by its number."""

FRESH_BYTES = 1 << 25
"""Arrays beyond this are fresh memory in every batch: the largest that the C library keeps for the next one."""


@dataclass(frozen=True)
class Network:
    """What is counted of a network for one number of classes, one size of images and one precision.

    Attributes:
        name: of the backbone.
        parameters: all of them.
        largest_unit: parameters of the largest child, which FSDP2 gathers as a whole.
        units: children that have parameters.
        flops: of the forward pass of an image.
        activations: bytes that an image keeps for the backward pass, beside itself.
        image: bytes of an image, which all networks share.
    """

    name: str
    parameters: int
    largest_unit: int
    units: int
    flops: float
    activations: int
    image: int


@dataclass(frozen=True)
class Hardware:
    """One device and what connects it with others.

    Attributes:
        flops: reached in a second of training, all that networks do besides included.
        memory_bandwidth: bytes a second, for what is not counted as FLOPs: the loss and the optimizer.
        activation_bandwidth: bytes a second for activations, where their time is counted apart from `flops`.
        node: devices of a machine.
        link: bytes a second that a device sends within its machine.
        network: bytes a second that a device sends to other machines.
        latency: seconds of a message.
        cores: CPU cores for each device, which decode.
        decode: pixels a second that a core decodes.
        decode_each: seconds that it spends on an image besides, such as resizing it.
    """

    flops: float
    memory_bandwidth: float
    link: float
    network: float
    latency: float
    cores: int
    decode: float
    decode_each: float = 0.0
    node: int = 8
    activation_bandwidth: float = math.inf


@dataclass(frozen=True)
class Rates:
    """Seconds of evaluating on a core.

    Attributes:
        element: for a probability.
        cell: for a bin of a class, in every batch.
        fresh_cell: the same where there are so many that their memory is fresh in every batch.
    """

    element: float
    cell: float
    fresh_cell: float


@dataclass(frozen=True)
class Job:
    """A training by MTE.

    Attributes:
        primary: what ships.
        auxiliaries: what trains beside it; none for cross-entropy alone.
        classes: K.
        images: of an epoch.
        batch: images of a step on each device.
        devices: that share the step.
        half: bfloat16 by autocast; weights, gradients and momentum stay float32.
        sharded: FSDP2 instead of DDP.
        pixels: of an encoded image.
    """

    primary: Network
    auxiliaries: tuple[Network, ...]
    classes: int
    images: int
    batch: int
    devices: int = 1
    half: bool = True
    sharded: bool = False
    pixels: int = 500 * 375

    @property
    def networks(self) -> tuple[Network, ...]:
        """All that train."""
        return (self.primary, *self.auxiliaries)

    @property
    def parameters(self) -> int:
        """Of all networks."""
        return sum(network.parameters for network in self.networks)


@dataclass(frozen=True)
class Memory:
    """Bytes of a device in a training step: what stays, and what a batch adds."""

    state: float
    half_copies: float
    gathered: float
    images: float
    activations: float
    logits: float
    loss: float
    optimizer: float

    @property
    def peak(self) -> float:
        """The larger of the end of the forward pass and the optimizer's step."""
        return self.state + self.gathered + max(self.of_batch + self.half_copies, self.optimizer)

    @property
    def of_batch(self) -> float:
        """What grows with the batch."""
        return self.images + self.activations + self.logits + self.loss


@dataclass(frozen=True)
class Step:
    """Seconds of a step: nothing of the communication is hidden behind the computation; reading is."""

    networks: float
    loss: float
    optimizer: float
    communication: float
    reading: float

    @property
    def total(self) -> float:
        """Of the step."""
        return max(self.networks + self.loss + self.optimizer + self.communication, self.reading)

    @property
    def communicating(self) -> float:
        """Share of the step that goes into communication."""
        return self.communication / self.total


def loss_bytes(*, samples: int, classes: int, auxiliaries: int) -> int:
    """Peak of the loss beside the logits, float32 whatever the precision of the logits; grows with batch x K."""
    return samples * classes * (LOSS_PEAK + LOSS_PEAK_EACH * auxiliaries if auxiliaries else LOSS_PEAK_ALONE)


def training_memory(job: Job) -> Memory:
    """Bytes of each device: weights, gradients and momentum of all networks, and what a batch adds.

    Gradients count in full, as in DDP's buckets; a plain loop that sets them to None has them only as activations go.
    """
    shards = job.devices if job.sharded else 1
    cells = job.batch * job.classes
    largest = max(network.largest_unit for network in job.networks)
    return Memory(
        state=3 * FLOAT * job.parameters / shards,
        # Autocast's copies of gathered weights are kept for the backward pass; they are not sharded.
        half_copies=HALF * job.parameters if job.half else 0,
        # The weights of a unit as a whole, and their gradient before it is scattered.
        gathered=2 * FLOAT * largest if job.sharded else 0.0,
        images=job.batch * job.primary.image,
        activations=job.batch * sum(network.activations for network in job.networks),
        logits=(HALF if job.half else FLOAT) * cells * len(job.networks),
        loss=loss_bytes(samples=job.batch, classes=job.classes, auxiliaries=len(job.auxiliaries)),
        # Weight decay is added to a copy of all gradients, where the step goes over all parameters at once.
        optimizer=FLOAT * job.parameters / shards,
    )


def step_flops(job: Job) -> float:
    """FLOPs of a step on each device: forward and backward through every network."""
    return (1 + BACKWARD) * job.batch * sum(network.flops for network in job.networks)


def reduced_bytes(job: Job) -> int:
    """What the loss reduces in each step over all ranks: its sums, and the sum of the weights."""
    return FLOAT * (2 * len(job.auxiliaries) + 2)


def traffic(job: Job) -> float:
    """Bytes that each device sends in a step: gradients of the primary and of the auxiliaries, all float32.

    DDP: a ring all-reduce, 2 (n-1)/n of the gradients. FSDP2: all-gathers of the weights in the forward and in the
    backward pass and a reduce-scatter of the gradients, (n-1)/n each.
    """
    share = (job.devices - 1) / job.devices
    return share * ((3 if job.sharded else 2) * FLOAT * job.parameters + 2 * reduced_bytes(job))


def collectives(job: Job) -> int:
    """Collective operations of a step, each of which waits for the slowest rank."""
    if job.devices == 1:
        return 0
    if job.sharded:
        return 3 * sum(network.units for network in job.networks) + 1
    return math.ceil(FLOAT * job.parameters / BUCKET_BYTES) + 1


def step_seconds(job: Job, hardware: Hardware) -> Step:
    """How long a step takes."""
    bandwidth = hardware.link if job.devices <= hardware.node else hardware.network
    hops = 2 * math.ceil(math.log2(job.devices))
    activations = job.batch * sum(network.activations for network in job.networks)
    moved = job.batch * job.classes * (LOSS_MOVED + LOSS_MOVED_EACH * len(job.auxiliaries))
    updated = OPTIMIZER_MOVED * job.parameters / (job.devices if job.sharded else 1)
    return Step(
        networks=step_flops(job) / hardware.flops + activations / hardware.activation_bandwidth,
        loss=moved / hardware.memory_bandwidth,
        optimizer=updated / hardware.memory_bandwidth,
        communication=traffic(job) / bandwidth + collectives(job) * hops * hardware.latency,
        reading=job.batch * decode_seconds(job.pixels, hardware) / hardware.cores,
    )


def decode_seconds(pixels: int, hardware: Hardware) -> float:
    """A core's time for an encoded image."""
    return pixels / hardware.decode + hardware.decode_each


def epoch_hours(job: Job, hardware: Hardware) -> float:
    """Hours of an epoch."""
    return job.images / (job.batch * job.devices) * step_seconds(job, hardware).total / 3600


def checkpoint_bytes(job: Job) -> int:
    """Weights and momentum of all networks; under FSDP2 every rank writes an equal share."""
    return 2 * FLOAT * job.parameters


def classwise_bytes(classes: int, *, bins: int = DEFAULT_BINS) -> int:
    """State of `ClasswiseCalibration`: what a worker keeps, saves and merges, however many samples it has seen."""
    return BIN_SUMS * INTEGER * bins * classes


def update_bytes(*, samples: int, classes: int, bins: int = DEFAULT_BINS) -> int:
    """Peak of a classwise stream's `update` with float32 logits, its state and the logits included."""
    return 3 * classwise_bytes(classes, bins=bins) + 2 * FLOAT * samples * classes


def merge_rounds(workers: int) -> int:
    """Rounds in which pairs of workers merge their sums until one has them all."""
    return math.ceil(math.log2(workers))


def prediction_bytes(*, samples: int, classes: int, precision: int = FLOAT) -> int:
    """The values of a file of predictions; ids, labels and footer add some ten bytes a row."""
    return samples * classes * precision


def evaluation_seconds(*, samples: int, classes: int, batch: int, rates: Rates, bins: int = DEFAULT_BINS) -> float:
    """Time of classwise and other sums: so much for each probability, and for each bin of each class in every batch."""
    cell = rates.cell if INTEGER * bins * classes <= FRESH_BYTES else rates.fresh_cell
    return samples * classes * rates.element + math.ceil(samples / batch) * classes * bins * cell


def memory_loader_bytes(images: int, *, shape: tuple[int, int, int]) -> int:
    """Images in memory with labels and ids, while they are shuffled; every rank has them all."""
    return images * (math.prod(shape) + IMAGE_BYTES + ORDER_BYTES)


def stream_index_bytes(rows: int, *, row_group: int, excluded: int) -> int:
    """What each process of a stream holds of all rows: their row groups, and the numbers of those left out."""
    return math.ceil(rows / row_group) * ROW_GROUP_BYTES + excluded * EXCLUDED_BYTES
