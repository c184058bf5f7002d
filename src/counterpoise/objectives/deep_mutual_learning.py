"""Deep mutual learning: peers that all see the labels, the comparison that shows what MTE changes."""

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from counterpoise.functional.reduction import IGNORE_INDEX
from counterpoise.functional.transport import deep_mutual
from counterpoise.objectives.models import (
    as_models,
    call_for_logits,
    copied,
    parameter_group,
    require_disjoint_parameters,
)
from counterpoise.objectives.output import ObjectiveOutput
from counterpoise.objectives.schedules import require_weight
from counterpoise.objectives.supervised import evaluation_output


class DeepMutualLearning(nn.Module):
    """Each model trains with `CE + alpha mean_{j != i} KL(p_j || p_i)`; the first is the one reported.

    All models are updated together from one scalar. In evaluation, and without labels, the first alone runs.

    Args:
        models: two or more; the first is `primary`.
        alpha: weight of the pull towards the peers.
        ignore_index: positions with this label take no part.
        process_group: over which each batch is sharded. Needed only where shards are of uneven weight.

    >>> import torch
    >>> objective = DeepMutualLearning([nn.Linear(4, 3), nn.Linear(4, 3)], alpha=1.0)
    >>> objective(torch.zeros(2, 4), labels=torch.tensor([0, 2])).loss.backward()
    """

    accepts_loss_kwargs = False

    def __init__(
        self,
        models: Iterable[nn.Module],
        alpha: float,
        *,
        ignore_index: int = IGNORE_INDEX,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        models = as_models(models, name="models")
        if len(models) < 2:
            raise ValueError(f"deep mutual learning needs at least two models, got {len(models)}")
        require_disjoint_parameters({f"models.{index}": model for index, model in enumerate(models)})
        self.models = nn.ModuleList(models)
        self.alpha = alpha
        self.ignore_index = ignore_index
        self.process_group = process_group

    @property
    def alpha(self) -> float:
        """The weight of the peers."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        if callable(alpha):
            raise ValueError("deep mutual learning takes a number for alpha, not a schedule")
        self._alpha = require_weight(alpha)

    @property
    def primary(self) -> nn.Module:
        """The first model."""
        return self.models[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> "DeepMutualLearning":
        return copied(self, memo)

    def forward(
        self, *inputs: Any, labels: Tensor | None = None, sample_weight: Tensor | None = None, **named_inputs: Any
    ) -> ObjectiveOutput:
        """Run the models on `inputs` and `named_inputs`; every model gets the same."""
        if labels is None or not self.training:
            logits = call_for_logits(self.primary, inputs, named_inputs)
            return evaluation_output(logits, labels, ignore_index=self.ignore_index, sample_weight=sample_weight)
        all_logits = [call_for_logits(model, inputs, named_inputs) for model in self.models]
        terms = deep_mutual(
            all_logits,
            labels,
            alpha=self.alpha,
            ignore_index=self.ignore_index,
            sample_weight=sample_weight,
            group=self.process_group,
        )
        parts = {f"cross_entropy_{index}": term for index, term in enumerate(terms.cross_entropy)}
        parts |= {f"transport_{index}": term for index, term in enumerate(terms.transport)}
        return ObjectiveOutput.of(logits=all_logits[0], loss=terms.loss, parts=parts)

    def set_progress(self, progress: float) -> None:
        """Nothing here follows a schedule."""

    def parameter_groups(self, *, lr: float, auxiliary_lr: float | None = None) -> list[dict[str, Any]]:  # noqa: ARG002
        """One group for each model, all with the same learning rate: peers are no auxiliaries."""
        return [parameter_group(f"model_{index}", [model], lr=lr) for index, model in enumerate(self.models)]
