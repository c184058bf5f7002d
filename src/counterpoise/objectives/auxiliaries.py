"""Kinds of auxiliaries: what each is shown of a training step, and the cheaper ways to answer.

Only logits couple an auxiliary to the primary, and the primary takes them as constants. So an auxiliary may train on
some steps only, answer from memory, or see another view. Each kind below is a module around
another auxiliary, and they can be nested: `Seldom(SharedTrunk(network, after="layer2"), every=4)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from counterpoise.objectives.kept import KeptPredictions, packed, require_ids, unpacked
from counterpoise.objectives.models import call_for_logits, network_in, require_model


@dataclass(frozen=True)
class Step:
    """What an auxiliary may know of a training step.

    Attributes:
        inputs: what the primary was called with.
        named_inputs: by keyword.
        primary: the model that ships.
        logits: of the primary, detached, `[..., K]`.
        features: outputs of the primary's modules that an auxiliary asked for, by name, detached.
        ids: of the samples, int64 `[b]`, or None where nobody gave them.
        weight: what each position counts in the losses, `[...]`, 0 for what is ignored; None where all count alike. The
            labels themselves are kept from auxiliaries.
        process_group: over which the batch is sharded, or None.
    """

    inputs: tuple[Any, ...]
    named_inputs: Mapping[str, Any]
    primary: nn.Module
    logits: Tensor
    features: Mapping[str, Any]
    ids: Tensor | None = None
    weight: Tensor | None = None
    process_group: dist.ProcessGroup | None = None


def logits_of(auxiliary: nn.Module, step: Step) -> Tensor:
    """Logits of an auxiliary, `[..., K]`: they carry a gradient where it learns from the step, and none where not.

    Any model is an auxiliary, and is called with the inputs. One whose attribute `takes_step` is true is called with
    the `Step`; its attribute `features` names modules of the primary whose outputs it needs, as `features_of` says.
    """
    if getattr(auxiliary, "takes_step", False):
        answer: Tensor = auxiliary(step)
        return answer
    return call_for_logits(auxiliary, step.inputs, step.named_inputs)


def features_of(auxiliary: nn.Module) -> Mapping[str, bool]:
    """Modules of the primary whose outputs an auxiliary takes, and whether their values matter, or but their shapes."""
    features: Mapping[str, bool] = getattr(auxiliary, "features", {})
    return features


def needs_ids(auxiliary: nn.Module) -> bool:
    """Whether an auxiliary must be told which samples a batch has."""
    return any(getattr(module, "needs_ids", False) for module in auxiliary.modules())


class _Around(nn.Module):
    """Around another auxiliary: of the same network, and with the same needs."""

    takes_step = holds_network = True

    def __init__(self, auxiliary: nn.Module) -> None:
        super().__init__()
        require_model(auxiliary, name="auxiliary")
        self.auxiliary = auxiliary

    @property
    def network(self) -> nn.Module:
        """The network inside, whose layers and head an optimizer may ask for."""
        return network_in(self.auxiliary)

    @property
    def features(self) -> Mapping[str, bool]:
        """Those of the auxiliary."""
        return features_of(self.auxiliary)


class Seldom(_Around):
    """An auxiliary that learns from every `every`-th step alone, and teaches on all.

    Where it does not learn it needs no backward pass: of an auxiliary as large as the primary, `every=4` saves half.

    Args:
        auxiliary: any.
        every: it learns from the first step, and from every so many after it. A step is a call: where gradients of
            several batches are accumulated, it counts batches. Under DDP, `find_unused_parameters=True` allows for
            the steps on which it does not learn.

    >>> auxiliary, images = Seldom(nn.Linear(4, 3), every=2), torch.zeros(2, 4)
    >>> step = Step((images,), {}, nn.Linear(4, 3), torch.zeros(2, 3), {})
    >>> [auxiliary(step).requires_grad for _ in range(4)]
    [True, False, True, False]
    """

    def __init__(self, auxiliary: nn.Module, *, every: int) -> None:
        super().__init__(auxiliary)
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every = every
        self.steps = 0

    def forward(self, step: Step) -> Tensor:
        """Logits of the whole batch; with a gradient where the auxiliary learns."""
        learns, self.steps = self.steps == 0, (self.steps + 1) % self.every
        if learns:
            return logits_of(self.auxiliary, step)
        with torch.no_grad():
            return logits_of(self.auxiliary, step)

    def get_extra_state(self) -> Tensor:
        """The steps since it last learned, for checkpoints."""
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        self.steps = int(state) % self.every


class Cached(_Around):
    """An auxiliary that runs on every `every`-th step alone; on others its last word on each sample stands.

    Predictions are kept for each sample. Where there are none yet the primary's own stand in, which pull nowhere. An
    auxiliary as large as the primary costs `1 / every` of it. Batches must come with `ids`.

    Args:
        auxiliary: any.
        every: as of `Seldom`; on the other steps it does not run.
        kept: where predictions are kept; by default in memory, all classes in float16.

    >>> auxiliary, images = Cached(nn.Linear(4, 3), every=2), torch.zeros(2, 4)
    >>> step = Step((images,), {}, nn.Linear(4, 3), torch.zeros(2, 3), {}, ids=torch.tensor([7, 3]))
    >>> first, second = auxiliary(step), auxiliary(step)
    >>> bool((first.softmax(-1) - second.softmax(-1)).abs().max() < 1e-3), second.requires_grad
    (True, False)
    """

    needs_ids = True

    def __init__(self, auxiliary: nn.Module, *, every: int, kept: KeptPredictions | None = None) -> None:
        super().__init__(auxiliary)
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every = every
        self.kept = KeptPredictions() if kept is None else kept
        self.steps = 0

    def forward(self, step: Step) -> Tensor:
        """Logits of the batch, computed or remembered."""
        ids = require_ids(step.ids)
        runs, self.steps = self.steps == 0, (self.steps + 1) % self.every
        if runs:
            logits = logits_of(self.auxiliary, step)
            self.kept.write(ids, logits, group=step.process_group)
            return logits
        log_probabilities, known = self.kept.read(ids, classes=step.logits.shape[-1])
        own = torch.log_softmax(step.logits.float(), -1)
        return torch.where(known[:, None], log_probabilities.to(own), own)

    def get_extra_state(self) -> Tensor:
        """The steps since it last ran and the kept predictions, for checkpoints."""
        return packed({"steps": torch.tensor(self.steps), **self.kept.state_dict()})

    def set_extra_state(self, state: Tensor | Mapping[str, Tensor]) -> None:
        found = unpacked(state)
        self.steps = int(found["steps"]) % self.every
        self.kept.load_state_dict(found)


class OwnView(_Around):
    """An auxiliary that sees an augmented view of its own of each batch.

    Args:
        auxiliary: any that sees images.
        view: of the batch that the primary sees; it draws from torch's global random state.
    """

    def __init__(self, auxiliary: nn.Module, *, view: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__(auxiliary)
        if features_of(auxiliary):
            raise ValueError("an auxiliary that shares the primary's trunk shares its view of the images too")
        self.view = mirrored_at_random if view is None else view

    def forward(self, step: Step) -> Tensor:
        """Logits of the view."""
        return logits_of(self.auxiliary, _with_images(step, self.view))


def mirrored_at_random(images: Tensor) -> Tensor:
    """Each image `[..., W]` of a batch, or its mirror image, by chance: a view as likely as the one given."""
    flips = torch.rand(len(images), device=images.device) < 0.5
    return torch.where(flips.view(-1, *[1] * (images.ndim - 1)), images.flip(-1), images)


def _with_images(step: Step, change: Callable[[Tensor], Tensor]) -> Step:
    """The step with other images: of the first input, or where all have names, of the first that is a tensor."""
    if step.inputs:
        images, *others = step.inputs
        return replace(step, inputs=(change(images), *others))
    for name, value in step.named_inputs.items():
        if isinstance(value, Tensor):
            return replace(step, named_inputs={**step.named_inputs, name: change(value)})
    raise ValueError("an auxiliary changes the images that it sees, and no input is a tensor: give them as the first")
