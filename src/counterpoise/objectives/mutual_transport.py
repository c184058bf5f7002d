"""The heart: a primary model kept in balance by auxiliaries that are gone when it ships."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from counterpoise.functional.reduction import IGNORE_INDEX, as_labelled_batch
from counterpoise.functional.transport import transport_of
from counterpoise.objectives.auxiliaries import Step, features_of, logits_of, needs_ids
from counterpoise.objectives.models import (
    as_models,
    call_for_logits,
    copied,
    parameter_group,
    require_disjoint_parameters,
    require_model,
    warn_of_probabilities,
)
from counterpoise.objectives.output import ObjectiveOutput
from counterpoise.objectives.remote import Remote, RemoteAuxiliary, Role
from counterpoise.objectives.schedules import AlphaSchedule, require_weight
from counterpoise.objectives.supervised import evaluation_output
from counterpoise.objectives.trunk import recorded


class MutualTransport(nn.Module):
    """Mutual-transport ensemble (MTE): one module, one scalar, one backward pass.

    In training with labels, every model runs once on the same batch, and
    `loss = CE(f, y) + alpha (1/N) sum_i KL(g_i || f) + sum_i KL(f || g_i)`,
    where the first argument of each KL is a constant: labels and auxiliaries teach the primary f, the primary alone
    teaches the auxiliaries g_i. In evaluation, and without labels, only the primary runs; with labels, `.loss` is then
    its cross-entropy.

    Do not clip the gradients of all parameters by one joint norm: that couples the models. Clip each model, or none.

    Args:
        primary: the model to ship; returns logits `[..., K]`, or an object or mapping with `logits`.
        auxiliaries: any number of models with logits of the same shape, or kinds of `counterpoise.objectives` that cost
            less: `SharedTrunk`, `Seldom`, `Cached`, `OwnView`; or `Remote`, which other processes train.
        alpha: weight of the pull towards the auxiliaries; a number, or a function of progress in [0, 1].
        ignore_index: positions with this label take no part in any term.
        process_group: over which each batch is sharded. Needed only where shards are of uneven weight.

    >>> model = MutualTransport(nn.Linear(4, 3), auxiliaries=[nn.Linear(4, 3)], alpha=0.8)
    >>> optimizer = torch.optim.SGD(model.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9)
    >>> output = model(torch.randn(2, 4), labels=torch.tensor([0, 2]))
    >>> output.loss.backward()
    >>> sorted(output.parts)
    ['alpha', 'auxiliary_transport_0', 'cross_entropy', 'primary_transport']
    """

    accepts_loss_kwargs = False

    def __init__(
        self,
        primary: nn.Module,
        auxiliaries: Iterable[nn.Module],
        alpha: float | AlphaSchedule,
        *,
        ignore_index: int = IGNORE_INDEX,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        require_model(primary, name="primary")
        auxiliaries = as_models(auxiliaries, name="auxiliaries")
        require_disjoint_parameters(
            {"primary": primary} | {f"auxiliaries.{index}": auxiliary for index, auxiliary in enumerate(auxiliaries)}
        )
        self.primary = primary
        self.auxiliaries = nn.ModuleList(auxiliaries)
        self.ignore_index = ignore_index
        self.process_group = process_group
        self.alpha = alpha
        self.needs_ids = any(needs_ids(auxiliary) for auxiliary in auxiliaries)
        self._features: dict[str, bool] = {}
        for auxiliary in auxiliaries:
            for name, matters in features_of(auxiliary).items():
                self._features[name] = matters or self._features.get(name, False)

    @property
    def alpha(self) -> Tensor:
        """The weight in force, a scalar. It can be set as in the constructor, to a number or to a schedule."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float | AlphaSchedule) -> None:
        self._alpha = _at(alpha, 0.0)
        self.schedule = alpha

    @property
    def models(self) -> list[nn.Module]:
        """The primary, then the auxiliaries."""
        return [self.primary, *self.auxiliaries]

    def set_progress(self, progress: float) -> None:
        """Tell the alpha schedule how far training is, from 0.0 to 1.0; a constant alpha stays."""
        if callable(self.schedule):
            self._alpha = _at(self.schedule, progress)

    def in_role(self, role: Role) -> "MutualTransport | RemoteAuxiliary":
        """What one process trains of this where auxiliaries run in other processes: the primary, or one auxiliary."""
        if role.auxiliary is not None:
            return RemoteAuxiliary(
                self.get_submodule(f"auxiliaries.{role.auxiliary}"),
                role.links[0],
                ignore_index=self.ignore_index,
                process_group=role.group,
            )
        if len(role.links) != len(self.auxiliaries):
            raise ValueError(
                f"{len(self.auxiliaries)} auxiliaries need ranks of their own, {len(role.links)} have some"
            )
        remote = [Remote(link) for link in role.links]
        return MutualTransport(
            self.primary, remote, self.schedule, ignore_index=self.ignore_index, process_group=role.group
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "MutualTransport":
        return copied(self, memo)

    def forward(
        self,
        *inputs: Any,
        labels: Tensor | None = None,
        sample_weight: Tensor | None = None,
        ids: Tensor | None = None,
        **named_inputs: Any,
    ) -> ObjectiveOutput:
        """Run the models on `inputs` and `named_inputs`; every model gets the same.

        `ids` say which samples they are, int64 `[b]`, where `needs_ids`.
        """
        if labels is None or not self.training:
            logits = call_for_logits(self.primary, inputs, named_inputs)
            return evaluation_output(logits, labels, ignore_index=self.ignore_index, sample_weight=sample_weight)
        with recorded(self.primary, self._features) as features:
            logits = call_for_logits(self.primary, inputs, named_inputs)
        warn_of_probabilities(self.primary, logits)
        batch = as_labelled_batch(logits, labels, ignore_index=self.ignore_index, sample_weight=sample_weight)
        step = Step(
            inputs, named_inputs, self.primary, logits.detach(), features, ids, batch.weight, self.process_group
        )
        of_auxiliaries = [logits_of(auxiliary, step) for auxiliary in self.auxiliaries]
        terms = transport_of(batch, of_auxiliaries, alpha=self.alpha, group=self.process_group)
        parts = {
            "cross_entropy": terms.cross_entropy,
            "primary_transport": terms.primary_transport,
            "alpha": self.alpha,
        }
        parts |= {f"auxiliary_transport_{index}": term for index, term in enumerate(terms.auxiliary_transport)}
        return ObjectiveOutput.of(logits=logits, loss=terms.loss, parts=parts)

    def parameter_groups(self, *, lr: float, auxiliary_lr: float) -> list[dict[str, Any]]:
        """Two groups, `primary` and `auxiliaries`; the learning rate of the auxiliaries follows no schedule."""
        groups = [
            parameter_group("primary", [self.primary], lr=lr),
            parameter_group("auxiliaries", self.auxiliaries, lr=auxiliary_lr, scheduled=False),
        ]
        return [group for group in groups if group["params"]]


def _at(schedule: float | AlphaSchedule, progress: float) -> Tensor:
    """The weight at a point of training, checked.

    A tensor, so that a compiled step is not compiled anew for each value; on the host and not a buffer, so that
    `.to(bfloat16)` does not round it and checkpoints do not hold what the schedule says.
    """
    alpha = require_weight(schedule(progress) if callable(schedule) else schedule)
    return torch.tensor(alpha, dtype=torch.float64, device="cpu")
