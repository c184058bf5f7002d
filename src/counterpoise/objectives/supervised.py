"""One model, one loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from counterpoise.functional.losses import cross_entropy
from counterpoise.functional.reduction import IGNORE_INDEX
from counterpoise.objectives.models import (
    call_for_logits,
    copied,
    parameter_group,
    require_model,
    warn_of_probabilities,
)
from counterpoise.objectives.output import ObjectiveOutput

Loss = Callable[..., Tensor]
"""`loss(logits, labels)` gives a scalar; `ignore_index`, `sample_weight` and `group` are passed by keyword, and only
where they are used, so that a plain function of two tensors is a loss."""


@dataclass(frozen=True)
class LossSum:
    """`base + weight * term`, itself a loss.

    >>> import torch
    >>> from counterpoise.functional.batch_terms import dca_term
    >>> dca = LossSum(cross_entropy, dca_term, weight=10.0)
    >>> dca(torch.zeros(2, 2), torch.tensor([0, 0]))
    tensor(5.6931)
    """

    base: Loss
    term: Loss
    weight: float

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        *,
        ignore_index: int = IGNORE_INDEX,
        sample_weight: Tensor | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> Tensor:
        """Both losses of the same batch."""
        used = _used(ignore_index=ignore_index, sample_weight=sample_weight, group=group)
        return self.base(logits, labels, **used) + self.weight * self.term(logits, labels, **used)


class SupervisedObjective(nn.Module):
    """A model with any loss of `counterpoise.functional`, or any function of logits and labels.

    In evaluation `.loss` is the cross-entropy, whatever the training loss: it is what methods are compared by.

    Args:
        model: returns logits `[..., K]`, or an object or mapping with `logits`.
        loss: called as `loss(logits, labels)`; to train on several devices it must take `group`, too.
        ignore_index: positions with this label take no part, in training and in evaluation.
        process_group: over which each batch is sharded; passed to the loss as `group`.

    >>> import torch
    >>> objective = SupervisedObjective(nn.Linear(4, 3), cross_entropy)
    >>> output = objective(torch.zeros(2, 4), labels=torch.tensor([0, 2]))
    >>> output.loss.backward()
    """

    accepts_loss_kwargs = False

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        ignore_index: int = IGNORE_INDEX,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        require_model(model, name="model")
        if not callable(loss):
            raise TypeError(f"loss must be a function of logits and labels, got {type(loss).__name__}")
        self.primary = model
        self.training_loss = loss
        self.ignore_index = ignore_index
        self.process_group = process_group

    @property
    def models(self) -> list[nn.Module]:
        """The one model."""
        return [self.primary]

    def __deepcopy__(self, memo: dict[int, Any]) -> "SupervisedObjective":
        return copied(self, memo)

    def forward(
        self, *inputs: Any, labels: Tensor | None = None, sample_weight: Tensor | None = None, **named_inputs: Any
    ) -> ObjectiveOutput:
        """Run the model on `inputs` and `named_inputs`, and its loss where there are labels."""
        logits = call_for_logits(self.primary, inputs, named_inputs)
        if labels is None or not self.training:
            return evaluation_output(logits, labels, ignore_index=self.ignore_index, sample_weight=sample_weight)
        warn_of_probabilities(self.primary, logits)
        used = _used(ignore_index=self.ignore_index, sample_weight=sample_weight, group=self.process_group)
        loss = self.training_loss(logits, labels, **used)
        return ObjectiveOutput.of(logits=logits, loss=loss, parts={"loss": loss})

    def set_progress(self, progress: float) -> None:
        """Nothing here follows a schedule."""

    def parameter_groups(self, *, lr: float, auxiliary_lr: float | None = None) -> list[dict[str, Any]]:  # noqa: ARG002
        """One group with every parameter."""
        return [parameter_group("primary", [self.primary], lr=lr)]


def _used(*, ignore_index: int, sample_weight: Tensor | None, group: dist.ProcessGroup | None) -> dict[str, Any]:
    """The keyword arguments of a loss that differ from what it does without them."""
    used: dict[str, Any] = {} if ignore_index == IGNORE_INDEX else {"ignore_index": ignore_index}
    options = {"sample_weight": sample_weight, "group": group}
    return used | {name: value for name, value in options.items() if value is not None}


def evaluation_output(
    logits: Tensor,
    labels: Tensor | None,
    *,
    ignore_index: int = IGNORE_INDEX,
    sample_weight: Tensor | None = None,
) -> ObjectiveOutput:
    """Logits with their cross-entropy, if there are labels.

    Never communicates: ranks may have different numbers of batches to evaluate.
    """
    if labels is None:
        return ObjectiveOutput.of(logits=logits)
    loss = cross_entropy(logits, labels, ignore_index=ignore_index, sample_weight=sample_weight)
    return ObjectiveOutput.of(logits=logits, loss=loss)
