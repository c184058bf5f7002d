"""Objectives under `transformers.Trainer`: what would change the method is refused, and alpha follows its schedule."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim import lr_scheduler as schedulers
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, MultiplicativeLR, SequentialLR

from counterpoise._extras import require
from counterpoise.objectives import Objective
from counterpoise.objectives.protocol import as_module

_PURPOSE = "the callback for transformers.Trainer"
_transformers = require("transformers", extra="transformers", purpose=_PURPOSE)
_accelerate_utils = require("accelerate.utils", extra="transformers", purpose=_PURPOSE)

_OF_ALL_GROUPS = (
    schedulers.ConstantLR,
    schedulers.CosineAnnealingLR,
    schedulers.CosineAnnealingWarmRestarts,
    schedulers.CyclicLR,
    schedulers.ExponentialLR,
    schedulers.LinearLR,
    schedulers.MultiStepLR,
    schedulers.OneCycleLR,
    schedulers.PolynomialLR,
    schedulers.ReduceLROnPlateau,
    schedulers.StepLR,
)
"""Schedulers of torch that change the learning rates of all groups alike."""


class ObjectiveCallback(_transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """Pass it to `Trainer(model=objective, callbacks=[ObjectiveCallback()])`.

    When training begins, it raises a `ValueError` that names every setting with which Trainer would train something
    else than the objective says. Before each step it tells the objective its progress, `global_step / max_steps`.
    """

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,  # noqa: ARG002
        *,
        model: nn.Module,
        optimizer: Optimizer,
        lr_scheduler: Any,
        **_: Any,
    ) -> None:
        """Refuse what would change the method."""
        objective = _unwrapped(model)
        problems = _argument_problems(args, objective)
        if getattr(objective, "accepts_loss_kwargs", True):
            problems.append(
                "Trainer may not divide the loss by the accumulation steps; "
                f"give {type(objective).__name__} the class attribute accepts_loss_kwargs = False"
            )
        constant = _constant_parameters(objective)
        problems += _optimizer_problems(objective, optimizer, constant)
        problems += _schedule_problems(constant, optimizer, lr_scheduler, steps=state.max_steps)
        if problems:
            raise ValueError("\n".join(problems))

    def on_step_begin(
        self,
        args: Any,  # noqa: ARG002
        state: Any,
        control: Any,  # noqa: ARG002
        *,
        model: nn.Module,
        **_: Any,
    ) -> None:
        """Tell the objective how far training is."""
        _unwrapped(model).set_progress(state.global_step / state.max_steps)


def _unwrapped(model: nn.Module) -> Objective:
    """The objective inside DDP and torch.compile."""
    objective: Objective = _accelerate_utils.extract_model_from_parallel(model, keep_torch_compile=False)
    return objective


def _argument_problems(args: Any, objective: Objective) -> list[str]:
    """Training arguments, most of them defaults, that are made for one model that computes its own loss."""
    problems = []
    if args.max_grad_norm > 0 and len(list(objective.models)) > 1:
        problems.append(
            f"max_grad_norm={args.max_grad_norm} clips the gradients of all models by one joint norm; "
            "set max_grad_norm=0"
        )
    if args.remove_unused_columns:
        problems.append(
            "remove_unused_columns=True drops the inputs that the objective passes on without naming them; "
            "set remove_unused_columns=False"
        )
    if args.label_smoothing_factor != 0:
        problems.append(
            "label_smoothing_factor takes the labels away from the objective and computes another loss; "
            "set label_smoothing_factor=0"
        )
    if args.n_gpu > 1:
        problems.append(
            "one process with several GPUs runs nn.DataParallel, where each GPU has the loss of its own share, and "
            "tensors on the host, such as alpha, cannot be gathered; start one process for each GPU with torchrun"
        )
    return problems


def _constant_parameters(objective: Objective) -> set[int]:
    """Parameters whose learning rate follows no schedule, such as those of auxiliaries."""
    groups = objective.parameter_groups(lr=1.0, auxiliary_lr=1.0)
    return set[int]().union(*(_ids(group["params"]) for group in groups if not group.get("scheduled", True)))


def _optimizer_problems(objective: Objective, optimizer: Optimizer, constant: set[int]) -> list[str]:
    """Every trainable parameter is in the optimizer, and no group mixes the primary with auxiliaries."""
    remedy = "pass optimizers=(optimizer, scheduler) with an optimizer over objective.parameter_groups(...)"
    groups = [_ids(group["params"]) for group in optimizer.param_groups]
    held = set[int]().union(*groups)
    named = as_module(objective).named_parameters()
    trainable = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    missing = [name for name, parameter in trainable if id(parameter) not in held]
    problems = []
    if missing:
        problems.append(f"{len(missing)} parameters, first {missing[0]}, are not in the optimizer; {remedy}")
    if any(group & constant and group - constant for group in groups):
        problems.append(f"a group of the optimizer mixes the primary with the auxiliaries; {remedy}")
    return problems


def _schedule_problems(constant: set[int], optimizer: Optimizer, scheduler: Any, *, steps: int) -> list[str]:
    """Where Trainer gets no scheduler it makes one, a `LambdaLR` with the same function for all groups."""
    problem = (
        "the scheduler gives the auxiliaries the learning-rate schedule of the primary; "
        "pass optimizers=(optimizer, LambdaLR(optimizer, [primary_factor, auxiliaries_factor]))"
    )
    is_scheduled = [bool(_ids(group["params"]) - constant) for group in optimizer.param_groups]
    if all(is_scheduled):
        return []
    return [problem] if any(_is_of_both(part, is_scheduled, steps=steps) for part in _parts(scheduler)) else []


def _parts(scheduler: Any) -> list[Any]:
    """The schedulers that one is composed of."""
    if isinstance(scheduler, SequentialLR | ChainedScheduler):
        return [each for part in scheduler._schedulers for each in _parts(part)]
    return [scheduler]


def _is_of_both(scheduler: Any, is_scheduled: list[bool], *, steps: int) -> bool:
    """Whether a scheduler changes the rates of the primary and of an auxiliary by the same rule."""
    if isinstance(scheduler, _OF_ALL_GROUPS):
        return True
    if not isinstance(scheduler, LambdaLR | MultiplicativeLR):
        return False
    of_primary, of_auxiliaries = set[Any](), set[Any]()
    for scheduled, factor in zip(is_scheduled, scheduler.lr_lambdas, strict=True):
        (of_primary if scheduled else of_auxiliaries).add(factor)
    for factor in of_primary & of_auxiliaries:
        factors = {factor(step) for step in (0, steps // 2, steps)}
        if len(factors) > 1 or (isinstance(scheduler, MultiplicativeLR) and factors != {1}):
            return True
    return False


def _ids(parameters: Iterable[nn.Parameter]) -> set[int]:
    return set(map(id, parameters))
