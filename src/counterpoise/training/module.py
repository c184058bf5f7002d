"""What the engine trains: the LightningModule over any objective, its learning rates, and the images of a run.

Learning rates are a function of progress alone, so that there is no scheduler whose state could go astray.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache

import lightning as L  # noqa: N812
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from counterpoise.data.balance import label_weights
from counterpoise.data.memory import Batch, MemoryLoader, batches_of
from counterpoise.objectives import Objective, ObjectiveOutput, Role
from counterpoise.objectives.models import call_for_logits, warn_of_probabilities
from counterpoise.objectives.protocol import told_ids
from counterpoise.recipes.config import OptimizerOptions
from counterpoise.training.data import Loader, RunData
from counterpoise.training.devices import full_float32
from counterpoise.training.distributed import average_buffers, place_in, shard, world_size
from counterpoise.training.evaluation import measured, measuring_streams
from counterpoise.training.optimizers import DECIDED, build_optimizer, trunk_parameters

REMEDY = "a lower optimizer.lr, a warmup or a clip may help"
"""What to do when training breaks down."""


class ObjectiveModule(L.LightningModule):
    """One objective, one optimizer, one loss a step; validation of the model that ships.

    Args:
        objective: any module that satisfies `counterpoise.Objective`.
        optimizer: which one, and how its learning rate changes.
        epochs: of the whole training, which schedules are relative to.
        pretrained: for each model, whether its trunk is frozen for the options' first epochs.
        ema: decay of the moving average of the primary, or None for no average.
        sharded: whether the parameters are sharded over the ranks (FSDP2).
        class_weights: weights of the samples' classes in the training loss, float32 `[K]`; None for no weights.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        optimizer: OptimizerOptions,
        epochs: int,
        pretrained: Sequence[bool] = (),
        ema: float | None = None,
        sharded: bool = False,
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.objective = objective
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.average = None if ema is None else _moving_average(self.primary, decay=ema)
        self.options = optimizer
        self.epochs = epochs
        self.sharded = sharded
        self.pretrained = pretrained
        # Frozen by whoever made the networks, for good; by identity, which lasts where trunks are thawed.
        self._constant = {id(each) for each in self.parameters() if not each.requires_grad}
        self.latest = ObjectiveOutput()
        self.validation: dict[str, float] = {}
        self._streams = measuring_streams()

    @property
    def primary(self) -> nn.Module:
        """The model that the objective trains to be shipped."""
        return self.objective.primary

    @property
    def shipped(self) -> nn.Module:
        """What is validated and written at the end: the primary, or its moving average."""
        return self.primary if self.average is None else self.average.module

    @property
    def shipped_prefix(self) -> str:
        (name,) = (name for name, module in self.named_modules() if module is self.shipped)
        return f"{name}."

    @property
    def _frozen(self) -> bool:
        return self.current_epoch < self.options.frozen_epochs

    def _trunks(self) -> list[nn.Parameter]:
        """Asked for each time: FSDP puts other parameters in the place of those that a model began with."""
        if not self.options.frozen_epochs:
            return []
        frozen = zip(self.objective.models, self.pretrained, strict=True)
        return [
            parameter
            for model, known in frozen
            for parameter in (trunk_parameters(model) if known else [])
            if id(parameter) not in self._constant
        ]

    def configure_model(self) -> None:
        if self.sharded:
            assert self.device_mesh is not None
            shard(self.objective.models, self.device_mesh)
        place = place_in(self.trainer)
        if place.role is not None:
            self._take(place.role)
        if place.group is not None:
            # Terms over a batch (DCA, MDCA, MMCE) are those of the whole batch, not of a rank's share.
            self.objective.process_group = place.group

    def _take(self, role: Role) -> None:
        """Train the primary or an auxiliary alone; the other networks are other processes'."""
        if not hasattr(self.objective, "in_role"):
            raise ValueError(
                f"{type(self.objective).__name__} has no in_role, by which its auxiliaries could train elsewhere; "
                "leave engine.auxiliary_devices at 0"
            )
        self.objective = self.objective.in_role(role)
        own = 0 if role.auxiliary is None else 1 + role.auxiliary
        others = len(list(self.objective.models)) - 1
        self.pretrained = [*self.pretrained[own : own + 1], *[False] * others]
        if role.auxiliary is not None:
            self.average = None

    def configure_optimizers(self) -> Optimizer:
        """That of the options, over the objective's parameters."""
        return build_optimizer(self.objective, self.options)

    def on_train_start(self) -> None:
        """Tell the loader which epoch it is in; one that was interrupted goes on, and has no start."""
        # A checkpoint brings the options that it was saved with, which a recipe edited since then no longer has.
        given = build_optimizer(self.objective, self.options).param_groups
        for group, asked in zip(self.trainer.optimizers[0].param_groups, given, strict=True):
            group |= {name: asked[name] for name in DECIDED if name in asked}
            group |= {"initial_lr": asked["lr"], "scheduled": asked["scheduled"]}
        self.on_train_epoch_start()
        # After the last batch of an epoch, whatever its number: epochs of pruned samples are shorter than the first.
        self.trainer.val_check_batch = float("inf")

    def on_train_epoch_start(self) -> None:
        set_epoch = getattr(self.trainer.train_dataloader, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.current_epoch)
        if world_size() == 1:
            for parameter in self._trunks():
                parameter.requires_grad_(not self._frozen)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Set the learning rates, and tell the objective how far training is."""
        steps = len(self.trainer.train_dataloader)  # type: ignore[arg-type]
        progress = self.current_epoch + batch_idx / steps
        factor = decay_factor(progress, steps=steps, epochs=self.epochs, options=self.options)
        set_learning_rates(self.trainer.optimizers[0], factor)
        self.objective.set_progress(progress / self.epochs)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels, *ids = batch
        weights = self.class_weights
        told: dict[str, Tensor | None] = {} if weights is None else {"sample_weight": label_weights(labels, weights)}
        told |= told_ids(self.objective, ids[0] if ids else None)
        self.latest = self.objective(images, labels=labels, **told)
        warn_of_probabilities(self.primary, self.latest.logits)
        loss: Tensor = self.latest["loss"]
        if self.trainer.loggers:
            self.log_dict(
                {f"training/{name}": part for name, part in self.latest.parts.items()}
                | {"training/loss": loss.detach()}
            )
        return loss

    def on_after_backward(self) -> None:
        """Leave out the gradients of frozen trunks, which ranks that share a model had to compute."""
        if self._frozen:
            for parameter in self._trunks():
                parameter.grad = None

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip each model by its own norm: one joint norm would couple the models."""
        clip = self.options.clip if gradient_clip_val is None else gradient_clip_val
        if clip is None:
            return
        if gradient_clip_algorithm not in (None, "norm"):
            raise ValueError("gradients are clipped by norm; leave out gradient_clip_algorithm")
        models = [list(model.parameters()) for model in self.objective.models]
        owned = {id(parameter) for parameters in models for parameter in parameters}
        others = [each for group in optimizer.param_groups for each in group["params"] if id(each) not in owned]
        for parameters in (*models, others):
            nn.utils.clip_grad_norm_(parameters, clip)

    def on_validation_epoch_start(self) -> None:
        """Forget the last epoch; every rank goes on with the same BatchNorm statistics."""
        for stream in self._streams:
            stream.reset()
        average_buffers(self, self.objective.process_group)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        images, labels, *_ = batch
        # In float32 whatever the precision of training, as the predictions that are written.
        with torch.autocast(self.device.type, enabled=False), full_float32():
            logits = call_for_logits(self.shipped, (images,), {})
        # On the CPU, where every sum that they need is deterministic.
        logits, labels = logits.float().cpu(), labels.cpu()
        if not (logits < math.inf).all():
            raise FloatingPointError(f"the model gives NaN or infinite logits after step {self.global_step}; {REMEDY}")
        for stream in self._streams:
            stream.update(logits=logits, labels=labels)

    def on_validation_epoch_end(self) -> None:
        self.validation = measured(stream.sync() if world_size() > 1 else stream for stream in self._streams)
        if self.trainer.loggers:
            self.log_dict({f"validation/{name}": value for name, value in self.validation.items()}, rank_zero_only=True)


class RunDataModule(L.LightningDataModule):
    """Gives the engine each rank's share."""

    def __init__(self, data: RunData, *, evaluation_batch: int, seed: int) -> None:
        super().__init__()
        self.data = data
        self.evaluation_batch = evaluation_batch
        self.seed = seed
        self._open = ExitStack()

    def setup(self, stage: str) -> None:
        """Make the loader before checkpoints are loaded into it and into what watches it."""
        assert self.trainer is not None
        place = place_in(self.trainer)
        self.training = self.data.training(self.seed, place.rank, place.world)
        self._open.callback(self.training.close)
        if not len(self.training):
            raise ValueError("an epoch has no step: the training images do not fill a batch")
        self.training.to(self.trainer.strategy.root_device)

    def close(self) -> None:
        self._open.close()

    def train_dataloader(self) -> Loader:
        return self.training

    def val_dataloader(self) -> "LateLoader":
        assert self.trainer is not None
        place, device = place_in(self.trainer), self.trainer.strategy.root_device
        if not place.has_primary:
            # It says that it has a batch: without one the engine would skip the validation, in which all ranks meet.
            return LateLoader(1, list)
        rank, world = place.rank, place.world
        # Ranks share a batch evenly; which images are in one changes no metric.
        batch = max(self.evaluation_batch // world, 1) * world
        return LateLoader(
            batches_of(self.data.validation_count, batch=batch, rank=rank, drop_last=False),
            lambda: MemoryLoader(
                self.data.validation,
                batch=batch,
                seed=self.seed,
                augmentation=None,
                shuffle=False,
                drop_last=False,
                rank=rank,
                world=world,
                device=device,
            ),
        )


class LateLoader:
    """A loader that is made when it is first read: Lightning asks for all of them before the first step."""

    def __init__(self, batches: int, make: Callable[[], Iterable[Batch]]) -> None:
        self._batches = batches
        self._make = cache(make)

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[Batch]:
        yield from self._make()


def decay_factor(progress: float, *, steps: int, epochs: int, options: OptimizerOptions) -> float:
    """What the learning rate is multiplied by after `progress` epochs of `epochs`, each of `steps`; warm-up included.

    >>> steps = OptimizerOptions(milestones=(2, 3))
    >>> [round(decay_factor(p, steps=10, epochs=4, options=steps), 3) for p in (0, 1.9, 2, 3.5)]
    [1.0, 1.0, 0.1, 0.01]
    >>> cosine = OptimizerOptions(schedule="cosine", warmup=2)
    >>> [round(decay_factor(p, steps=10, epochs=4, options=cosine), 3) for p in (0, 1, 2)]
    [0.05, 0.469, 0.5]
    """
    # The first step has a rate, too: at zero it would change nothing but the statistics of BatchNorm.
    warmup = min(1.0, (progress + 1 / steps) / options.warmup) if options.warmup else 1.0
    if options.schedule == "cosine":
        return warmup * 0.5 * (1 + math.cos(math.pi * min(1.0, progress / epochs)))
    return warmup * options.decay ** bisect_right(options.milestones, progress)


def set_learning_rates(optimizer: Optimizer, factor: float) -> None:
    """Give every group its initial learning rate times the factor, unless it is not scheduled."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * (factor if group.get("scheduled", True) else 1.0)


def _moving_average(model: nn.Module, *, decay: float) -> AveragedModel:
    """Of weights and BatchNorm statistics alike, which belong together."""
    average = AveragedModel(
        model,
        multi_avg_fn=get_ema_multi_avg_fn(decay),  # type: ignore[no-untyped-call]
        use_buffers=True,
    )
    return average.requires_grad_(False)
