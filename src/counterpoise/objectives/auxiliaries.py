"""Kinds of auxiliaries: what each is shown of a training step, and the cheaper ways to answer.

Only logits couple an auxiliary to the primary, and the primary takes them as constants. So an auxiliary may train on
some steps only, see smaller images, answer from memory, or be no network of its own. Each kind below is a module around
another auxiliary, and they can be nested: `Seldom(SharedTrunk(network, after="layer2"), every=4)`.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils import _pytree

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
    """An auxiliary that learns from every `every`-th step alone, or from a share of each batch; it teaches on all.

    Where it does not learn it needs no backward pass: of an auxiliary as large as the primary, `every=4` saves half.

    Args:
        auxiliary: any.
        every: it learns from the first step, and from every so many after it. A step is a call: where gradients of
            several batches are accumulated, it counts batches. Under DDP, `find_unused_parameters=True` allows for
            the steps on which it does not learn.
        share: of the samples of a batch that it learns from, the first ones; its gradient is their weighted mean.

    >>> auxiliary, images = Seldom(nn.Linear(4, 3), every=2), torch.zeros(2, 4)
    >>> step = Step((images,), {}, nn.Linear(4, 3), torch.zeros(2, 3), {})
    >>> [auxiliary(step).requires_grad for _ in range(4)]
    [True, False, True, False]
    """

    def __init__(self, auxiliary: nn.Module, *, every: int = 1, share: float = 1.0) -> None:
        super().__init__(auxiliary)
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {share}")
        if share < 1 and features_of(auxiliary):
            raise ValueError("an auxiliary that shares the primary's trunk takes whole batches; use every, not share")
        self.every = every
        self.share = share
        self.steps = 0

    def forward(self, step: Step) -> Tensor:
        """Logits of the whole batch; with a gradient where the auxiliary learns."""
        learns, self.steps = self.steps == 0, (self.steps + 1) % self.every
        if not learns:
            with torch.no_grad():
                return logits_of(self.auxiliary, step)
        count = len(step.logits)
        learning = max(1, round(self.share * count))
        if learning >= count:
            return logits_of(self.auxiliary, step)
        own = logits_of(self.auxiliary, _rows(step, slice(None, learning), count=count))
        with torch.no_grad():
            others = logits_of(self.auxiliary, _rows(step, slice(learning, None), count=count))
        constant = own.detach()
        # The same values with a steeper gradient: the loss divides by all samples, and this is the mean over some.
        return torch.cat([constant + (own - constant) * _whole_over_part(step, learning), others])

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


class MovingAverage(nn.Module):
    """The exponential moving average of the primary as an auxiliary that learns nothing (a mean teacher).

    It is moved towards the primary before it answers, once a step. Tarvainen and Valpola, NeurIPS 2017.

    Args:
        primary: of which it begins as a copy.
        decay: share of itself that it keeps in a step.
    """

    takes_step = True

    def __init__(self, primary: nn.Module, *, decay: float = 0.99) -> None:
        super().__init__()
        require_model(primary, name="primary")
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}")
        self.average = copy.deepcopy(primary).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def forward(self, step: Step) -> Tensor:
        """Logits of the average."""
        for mine, theirs in zip(self.average.parameters(), step.primary.parameters(), strict=True):
            mine.lerp_(theirs.to(mine), 1 - self.decay)
        return call_for_logits(self.average, step.inputs, step.named_inputs)


class Smaller(_Around):
    """An auxiliary that sees images at a fraction of their side: at 0.5, a quarter of the work.

    Args:
        auxiliary: a model that takes images of any size.
        scale: of height and width.
    """

    def __init__(self, auxiliary: nn.Module, *, scale: float = 0.5) -> None:
        super().__init__(auxiliary)
        if not 0 < scale < 1:
            raise ValueError(f"scale must be between 0 and 1, got {scale}")
        if features_of(auxiliary):
            raise ValueError(
                "an auxiliary that shares the primary's trunk does not see images; it cannot have smaller ones"
            )
        self.scale = scale

    def forward(self, step: Step) -> Tensor:
        """Logits of the smaller images `[b, C, scale H, scale W]`."""
        return logits_of(self.auxiliary, _with_images(step, self._smaller))

    def _smaller(self, images: Tensor) -> Tensor:
        shape = [max(1, round(self.scale * length)) for length in images.shape[-2:]]
        return F.interpolate(images, size=shape, mode="area")


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


class OnDevice(_Around):
    """An auxiliary on a device of its own: batches go there, logits `[b, K]` come back, gradients find their way.

    Args:
        auxiliary: any that sees the inputs. It stays on the device wherever the whole objective is moved.
        device: such as `cuda:1`.
    """

    def __init__(self, auxiliary: nn.Module, *, device: torch.device | str) -> None:
        super().__init__(auxiliary)
        self.device = torch.device(device)
        self.auxiliary.to(self.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "OnDevice":  # noqa: FBT001
        def kept_here(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.device == self.device else tensor.to(self.device, moved.dtype)

        super()._apply(kept_here, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, step: Step) -> Tensor:
        """Logits, on the device of the primary's."""

        def moved(value: Any) -> Any:
            # A copy to the host that nobody waits for may be read before it is there.
            waits = self.device.type == "cpu"
            return _pytree.tree_map_only(Tensor, lambda each: each.to(self.device, non_blocking=not waits), value)

        there = replace(
            step,
            inputs=moved(step.inputs),
            named_inputs=moved(dict(step.named_inputs)),
            features=moved(dict(step.features)),
            logits=moved(step.logits),
            weight=moved(step.weight),
        )
        return logits_of(self.auxiliary, there).to(step.logits.device)


def mirrored_at_random(images: Tensor) -> Tensor:
    """Each image `[..., W]` of a batch, or its mirror image, by chance: a view as likely as the one given."""
    flips = torch.rand(len(images), device=images.device) < 0.5
    return torch.where(flips.view(-1, *[1] * (images.ndim - 1)), images.flip(-1), images)


def _rows(step: Step, rows: slice, *, count: int) -> Step:
    """A part of a batch: of each input that has a row for each sample, those rows."""

    def taken(value: Any) -> Any:
        is_batched = isinstance(value, Tensor) and value.ndim > 0 and len(value) == count
        return value[rows] if is_batched else value

    return replace(
        step,
        inputs=tuple(taken(each) for each in step.inputs),
        named_inputs={name: taken(each) for name, each in step.named_inputs.items()},
        logits=step.logits[rows],
        ids=None if step.ids is None else step.ids[rows],
        weight=None if step.weight is None else step.weight[rows],
    )


def _whole_over_part(step: Step, learning: int) -> Tensor | float:
    """What a batch counts over what its first samples do; 0 where those count nothing."""
    if step.weight is None:
        return len(step.logits) / learning
    part = step.weight[:learning].sum()
    return torch.where(part > 0, step.weight.sum() / part, 0.0)


def _with_images(step: Step, change: Callable[[Tensor], Tensor]) -> Step:
    """The step with other images: of the first input, or where all have names, of the first that is a tensor."""
    if step.inputs:
        images, *others = step.inputs
        return replace(step, inputs=(change(images), *others))
    for name, value in step.named_inputs.items():
        if isinstance(value, Tensor):
            return replace(step, named_inputs={**step.named_inputs, name: change(value)})
    raise ValueError("an auxiliary changes the images that it sees, and no input is a tensor: give them as the first")
