"""What every objective answers, so that nobody has to ask which class it is."""

from collections.abc import Iterable
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor, nn

from counterpoise.objectives.output import ObjectiveOutput

_MEMBERS = ("primary", "models", "parameter_groups", "set_progress", "process_group")


class Objective(Protocol):
    """An `nn.Module` that takes a batch and returns one scalar loss over any number of models.

    Any module with these members is one: it trains under every engine, and its primary ships. Nothing needs to be
    inherited; `counterpoise.testing.check_objective` is the contract.

    Attributes:
        process_group: over which each batch is sharded, or None; an engine with several ranks sets it.
        accepts_loss_kwargs: False. The loss is a mean over one batch; where `transformers.Trainer` sees keyword inputs
            it believes that the loss is already divided by the items of all accumulated batches, and does not divide it
            by the accumulation steps.
        needs_ids: where it is there and true, each training batch comes with `ids`, int64 `[b]`: which samples it has.
    """

    process_group: dist.ProcessGroup | None
    accepts_loss_kwargs: bool

    @property
    def primary(self) -> nn.Module:
        """The model that ships. It alone runs in evaluation and without labels."""

    @property
    def models(self) -> Iterable[nn.Module]:
        """All that train, the primary first. Each is clipped by a norm of its own, and sharded by itself."""

    def parameter_groups(self, *, lr: float, auxiliary_lr: float) -> list[dict[str, Any]]:
        """Optimizer groups that hold every parameter exactly once, each with `name`, `params` and `lr`.

        `scheduled: False` in a group says that its learning rate stays as it is while the schedule changes others.
        `auxiliary_lr` is for models that learn from the primary alone; an objective without such models ignores it.
        """

    def set_progress(self, progress: float) -> None:
        """Say how far training is, as steps taken / all steps: 0.0 at the first one; called before each."""

    def __call__(
        self, *inputs: Any, labels: Tensor | None = None, sample_weight: Tensor | None = None, **named_inputs: Any
    ) -> ObjectiveOutput:
        """Run the models on a batch."""


def is_objective(module: object) -> bool:
    """Whether a module answers as an objective does, whatever its class.

    >>> is_objective(nn.Linear(4, 3))
    False
    """
    return all(hasattr(module, name) for name in _MEMBERS)


def told_ids(objective: object, ids: Tensor | None) -> dict[str, Tensor | None]:
    """What a call of an objective says of the samples: their ids where it needs them, else nothing."""
    return {"ids": ids} if getattr(objective, "needs_ids", False) else {}


def as_module(objective: Objective) -> nn.Module:
    """The same object, as the module that it must be to be trained."""
    if not isinstance(objective, nn.Module):
        raise TypeError(f"an objective is an nn.Module; {type(objective).__name__} is none")
    return objective
