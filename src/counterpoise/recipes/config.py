"""Everything that decides a training run, as frozen dataclasses: what `config.json` of a run folder holds.

The text below a field is its help on the command line.
"""

import hashlib
import math
import operator
from dataclasses import dataclass, field
from typing import Final, Literal

from counterpoise._documents import from_document, to_document
from counterpoise.data.corruptions import CORRUPTIONS, SEVERITIES, STANDARD
from counterpoise.models import Backbone
from counterpoise.recipes.methods import method_named

SCHEMA, SCHEMA_VERSION = "counterpoise.recipe", 1

Precision = Literal["float32", "bfloat16", "float16"]

Measure = Literal["nll", "accuracy", "ece"]
"""What is measured on the validation images, and may be monitored and searched by."""

LARGER_IS_BETTER: tuple[Measure, ...] = ("accuracy",)
"""Of these; the others should be small."""

Allowance = Literal["config", "counterpoise", "torch", "threads", "world-size", "device"]
"""Conditions of a run that may be other when it is resumed, if they are allowed by name."""

LARGEST_SEED: Final = 4_000_000_000
"""NumPy takes seeds below 2^32, and those of ensembles' members and of ranks are some millions above the run's."""


@dataclass(frozen=True)
class DataOptions:
    """What is trained on."""

    name: str = "cifar10"
    """Data set with the splits train and test: a name such as digits, a folder of Parquet or of images, or a hub id."""
    domain: str | None = None
    """Domain that is left out of training and tested on, for sets that have domains."""
    held_out: int | float = 5000
    """Training images held out for validation, by seed: a number, or a fraction below 1."""
    pipeline: Literal["memory", "stream"] = "memory"
    """All images in memory as one tensor, augmented on the device; or streamed from disk or the hub by workers."""
    workers: int = 2
    """Processes that read and decode a stream."""
    window: int = 2000
    """Consecutive images of a stream that are shuffled together."""
    padding: int = 4
    """Pixels of padding around an image before the random crop; 0 for no crop."""
    flip: bool = True
    """Mirror every other image, by chance."""
    limit: int | None = None
    """Use only the first N training images, for a trial."""
    spread: bool = False
    """Take the images that limits leave evenly from the whole set instead, where it is stored class by class."""
    size: int | None = None
    """Resize and centre-crop images to this many pixels; None where all have one size."""


@dataclass(frozen=True)
class OptimizerOptions:
    """SGD, and how its learning rate changes."""

    lr: float = 0.1
    """Learning rate of the primary, and of every model of deep mutual learning."""
    auxiliary_lr: float = 0.01
    """Learning rate of the auxiliaries, which never decays."""
    momentum: float = 0.9
    """Momentum."""
    nesterov: bool = False
    """Nesterov's form of momentum."""
    weight_decay: float = 5e-4
    """Weight decay."""
    schedule: Literal["step", "cosine"] = "step"
    """How `lr` decays: by steps at the milestones, or along half a cosine to zero."""
    milestones: tuple[int, ...] = (150, 200, 250, 300)
    """Epochs after which `lr` is multiplied by `decay`."""
    decay: float = 0.1
    """Factor at each milestone."""
    warmup: float = 0.0
    """Epochs over which `lr` grows linearly from zero."""
    clip: float | None = None
    """Largest norm of the gradients of each model; None for no clipping."""


@dataclass(frozen=True)
class PruningOptions:
    """Which samples DTDP leaves out; other methods prune nothing."""

    share: float = 0.1
    """Share of the training images with the lowest smoothed confidence that is left out."""
    every: int = 5
    """Epochs between two choices."""
    smoothing: float = 0.3
    """Weight of the newest confidence in the exponential average."""


@dataclass(frozen=True)
class EngineOptions:
    """How and on what the run is computed."""

    precision: Precision = "float32"
    """Precision of the forward and backward passes; bfloat16 and float16 are mixed with float32."""
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    """Kind of device."""
    devices: int = 1
    """Devices on each machine, one process for each; the batch is divided between them."""
    nodes: int = 1
    """Machines."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """Several devices: copies of the models (ddp), or shards of them (fsdp, FSDP2)."""
    threads: int | None = None
    """Threads of each process; None for torch's default. One against two changes the last bits of results."""
    deterministic: bool = False
    """Only algorithms that give the same bits each time; on a CPU they all do, on a GPU it costs speed."""
    compile: bool = False
    """Compile the models with torch.compile."""
    ema: float | None = None
    """Keep an exponential moving average of the primary with this decay, and evaluate and ship that one."""
    checkpoint_steps: int | None = None
    """Save the complete state every so many steps, besides every epoch."""
    checkpoint_epochs: int = 1
    """Save the complete state every so many epochs."""
    monitor: Measure = "nll"
    """Validation measure by which the best checkpoint is kept; what ships is the last epoch."""
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Besides the CSV files, which are always written."""


@dataclass(frozen=True)
class EvaluationOptions:
    """What is predicted and measured after training."""

    ood: tuple[str, ...] = ()
    """Data sets of foreign images, by name or path; those that are not divided into splits are taken whole."""
    corruptions: tuple[str, ...] = ()
    """CIFAR-C-style corruptions of the test images, by name; `standard` for the usual 15, `all` for 19."""
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Severities of the corruptions."""
    corrupted_images: int | None = None
    """Corrupt only the first N test images; None for all."""
    images: int | None = None
    """Predict only the first N images of each set, for a trial; None for all."""
    batch: int = 500
    """Images that are predicted at a time."""


@dataclass(frozen=True)
class Recipe:
    """A complete training run."""

    method: str = "mte1"
    """Training method; `counterpoise methods` lists them."""
    hyper: dict[str, float] = field(default_factory=dict)
    """Its hyper-parameters by name, such as `alpha 0.8`; by default the middle of the values that are tuned over."""
    primary: Backbone = field(default_factory=Backbone)
    """The network that ships."""
    auxiliary: Backbone = field(default_factory=Backbone)
    """The network of every auxiliary, or peer."""
    epochs: int = 350
    """Passes over the training images."""
    batch: int = 100
    """Images in a step, over all devices."""
    seed: int = 0
    """Decides the split, the initial weights, the order of images and their augmentation."""
    data: DataOptions = field(default_factory=DataOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    pruning: PruningOptions = field(default_factory=PruningOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", operator.index(self.seed))  # of NumPy's integers, a plain one

    @property
    def choice(self) -> dict[str, float]:
        """One value of each hyper-parameter of the method."""
        return method_named(self.method).choice(self.hyper)

    @property
    def digest(self) -> str:
        """SHA-256 of the configuration; runs with the same digest are the same experiment."""
        # As it is read back, with a float wherever one is declared: 1 and 1.0 are the same value.
        read_back = Recipe.from_json(self.to_json())
        return hashlib.sha256(read_back.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Strict JSON."""
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION)

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        """Read what `to_json` wrote; anything else is a `ValueError` that names the place."""
        return from_document(cls, text, schema=SCHEMA, version=SCHEMA_VERSION)


def require_possible(recipe: Recipe) -> None:
    """Refuse what cannot be trained, with all that is wrong in one message.

    >>> require_possible(Recipe(method="ce", hyper={"alpha": 1.0}))
    Traceback (most recent call last):
    ...
    ValueError: Cross-entropy has no hyper-parameter alpha; it has none
    """
    method = method_named(recipe.method)
    optimizer, engine, data = recipe.optimizer, recipe.engine, recipe.data
    positive = {
        "epochs": recipe.epochs,
        "batch": recipe.batch,
        "optimizer.lr": optimizer.lr,
        "optimizer.auxiliary_lr": optimizer.auxiliary_lr,
        "engine.devices": engine.devices,
        "engine.nodes": engine.nodes,
        "engine.checkpoint_epochs": engine.checkpoint_epochs,
        "engine.checkpoint_steps": engine.checkpoint_steps,
        "engine.threads": engine.threads,
        "optimizer.clip": optimizer.clip,
        "pruning.every": recipe.pruning.every,
        "data.window": data.window,
        "data.limit": data.limit,
        "data.size": data.size,
        "data.held_out": data.held_out,
        "evaluation.batch": recipe.evaluation.batch,
        "evaluation.images": recipe.evaluation.images,
        "evaluation.corrupted_images": recipe.evaluation.corrupted_images,
    }
    wrong = [
        f"{name} must be {'finite' if value == math.inf else 'positive'}, got {value}"
        for name, value in positive.items()
        if value is not None and not 0 < value < math.inf
    ]
    not_negative = {
        "seed": recipe.seed,
        "data.workers": data.workers,
        "data.padding": data.padding,
        "optimizer.momentum": optimizer.momentum,
        "optimizer.weight_decay": optimizer.weight_decay,
        "optimizer.warmup": optimizer.warmup,
        "optimizer.decay": optimizer.decay,
    }
    wrong += [
        f"{name} must {'be finite' if value == math.inf else 'not be negative'}, got {value}"
        for name, value in not_negative.items()
        if not 0 <= value < math.inf
    ]
    if recipe.seed > LARGEST_SEED:
        wrong.append(f"seed must be at most {LARGEST_SEED:,}, got {recipe.seed}")
    wrong += _wrong_corruptions(recipe.evaluation)
    if optimizer.nesterov and not optimizer.momentum:
        wrong.append("optimizer.nesterov needs optimizer.momentum, which is 0")
    shares = {"pruning.share": recipe.pruning.share, "pruning.smoothing": recipe.pruning.smoothing}
    shares |= {"engine.ema": engine.ema} if engine.ema is not None else {}
    wrong += [f"{name} must lie between 0 and 1, got {value}" for name, value in shares.items() if not 0 < value < 1]
    devices = engine.devices * engine.nodes
    if devices > 0 and recipe.batch % devices:
        wrong.append(f"batch {recipe.batch} cannot be divided between {devices} devices")
    if sorted({0, *optimizer.milestones}) != [0, *optimizer.milestones]:
        wrong.append(f"optimizer.milestones must increase, from 1 on, got {optimizer.milestones}")
    if engine.strategy == "fsdp" and (engine.ema is not None or engine.precision == "float16"):
        wrong.append("engine.strategy fsdp takes neither engine.ema nor float16; use ddp, or bfloat16")
    if method.prunes and data.pipeline == "stream":
        wrong.append(f"{recipe.method} prunes its samples, which needs data.pipeline memory")
    if wrong:
        raise ValueError("; ".join(wrong))
    method.choice(recipe.hyper)


def corruption_names(given: tuple[str, ...]) -> list[str]:
    """The corruptions that are meant, `standard` and `all` spelt out.

    >>> corruption_names(("fog", "standard"))[:2]
    ['fog', 'gaussian_noise']
    """
    groups = {"standard": STANDARD, "all": tuple(CORRUPTIONS)}
    names = [name for entry in given for name in groups.get(entry, (entry,))]
    if unknown := [name for name in names if name not in CORRUPTIONS]:
        raise ValueError(f"there is no corruption {', '.join(unknown)}; there are {', '.join(CORRUPTIONS)}")
    return list(dict.fromkeys(names))


def _wrong_corruptions(options: EvaluationOptions) -> list[str]:
    wrong = []
    try:
        corruption_names(options.corruptions)
    except ValueError as error:
        wrong.append(f"evaluation.corruptions: {error}")
    if not set(options.severities) <= set(SEVERITIES) or len(set(options.severities)) < len(options.severities):
        wrong.append(f"evaluation.severities must be among {SEVERITIES}, each once, got {options.severities}")
    if options.corruptions and not options.severities:
        wrong.append("evaluation.corruptions need evaluation.severities, of which there are none")
    return wrong
