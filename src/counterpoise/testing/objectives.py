"""What an objective must satisfy to be trained by any engine."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.objectives import Objective, ObjectiveOutput, is_objective
from counterpoise.objectives.protocol import as_module, told_ids


def check_objective(objective: Objective, inputs: Tensor | Mapping[str, Any], labels: Tensor) -> None:
    """Raise `AssertionError`, naming the property, unless the objective keeps its contract.

    It is an `nn.Module` with the members of `Objective`, and its primary is the first of its models, which share no
    parameter. In training with labels it returns an `ObjectiveOutput` with a finite scalar loss that reaches every
    trainable parameter, at any progress of training, and the primary's logits; its parameter groups hold every
    parameter exactly once; in evaluation, and without labels, nothing but the primary runs, and with labels the loss is
    then the primary's cross-entropy; the primary can be taken out and gives the same logits alone.

    Args:
        objective: to check. Gradients are reset and its progress is 0 afterwards; all else is left as it was.
        inputs: one tensor, or keyword arguments.
        labels: of the inputs.
    """
    assert isinstance(objective, nn.Module), f"{type(objective).__name__} is no nn.Module"
    assert is_objective(objective), "it lacks a member of counterpoise.Objective"
    modes = {module: module.training for module in objective.modules()}
    buffers = [(buffer, buffer.clone()) for buffer in objective.buffers()]
    try:
        _check_models(objective)
        for progress in (1.0, 0.5, 0.0):
            objective.set_progress(progress)
            _check_training(objective, inputs, labels)
        _check_groups(objective)
        _check_evaluation(objective, inputs, labels)
    finally:
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        objective.zero_grad()


def _call(module: nn.Module, inputs: Tensor | Mapping[str, Any], labels: Tensor | None) -> Any:
    told = {"labels": labels}
    if labels is not None:
        told |= told_ids(module, torch.arange(len(labels), device=labels.device))
    if isinstance(inputs, Tensor):
        return module(inputs, **told)
    return module(**inputs, **told)


def _check_training(objective: nn.Module, inputs: Tensor | Mapping[str, Any], labels: Tensor) -> None:
    objective.train()
    objective.zero_grad()
    output = _call(objective, inputs, labels)
    assert isinstance(output, ObjectiveOutput), f"it returns {type(output).__name__}, not ObjectiveOutput"
    assert output.loss is not None, "in training with labels there is no loss"
    assert output.loss.shape == (), f"its loss has shape {list(output.loss.shape)}, not a scalar"
    assert torch.isfinite(output.loss), f"its loss is {output.loss.item()}"
    assert output.loss is output["loss"], "output.loss and output['loss'] are not the same"
    assert output.logits.shape[:-1] == labels.shape, (
        f"logits {list(output.logits.shape)} do not belong to labels {list(labels.shape)}"
    )
    attached = [name for name, part in output.parts.items() if part.requires_grad]
    assert not attached, f"parts {attached} keep the graph alive; detach them"
    output.loss.backward()
    missed = [name for name, p in objective.named_parameters() if p.requires_grad and p.grad is None]
    assert not missed, f"the loss does not reach {missed}"


def _check_models(objective: Objective) -> None:
    models = list(objective.models)
    assert models, "it has no models"
    assert models[0] is objective.primary, "the primary is not the first of its models"
    inside = set(as_module(objective).modules())
    assert all(model in inside for model in models), "a model is no submodule, so that devices and engines miss it"
    for one, other in combinations(models, 2):
        shared = set(one.parameters()) & set(other.parameters())
        assert not shared, "two models share a parameter, which would follow both losses"
    assert objective.accepts_loss_kwargs is False, (
        "without accepts_loss_kwargs = False, transformers.Trainer does not divide the loss by the accumulation steps"
    )


def _check_groups(objective: Objective) -> None:
    groups = objective.parameter_groups(lr=0.1, auxiliary_lr=0.01)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    own = [id(parameter) for parameter in as_module(objective).parameters()]
    assert len(set(grouped)) == len(grouped), "a parameter stands in two parameter groups"
    assert set(grouped) == set(own), "the parameter groups do not hold exactly the parameters"
    assert all("lr" in group for group in groups), "a parameter group has no learning rate"
    names = [group.get("name") for group in groups]
    assert None not in names, "a parameter group has no name"
    assert len(set(names)) == len(names), f"two parameter groups have one name: {names}"


def _check_evaluation(objective: nn.Module, inputs: Tensor | Mapping[str, Any], labels: Tensor) -> None:
    primary = objective.primary
    assert isinstance(primary, nn.Module), "there is no module called 'primary'"
    inside = set(primary.modules())
    ran: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: ran.append(name))
        for name, module in objective.named_modules()
        if module not in inside and not any(child in inside for child in module.modules())
    ]
    try:
        objective.eval()
        with torch.no_grad():
            with_labels, without = _call(objective, inputs, labels), _call(objective, inputs, None)
            alone = primary(inputs) if isinstance(inputs, Tensor) else primary(**inputs)
            objective.train()
            unlabelled = _call(objective, inputs, None)
    finally:
        for hook in hooks:
            hook.remove()
    assert not ran, f"in evaluation, or without labels, {sorted(set(ran))} run beside the primary"
    alone = alone if isinstance(alone, Tensor) else (alone["logits"] if isinstance(alone, Mapping) else alone.logits)
    assert torch.equal(with_labels.logits, alone), "the primary alone gives other logits"
    assert without.loss is None is unlabelled.loss, "without labels there is a loss"
    classes = alone.shape[-1]
    expected = nn.functional.cross_entropy(alone.float().reshape(-1, classes), labels.reshape(-1))
    assert torch.allclose(with_labels.loss.float(), expected), "in evaluation the loss is not the cross-entropy"
