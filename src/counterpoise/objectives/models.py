"""Calling somebody else's model, and naming its parameters."""

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)

_looked_at: WeakSet[nn.Module] = WeakSet()
"""Models whose first training batch was looked at; another look would make the device wait."""


def call_for_logits(model: nn.Module, inputs: Sequence[Any], named_inputs: Mapping[str, Any]) -> Tensor:
    """Run a model that returns a tensor, or an object or mapping with `logits`."""
    output = model(*inputs, **named_inputs)
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise ValueError(
        f"{type(model).__name__} returned {type(output).__name__}; "
        "a model must return a tensor of logits, or an object or mapping with a tensor called 'logits'"
    )


def warn_of_probabilities(model: nn.Module, logits: Tensor) -> None:
    """Warn once if the rows of a model's first training batch are probabilities instead of logits."""
    if torch.compiler.is_compiling() or logits.is_meta or model in _looked_at:
        return
    _looked_at.add(model)
    rows = logits.detach().double()
    # Rows of half precision sum to 1 within a percent.
    if rows.shape[-1] > 1 and rows.numel() and bool(((rows >= 0).all(-1) & ((rows.sum(-1) - 1).abs() < 0.01)).all()):
        warnings.warn(
            f"{type(model).__name__} returns rows that are not negative and sum to 1, such as probabilities; "
            "training takes them for logits, and applies a softmax of its own. Remove the softmax at the model's end",
            stacklevel=3,
        )


def require_model(model: nn.Module, *, name: str) -> None:
    """Refuse what is no `nn.Module`, such as a model's class instead of a model."""
    if not isinstance(model, nn.Module):
        kind = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"{name} must be an nn.Module, got {kind}; give a model that returns logits")


def as_models(models: Iterable[nn.Module], *, name: str) -> list[nn.Module]:
    """A list of models; a single one is refused: `nn.Sequential`, for instance, would be taken for its layers."""
    if isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList):
        raise ValueError(f"{name} is one {type(models).__name__}, not a list of models; give a list: {name}=[...]")
    if not isinstance(models, Iterable):
        raise TypeError(f"{name} must be a list of models, got {type(models).__name__}; give a list: {name}=[...]")
    listed = list(models)
    for index, model in enumerate(listed):
        require_model(model, name=f"{name}[{index}]")
    return listed


def require_disjoint_parameters(models: Mapping[str, nn.Module]) -> None:
    """Refuse models that share a parameter: it would receive the gradients of two losses and stand in two groups."""
    owners: dict[int, str] = {}
    for name, model in models.items():
        for parameter_name, parameter in model.named_parameters():
            full_name = f"{name}.{parameter_name}"
            owner = owners.setdefault(id(parameter), full_name)
            if owner != full_name:
                raise ValueError(f"{owner} and {full_name} are one parameter; give each model its own copy")


def copied(objective: Module, memo: dict[int, Any]) -> Module:
    """A deep copy that shares the process group, of which there can be no copy; for `__deepcopy__`."""
    group = objective.process_group
    duplicate = type(objective).__new__(type(objective))
    memo |= {id(objective): duplicate, id(group): group}
    duplicate.__setstate__(copy.deepcopy(objective.__dict__, memo))  # type: ignore[no-untyped-call]
    return duplicate


def parameter_group(name: str, models: Iterable[nn.Module], *, lr: float, scheduled: bool = True) -> dict[str, Any]:
    """One optimizer group with every parameter of the models, frozen ones included, each once."""
    parameters = [parameter for model in models for parameter in model.parameters()]
    return {"name": name, "params": parameters, "lr": lr, "scheduled": scheduled}


def network_in(model: nn.Module) -> nn.Module:
    """The network that a model is, or has inside: that it normalises images for, or trains more cheaply.

    Those that have one say so by `holds_network`: a part of somebody's own model may be called `network`, too.
    """
    return model.get_submodule("network") if getattr(model, "holds_network", False) else model
