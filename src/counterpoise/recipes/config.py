"""Everything that decides a training run, as frozen dataclasses: what `config.json` of a run folder holds.

The text below a field is its help on the command line.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from counterpoise._choices import SEVERITIES, TRANSFORMS
from counterpoise._documents import from_document, to_document
from counterpoise.models import Backbone
from counterpoise.recipes.checks import corruption_names, negative, not_between_0_and_1, not_positive, refuse
from counterpoise.recipes.combinations import method_problems
from counterpoise.recipes.identity import CHANGES_NO_RESULT, config_digest, first_name, first_value
from counterpoise.recipes.methods import AUXILIARY_LR, METHODS, method_named
from counterpoise.recipes.savings import SavingOptions, with_savings

if TYPE_CHECKING:
    from torch import nn

    from counterpoise.objectives import Objective

SCHEMA, SCHEMA_VERSION = "counterpoise.recipe", 2

Precision = Literal["float32", "bfloat16", "float16"]

ValidationMetric = Literal["nll", "accuracy", "ece"]
"""What is measured on the validation images, and may be monitored and searched by."""

LARGER_IS_BETTER: tuple[ValidationMetric, ...] = ("accuracy",)
"""Of these; the others should be small."""

Unreadable = Literal["refuse", "skip"]
"""What is done with images that cannot be decoded."""

HeldOutRows = Literal["shuffled", "hashed"]
"""How rows are chosen for validation: `hold_out` and `hold_out_hashed` of `counterpoise.data`."""

InitialWeights = Literal["by-seed", "by-count"]
"""What decides the primary's initial weights: the seed alone, or also how many networks the method trains."""

Allowance = Literal["config", "counterpoise", "torch", "threads", "world-size", "device", "data"]
"""Conditions of a run that may be other when it is resumed, if they are allowed by name."""

LARGEST_SEED: Final = 4_000_000_000
"""NumPy takes seeds below 2^32, and those of ensembles' members and of ranks are some millions above the run's."""


@dataclass(frozen=True)
class DataOptions:
    """What is trained on."""

    name: str = "cifar10"
    """Data set: a name such as digits; a folder of Parquet files, tar shards or images; an address of such files, like
    s3://bucket/folder; a table of image paths; or a hub id."""
    domain: str | None = None
    """Domain that is left out of training and tested on, for sets that have domains."""
    validation: int | float = field(default=5000, metadata=first_name("held_out"))
    """Training images that are kept for validation, by seed: a number, or a fraction below 1. A folder or a table that
    has validation images of its own keeps none."""
    test: int | float | None = None
    """Images that are kept for testing where the set has no test images: a number, or a fraction below 1; the same for
    every seed."""
    stratify: bool = False
    """Keep each class in its proportion."""
    validation_rows: HeldOutRows | None = None
    """Which images are kept for validation: the first of all rows, shuffled by seed; or, hashed, one of each of as many
    equal stretches, by a keyed hash, for which no rows are listed. None is shuffled in memory, hashed in a stream."""
    unreadable: Unreadable = "refuse"
    """What becomes of images that cannot be decoded; those that are skipped are named before training."""
    pipeline: Literal["memory", "stream"] = "memory"
    """All images in memory as one tensor, augmented on the device; or streamed by workers from where they are."""
    workers: int = 2
    """Processes that read and decode a stream, or apply `augment` to images in memory."""
    window: int = 2000
    """Consecutive images of a stream that are shuffled together."""
    padding: int = 4
    """Pixels of padding around an image before the random crop; 0 for no crop."""
    flip: bool = True
    """Mirror every other image, by chance."""
    augment: tuple[str, ...] = ()
    """Transforms of torchvision by name, in order, such as RandomResizedCrop RandAugment; replace padding and flip."""
    mixup: float = 0.0
    """Mix each image with another: a of Beta(a, a), such as 0.2; 0 for none. With `cutmix`, either by chance."""
    cutmix: float = 0.0
    """Paste a part of another image into each: a of Beta(a, a), such as 1; 0 for none."""
    balance: Literal["none", "weights", "sampler"] = "none"
    """Of unequal classes, weigh rare ones more in the loss, or draw all equally often."""
    limit: int | None = None
    """Use only the first N training images, for a trial."""
    spread: bool = False
    """Take the images that limits leave evenly from the whole set instead, where it is stored class by class."""
    size: int | None = None
    """Resize and centre-crop images to this many pixels; None where all have one size. RandomResizedCrop in `augment`
    works on the whole image."""

    def __post_init__(self) -> None:
        sizes = {"window": self.window, "limit": self.limit, "size": self.size, "validation": self.validation}
        others = {"workers": self.workers, "padding": self.padding, "mixup": self.mixup, "cutmix": self.cutmix}
        problems = not_positive({f"data.{name}": value for name, value in (sizes | {"test": self.test}).items()})
        problems += negative({f"data.{name}": value for name, value in others.items()})
        if unknown := [name for name in self.augment if name not in TRANSFORMS]:
            problems.append(f"data.augment: there is no {', '.join(unknown)}; there are {', '.join(TRANSFORMS)}")
        if self.balance == "sampler" and self.pipeline == "stream":
            problems.append("data.balance sampler needs data.pipeline memory; a stream takes data.balance weights")
        if self.pipeline == "stream" and (self.stratify or self.unreadable == "skip"):
            problems.append(
                "data.stratify and data.unreadable skip need all images beforehand: use data.pipeline memory"
            )
        if self.validation_rows == "hashed" and self.stratify:
            problems.append("data.stratify chooses by class, data.validation_rows hashed by position: choose one")
        refuse(problems)

    @property
    def held_out_rule(self) -> HeldOutRows:
        return self.validation_rows or ("hashed" if self.pipeline == "stream" else "shuffled")

    @property
    def mixes(self) -> bool:
        """Whether images are mixed, and have soft labels."""
        return bool(self.mixup or self.cutmix)


@dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer, and how its learning rate changes."""

    name: str = "sgd"
    """sgd, adamw, or any optimizer of timm by its name there, such as lamb or nadamw."""
    lr: float = 0.1
    """Learning rate of the primary, and of every model of deep mutual learning."""
    auxiliary_lr: float | None = field(default=None, metadata=first_value(AUXILIARY_LR))
    """Learning rate of the auxiliaries, which never decays; None for 0.01, and of mte-lite for a rate that follows the
    primary's. Without effect where auxiliary_factor is given."""
    auxiliary_factor: float | None = None
    """Learning rate of the auxiliaries as a factor of the primary's, which it then follows; None for auxiliary_lr, or
    where that is None too, for the method's: 1 of mte-lite."""
    layer_decay: float = 1.0
    """Factor from the learning rate of one layer to that of the layer before it; 1 for one rate in all layers."""
    frozen_epochs: int = 0
    """Epochs at the start in which networks with weights that are not random train their head alone."""
    momentum: float = 0.9
    """Momentum, of SGD and of those optimizers of timm that have it."""
    nesterov: bool = False
    """Nesterov's form of momentum, of SGD."""
    weight_decay: float = 5e-4
    """Weight decay."""
    decay_norms: bool = True
    """Let weight decay act on norms and biases too."""
    schedule: Literal["step", "cosine"] = "step"
    """How `lr` decays: by steps at the milestones, or along half a cosine to zero."""
    milestones: tuple[int, ...] = (150, 200, 250, 300)
    """Epochs after which `lr` is multiplied by `decay`."""
    decay: float = 0.1
    """Factor at each milestone."""
    warmup: float = 0.0
    """Epochs over which `lr` grows linearly, step by step."""
    clip: float | None = None
    """Largest norm of the gradients of each model; None for no clipping."""

    def __post_init__(self) -> None:
        rates = {"optimizer.lr": self.lr, "optimizer.auxiliary_lr": self.auxiliary_lr, "optimizer.clip": self.clip}
        others = {
            "optimizer.momentum": self.momentum,
            "optimizer.weight_decay": self.weight_decay,
            "optimizer.warmup": self.warmup,
            "optimizer.decay": self.decay,
        }
        rates |= {"optimizer.auxiliary_factor": self.auxiliary_factor, "optimizer.layer_decay": self.layer_decay}
        others["optimizer.frozen_epochs"] = self.frozen_epochs
        problems = not_positive(rates) + negative(others)
        if self.layer_decay > 1:
            problems.append(f"optimizer.layer_decay must be at most 1, got {self.layer_decay}")
        if self.nesterov and not self.momentum:
            problems.append("optimizer.nesterov needs optimizer.momentum, which is 0")
        if sorted({0, *self.milestones}) != [0, *self.milestones]:
            problems.append(f"optimizer.milestones must increase, from 1 on, got {self.milestones}")
        refuse(problems)

    @property
    def first_auxiliary_lr(self) -> float:
        """Learning rate that auxiliaries begin with, if no method has another."""
        if self.auxiliary_factor is not None:
            return self.auxiliary_factor * self.lr
        return AUXILIARY_LR if self.auxiliary_lr is None else self.auxiliary_lr


@dataclass(frozen=True)
class PruningOptions:
    """Which samples DTDP leaves out; other methods prune nothing."""

    share: float = 0.1
    """Share of the training images with the lowest smoothed confidence that is left out."""
    every: int = 5
    """Epochs between two choices."""
    smoothing: float = 0.3
    """Weight of the newest confidence in the exponential average."""

    def __post_init__(self) -> None:
        refuse(
            not_positive({"pruning.every": self.every})
            + not_between_0_and_1({"pruning.share": self.share, "pruning.smoothing": self.smoothing})
        )


@dataclass(frozen=True)
class EngineOptions:
    """How and on what the run is computed."""

    precision: Precision = "float32"
    """Precision of the forward and backward passes; bfloat16 and float16 are mixed with float32."""
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    """Kind of device."""
    devices: int = 1
    """Devices on each machine, one process for each; the batch is divided between them."""
    auxiliary_devices: int = 0
    """Further devices on each machine, one process for each, that train the auxiliaries; 0 to train them with the
    primary on its devices."""
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
    checkpoint_steps: int | None = field(default=None, metadata=CHANGES_NO_RESULT)
    """Save the complete state every so many steps, in addition to every epoch."""
    checkpoint_epochs: int = field(default=1, metadata=CHANGES_NO_RESULT)
    """Save the complete state every so many epochs."""
    monitor: ValidationMetric = field(default="nll", metadata=CHANGES_NO_RESULT)
    """Validation metric by which the best checkpoint is kept; what ships is the last epoch."""
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = field(default=(), metadata=CHANGES_NO_RESULT)
    """In addition to the CSV files, which are always written."""

    def __post_init__(self) -> None:
        sizes = {
            "engine.devices": self.devices,
            "engine.nodes": self.nodes,
            "engine.checkpoint_epochs": self.checkpoint_epochs,
            "engine.checkpoint_steps": self.checkpoint_steps,
            "engine.threads": self.threads,
        }
        problems = not_positive(sizes) + not_between_0_and_1({"engine.ema": self.ema})
        problems += negative({"engine.auxiliary_devices": self.auxiliary_devices})
        if self.auxiliary_devices and (self.strategy == "fsdp" or self.precision == "float16" or self.compile):
            problems.append("engine.auxiliary_devices goes with neither fsdp nor float16 nor engine.compile")
        if self.strategy == "fsdp" and (self.ema is not None or self.precision == "float16"):
            problems.append("engine.strategy fsdp takes neither engine.ema nor float16; use ddp, or bfloat16")
        refuse(problems)

    @property
    def processes(self) -> int:
        return (self.devices + self.auxiliary_devices) * self.nodes


@dataclass(frozen=True)
class EvaluationOptions:
    """What is predicted and measured after training."""

    ood: tuple[str, ...] = ()
    """Data sets of OOD images, by name or path; those that are not divided into splits are taken whole."""
    corruptions: tuple[str, ...] = ()
    """CIFAR-C-style corruptions of the test images, by name; `standard` for the usual 15, `all` for 19. Needs the
    package counterpoise-study."""
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Severities of the corruptions."""
    corrupted_images: int | None = None
    """Corrupt only the first N test images; None for all."""
    images: int | None = None
    """Predict only the first N images of each set, for a trial; None for all."""
    batch: int = field(default=500, metadata=CHANGES_NO_RESULT)
    """Images that are predicted at a time."""

    def __post_init__(self) -> None:
        sizes = {"batch": self.batch, "images": self.images, "corrupted_images": self.corrupted_images}
        problems = not_positive({f"evaluation.{name}": value for name, value in sizes.items()})
        try:
            corruption_names(self.corruptions)
        except ValueError as error:
            problems.append(f"evaluation.corruptions: {error}")
        if not set(self.severities) <= set(SEVERITIES) or len(set(self.severities)) < len(self.severities):
            problems.append(f"evaluation.severities must be among {SEVERITIES}, each once, got {self.severities}")
        if self.corruptions and not self.severities:
            problems.append("evaluation.corruptions need evaluation.severities, of which there are none")
        refuse(problems)


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
    patience: int | None = None
    """Stop after so many epochs without a lower validation NLL, and ship the best epoch; None to ship the last."""
    seed: int = 0
    """Decides the split, the initial weights, the order of images and their augmentation."""
    initial_weights: InitialWeights = field(default="by-seed", metadata=first_value("by-count"))
    """The primary's: by the seed alone, or (by-count) also by the number of the method's networks."""
    data: DataOptions = field(default_factory=DataOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    pruning: PruningOptions = field(default_factory=PruningOptions)
    savings: SavingOptions = field(default_factory=SavingOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", operator.index(self.seed))  # of NumPy's integers, a plain one
        problems = not_positive({"epochs": self.epochs, "batch": self.batch, "patience": self.patience}) + negative(
            {"seed": self.seed}
        )
        if self.seed > LARGEST_SEED:
            problems.append(f"seed must be at most {LARGEST_SEED:,}, got {self.seed}")
        if self.optimizer.frozen_epochs >= self.epochs:
            problems.append(f"optimizer.frozen_epochs must be below epochs, {self.epochs}")
        problems += method_problems(
            self.method,
            savings=self.savings,
            streams=self.data.pipeline == "stream",
            balances=self.data.balance == "sampler",
            mixes=self.data.mixes,
            batch=self.batch,
            primary_ranks=self.engine.devices * self.engine.nodes,
            auxiliary_ranks=self.engine.auxiliary_devices * self.engine.nodes,
        )
        refuse(problems)
        # A record may be read where its method, somebody's own, is not known: training asks for it by name.
        if self.method in METHODS:
            METHODS[self.method].choice(self.hyper)

    @property
    def choice(self) -> dict[str, float]:
        """One value of each hyper-parameter of the method."""
        return method_named(self.method).choice(self.hyper)

    @property
    def savings_in_force(self) -> SavingOptions:
        """The recipe's, or, where it says nothing, those of the method."""
        return method_named(self.method).savings_with(self.savings)

    @property
    def optimizer_in_force(self) -> OptimizerOptions:
        """The recipe's, with the method's learning rate of auxiliaries where it says nothing."""
        told, factor = self.optimizer, self.optimizer.auxiliary_factor
        if told.auxiliary_lr is not None:
            return told
        if factor is None and self.method in METHODS:
            factor = METHODS[self.method].auxiliary_factor
        return replace(told, auxiliary_lr=AUXILIARY_LR, auxiliary_factor=factor)

    def objective(self, models: "Sequence[nn.Module]") -> "Objective":
        """The method's objective over networks, the primary first, with what auxiliaries leave out."""
        return method_named(self.method).build(with_savings(models, self.savings_in_force), **self.choice)

    @property
    def digest(self) -> str:
        """SHA-256 of what can change a result; runs with the same digest are the same experiment."""
        # As it is read back, with a float wherever one is declared: 1 and 1.0 are the same value.
        read = type(self).from_json(self.to_json())
        return config_digest(replace(read, optimizer=read.optimizer_in_force))

    def to_json(self) -> str:
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION, sealed=False)  # people edit recipes

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        """Read what `to_json` wrote; anything else is a `ValueError` that names the place."""
        return from_document(cls, text, schema=SCHEMA, version=SCHEMA_VERSION)
