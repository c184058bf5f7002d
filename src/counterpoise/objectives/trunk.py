"""Auxiliaries that take the primary's features: a network of their own from a named module on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from counterpoise.objectives.auxiliaries import Step
from counterpoise.objectives.models import call_for_logits, require_model


class SharedTrunk(nn.Module):
    """An auxiliary that begins where a module of the primary ends.

    Up to and including the module `after`, the primary's outputs are taken as constants in place of the network's own;
    what comes later is the network's. Nothing of the trunk is trained by it, and the primary is left as it is. The
    parameters of the network's own trunk are given up.

    Networks must define their modules in the order in which they run them, as those of torchvision, timm and
    transformers do; the first step checks it. Up to the cut, both networks' modules have the same names.

    Args:
        network: the whole network, such as another one of the primary's kind; its trunk is taken out of it.
        after: the last module that is shared: `layer2` of a ResNet, `blocks.5` of a vision transformer, `stages.1` of a
            ConvNeXt, or any other; `halfway(network)` finds one.

    >>> def network():
    ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> from counterpoise.objectives import MutualTransport
    >>> model = MutualTransport(network(), [SharedTrunk(network(), after="1")], alpha=0.8)
    >>> [name for name, _ in model.auxiliaries.named_parameters()]
    ['0.network.2.weight', '0.network.2.bias']
    """

    takes_step = holds_network = True

    def __init__(self, network: nn.Module, *, after: str) -> None:
        super().__init__()
        require_model(network, name="network")
        self.after = after
        self._stand_ins = _take_trunk_out(network, after)
        self.features = {name: name == after for name in self._stand_ins}
        self.network = network
        self._checked = False

    def forward(self, step: Step) -> Tensor:
        """Logits from the primary's features on."""
        for name, module in self._stand_ins.items():
            module.replayed = step.features.get(name)
        try:
            if self._checked or torch.compiler.is_compiling():
                return call_for_logits(self.network, step.inputs, step.named_inputs)
            with (
                _order_checked(self.network, after=self.after),
                _fitting(step.features.get(self.after), after=self.after),
            ):
                logits = call_for_logits(self.network, step.inputs, step.named_inputs)
            self._checked = True
            return logits
        finally:
            for module in self._stand_ins.values():
                module.replayed = None


def _replay(module: Any, *_: Any, **__: Any) -> Any:
    """The forward pass of a module of the trunk: whatever it is given, it returns what the primary's module did."""
    return module.replayed


@contextmanager
def recorded(primary: nn.Module, features: Mapping[str, bool]) -> Iterator[dict[str, Any]]:
    """Outputs of the primary's modules by name, detached, while it runs inside; its hooks are gone afterwards.

    Args:
        primary: that is watched.
        features: names of modules, and whether the values matter: such an output is copied, because the module after it
            may change it in place.
    """
    outputs: dict[str, Any] = {}
    handles = []
    for name, matters in features.items():
        module = _module(primary, name, of="the primary")

        def keep(_: nn.Module, __: Any, output: Any, *, name: str = name, matters: bool = matters) -> None:
            constant = _pytree.tree_map_only(Tensor, Tensor.detach, output)
            outputs[name] = _pytree.tree_map_only(Tensor, Tensor.clone, constant) if matters else constant

        handles.append(module.register_forward_hook(keep))
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
    # Others may be lists of modules, which are not run themselves.
    if missing := [name for name, matters in features.items() if matters and name not in outputs]:
        raise ValueError(f"the primary did not run its module {', '.join(missing)}, whose output an auxiliary takes")


def halfway(network: nn.Module) -> str:
    """The module in the middle of a network, by its stages or blocks, for `SharedTrunk`.

    >>> halfway(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)))
    '1'
    """
    children = dict(network.named_children())
    if "layer2" in children:
        return "layer2"
    if not children:
        raise ValueError(f"{type(network).__name__} has no modules to be cut between; name the module to cut after")
    if isinstance(network, nn.Sequential | nn.ModuleList) and len(children) > 1:
        return list(children)[len(children) // 2 - 1]
    # By modules and not by parameters, of which some networks have most in their head.
    largest = max(children, key=lambda name: len(list(children[name].modules())))
    return f"{largest}.{halfway(children[largest])}"


def _take_trunk_out(network: nn.Module, after: str) -> dict[str, Any]:
    """Empty the module `after` and all that are defined before it, so that they replay the primary's; by name."""
    _module(network, after, of="the auxiliary's network")
    emptied: dict[str, Any] = {}
    parent, prefix, parts = network, "", after.split(".")
    for depth, part in enumerate(parts, 1):
        for name, module in parent.named_children():
            if name == part:
                break
            emptied[f"{prefix}{name}"] = _emptied(module)
        # Such as the positions and the class token of a vision transformer: they act on what is replayed.
        for parameter in parent.parameters(recurse=False):
            parameter.requires_grad_(False)
        if depth < len(parts):
            parent, prefix = parent.get_submodule(part), f"{prefix}{part}."
    emptied[after] = _emptied(parent.get_submodule(parts[-1]))
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ValueError(f"after {after!r} {type(network).__name__} has nothing to train; cut it earlier")
    return emptied


def _emptied(module: nn.Module) -> Any:
    """A module without parameters, buffers and submodules; what else it knows, such as sizes, others may ask it for."""
    for contents in (module._parameters, module._buffers, module._modules):
        contents.clear()
    module.replayed = None  # type: ignore[assignment]
    module.forward = MethodType(_replay, module)
    return module


@contextmanager
def _fitting(features: Any, *, after: str) -> Iterator[None]:
    """Say what is wrong where a network cannot take the primary's features."""
    try:
        yield
    except RuntimeError as error:
        shape = f" of {list(features.shape)}" if isinstance(features, Tensor) else ""
        raise ValueError(
            f"the auxiliary cannot go on from the primary's features{shape} after {after!r}: {str(error).rstrip('.')}; "
            "it must be of the primary's width there, so take the primary's own kind of network (of a recipe, "
            "--auxiliary.name and --auxiliary.width)"
        ) from error


@contextmanager
def _order_checked(network: nn.Module, *, after: str) -> Iterator[None]:
    """Refuse a network that does not run its modules in the order in which it defines them."""
    order: list[str] = []
    names = [*_siblings(network, after)]
    handles = [
        network.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: order.append(name))
        for name in names
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if after not in order:
        raise ValueError(f"the auxiliary's network does not run {after!r}; cut it after another module")
    cut = names.index(after)
    wrong = [name for name in order[: order.index(after)] if names.index(name) > cut]
    wrong += [name for name in order[order.index(after) + 1 :] if names.index(name) <= cut]
    if wrong:
        raise ValueError(
            f"{type(network).__name__} does not run its modules in the order in which it defines them: {wrong[0]!r} is "
            f"on the other side of {after!r}; cut it after another module, or define its modules in order"
        )


def _siblings(network: nn.Module, after: str) -> Iterator[str]:
    """The modules beside those on the way to one, and itself, in the order of definition, outermost ones alone."""
    first, _, rest = after.partition(".")
    for name, child in network.named_children():
        if name == first and rest:
            yield from (f"{name}.{inner}" for inner in _siblings(child, rest))
        else:
            yield name


def _module(network: nn.Module, name: str, *, of: str) -> nn.Module:
    try:
        return network.get_submodule(name)
    except AttributeError:
        known = ", ".join(name for name, _ in network.named_children())
        raise ValueError(f"{of} has no module {name!r}; it begins with {known}") from None
