"""Optimizers by name, over an objective's parameters divided by layer and by whether they decay."""

from collections.abc import Collection
from fnmatch import fnmatch
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from counterpoise._extras import require
from counterpoise.models.weights import heads_of
from counterpoise.objectives import Objective
from counterpoise.objectives.models import network_in
from counterpoise.recipes.config import OptimizerOptions

Group = dict[str, Any]

DECIDED = ("weight_decay", "momentum", "nesterov")
"""Values of a group that the recipe decides, besides the learning rate; the others may be an optimizer's own state."""


def build_optimizer(objective: Objective, options: OptimizerOptions) -> Optimizer:
    """The optimizer that a recipe names, over `parameter_groups`."""
    groups = parameter_groups(objective, options)
    if options.name == "sgd":
        return SGD(
            groups,
            lr=options.lr,
            momentum=options.momentum,
            nesterov=options.nesterov,
            weight_decay=options.weight_decay,
        )
    if options.name == "adamw":
        return AdamW(groups, lr=options.lr, weight_decay=options.weight_decay)
    library = require("timm.optim", extra="train", purpose=f"the optimizer {options.name}")
    if options.name not in library.list_optimizers():
        raise ValueError(
            f"there is no optimizer {options.name!r}; there are sgd, adamw, and those of timm: "
            f"{', '.join(library.list_optimizers())}"
        )
    if library.get_optimizer_info(options.name).second_order:
        raise ValueError(f"optimizer {options.name} needs second derivatives, which a training step does not compute")
    optimizer: Optimizer = library.create_optimizer_v2(
        groups, opt=options.name, lr=options.lr, weight_decay=options.weight_decay, momentum=options.momentum
    )
    return optimizer


def parameter_groups(objective: Objective, options: OptimizerOptions) -> list[Group]:
    """The objective's groups, each divided as timm does it, for every model, where the options ask for it.

    A group has `name`, `params`, `lr`, `scheduled` and `weight_decay`. With a layer decay of d, a parameter of the l-th
    of L layers learns at `lr d^(L - l)`; the head, at `lr`. Frozen parameters take part in none of the divided groups.
    """
    follows = options.auxiliary_factor is not None
    groups = objective.parameter_groups(lr=options.lr, auxiliary_lr=options.first_auxiliary_lr)
    groups = [{"scheduled": True, "weight_decay": options.weight_decay} | group for group in groups]
    groups = [group | {"scheduled": group["scheduled"] or follows} for group in groups]
    if options.layer_decay == 1.0 and options.decay_norms:
        return groups
    return [part for group in groups for part in _divided(group, objective, options)]


def trunk_parameters(model: nn.Module) -> list[nn.Parameter]:
    """All parameters of a network but those of its head."""
    network = network_in(model)
    head = {id(parameter) for name in heads_of(network) for parameter in network.get_submodule(name).parameters()}
    return [parameter for parameter in model.parameters() if id(parameter) not in head]


def _divided(group: Group, objective: Objective, options: OptimizerOptions) -> list[Group]:
    """A group by models, layers and decay; parameters that no model's layers hold stay together at the end."""
    members, taken, found = {id(parameter) for parameter in group["params"]}, set[int](), list[Group]()
    for index, model in enumerate(objective.models):
        if not any(parameter.requires_grad and id(parameter) in members for parameter in model.parameters()):
            continue  # one that learns nothing, or elsewhere
        for layer, part in enumerate(_parts(model, options)):
            inside = [parameter for parameter in part["params"] if id(parameter) in members]
            if inside:
                taken |= {id(parameter) for parameter in inside}
                found.append(
                    group
                    | {
                        "name": f"{group['name']}-{index}-{layer}",
                        "params": inside,
                        "lr": group["lr"] * part.get("lr_scale", 1.0),
                        "weight_decay": part["weight_decay"],
                    }
                )
    rest = [parameter for parameter in group["params"] if id(parameter) not in taken]
    return found + ([group | {"params": rest}] if rest else [])


def _parts(model: nn.Module, options: OptimizerOptions) -> list[Group]:
    network = network_in(model)
    named = getattr(network, "no_weight_decay", None)
    kept = list(named()) if callable(named) and not options.decay_norms else []
    if options.layer_decay == 1.0:
        return _parts_by_decay(network, options.weight_decay, kept=kept)
    # Without either, timm would take every layer for the head, and none would learn more slowly.
    if not hasattr(network, "group_matcher") and not (getattr(network, "pretrained_cfg", None) or {}).get("classifier"):
        raise ValueError(
            f"optimizer.layer_decay needs a network that says what its layers are; {type(network).__name__} does not: "
            "use one of timm, or one with weights that are not random, or --optimizer.layer-decay 1"
        )
    library = require("timm.optim", extra="train", purpose="parameter groups by layer")
    return list(
        library.param_groups_layer_decay(
            network,
            options.weight_decay,
            no_weight_decay_list=kept,
            weight_decay_exclude_1d=not options.decay_norms,
            layer_decay=options.layer_decay,
        )
    )


def _parts_by_decay(network: nn.Module, weight_decay: float, *, kept: Collection[str]) -> list[Group]:
    """The groups of `timm.optim.param_groups_weight_decay`, without the seconds that the import of timm takes."""
    spared, decaying = list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            is_spared = parameter.ndim <= 1 or name.endswith(".bias") or any(fnmatch(name, each) for each in kept)
            (spared if is_spared or not weight_decay else decaying).append(parameter)
    parts: list[Group] = [
        {"params": spared, "weight_decay": 0.0},
        {"params": decaying, "weight_decay": weight_decay},
    ]
    return [part for part in parts if part["params"]]
