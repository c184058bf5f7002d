"""Progressive self-knowledge distillation (PS-KD): a model whose soft labels are its own earlier predictions."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from counterpoise.functional.losses import cross_entropy
from counterpoise.objectives.kept import KeptPredictions, packed, require_ids, unpacked
from counterpoise.objectives.models import call_for_logits, copied, parameter_group, require_model
from counterpoise.objectives.output import ObjectiveOutput
from counterpoise.objectives.schedules import require_weight
from counterpoise.objectives.supervised import evaluation_output


class SelfDistillation(nn.Module):
    """`CE((1 - a) y + a p_before, p)`: labels, softened by what the model said when it last saw the sample.

    The share a grows linearly from 0 to `weight` over training. Predictions are those of the training steps, so that it
    costs nothing but their memory. Samples that were not seen yet have hard labels. Kim et al., ICCV 2021.

    Args:
        model: returns logits `[b, K]`, or an object or mapping with `logits`.
        weight: the share at the end of training, below 1.
        kept: where predictions are kept; by default in memory, all classes in float16.
        process_group: over which each batch is sharded.

    >>> objective = SelfDistillation(nn.Linear(4, 3), weight=0.8)
    >>> output = objective(torch.zeros(2, 4), labels=torch.tensor([0, 2]), ids=torch.tensor([0, 1]))
    >>> output.loss.backward()
    """

    accepts_loss_kwargs = False
    needs_ids = True

    def __init__(
        self,
        model: nn.Module,
        *,
        weight: float = 0.8,
        kept: KeptPredictions | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        require_model(model, name="model")
        if not require_weight(weight) < 1:
            raise ValueError(f"weight must be below 1, got {weight}")
        self.primary = model
        self.weight = weight
        self.kept = KeptPredictions() if kept is None else kept
        self.process_group = process_group
        self._share = 0.0

    @property
    def models(self) -> list[nn.Module]:
        """The one model."""
        return [self.primary]

    def __deepcopy__(self, memo: dict[int, Any]) -> "SelfDistillation":
        return copied(self, memo)

    def set_progress(self, progress: float) -> None:
        """Soften the labels as far as training is."""
        self._share = self.weight * progress

    def forward(
        self,
        *inputs: Any,
        labels: Tensor | None = None,
        sample_weight: Tensor | None = None,
        ids: Tensor | None = None,
        **named_inputs: Any,
    ) -> ObjectiveOutput:
        """Run the model on `inputs` and `named_inputs`; `ids` say which samples they are, int64 `[b]`."""
        logits = call_for_logits(self.primary, inputs, named_inputs)
        if labels is None or not self.training:
            return evaluation_output(logits, labels, sample_weight=sample_weight)
        ids = require_ids(ids)
        if logits.ndim != 2 or labels.ndim != 1:
            raise ValueError(f"labels must be one class for each sample, [b]; got {list(labels.shape)}")
        targets = self._targets(labels, ids, like=logits)
        self.kept.write(ids, logits, group=self.process_group)
        loss = cross_entropy(logits, targets, sample_weight=sample_weight, group=self.process_group)
        return ObjectiveOutput.of(logits=logits, loss=loss, parts={"loss": loss, "share": torch.tensor(self._share)})

    def parameter_groups(self, *, lr: float, auxiliary_lr: float | None = None) -> list[dict[str, Any]]:  # noqa: ARG002
        """One group with every parameter."""
        return [parameter_group("primary", [self.primary], lr=lr)]

    def get_extra_state(self) -> Tensor:
        """The kept predictions, for checkpoints."""
        return packed(self.kept.state_dict())

    def set_extra_state(self, state: Tensor | Mapping[str, Tensor]) -> None:
        self.kept.load_state_dict(unpacked(state))

    def _targets(self, labels: Tensor, ids: Tensor, *, like: Tensor) -> Tensor:
        classes = like.shape[-1]
        hard = nn.functional.one_hot(labels, classes).float()
        log_probabilities, known = self.kept.read(ids, classes=classes)
        return torch.where(known[:, None], torch.lerp(hard, log_probabilities.exp(), self._share), hard)
