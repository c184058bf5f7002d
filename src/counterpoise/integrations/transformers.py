"""Objectives under `transformers.Trainer`: what would change the method is refused, and alpha follows its schedule."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim import lr_scheduler as schedulers
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, MultiplicativeLR, SequentialLR

from counterpoise._extras import require
from counterpoise.objectives import MutualTransport, SupervisedObjective

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
    else than the objective says. Before each step it tells a `MutualTransport` its progress, `global_step / max_steps`.
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
        problems += _optimizer_problems(objective, optimizer)
        if isinstance(objective, MutualTransport):
            problems += _schedule_problems(objective, optimizer, lr_scheduler, steps=state.max_steps)
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
        """Tell the alpha schedule how far training is."""
        objective = _unwrapped(model)
        if isinstance(objective, MutualTransport):
            objective.set_progress(state.global_step / state.max_steps)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The objective inside DDP and torch.compile."""
    objective: nn.Module = _accelerate_utils.extract_model_from_parallel(model, keep_torch_compile=False)
    return objective


def _argument_problems(args: Any, objective: nn.Module) -> list[str]:
    """Training arguments, most of them defaults, that are made for one model that computes its own loss."""
    problems = []
    if args.max_grad_norm > 0 and not isinstance(objective, SupervisedObjective):
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
    if args.n_gpu > 1 and isinstance(objective, MutualTransport):
        problems.append(
            "one process with several GPUs runs nn.DataParallel, which cannot gather alpha, a tensor on the host; "
            "start one process for each GPU with torchrun"
        )
    return problems


def _optimizer_problems(objective: nn.Module, optimizer: Optimizer) -> list[str]:
    """Every trainable parameter is in the optimizer, and no group mixes the primary with auxiliaries."""
    remedy = "pass optimizers=(optimizer, scheduler) with an optimizer over objective.parameter_groups(...)"
    groups = [_ids(group["params"]) for group in optimizer.param_groups]
    held = set[int]().union(*groups)
    trainable = [(name, parameter) for name, parameter in objective.named_parameters() if parameter.requires_grad]
    missing = [name for name, parameter in trainable if id(parameter) not in held]
    problems = []
    if missing:
        problems.append(f"{len(missing)} parameters, first {missing[0]}, are not in the optimizer; {remedy}")
    if isinstance(objective, MutualTransport):
        primary, auxiliaries = _ids(objective.primary.parameters()), _ids(objective.auxiliaries.parameters())
        if any(group & primary and group & auxiliaries for group in groups):
            problems.append(f"a group of the optimizer mixes the primary with the auxiliaries; {remedy}")
    return problems


def _schedule_problems(objective: MutualTransport, optimizer: Optimizer, scheduler: Any, *, steps: int) -> list[str]:
    """Where Trainer gets no scheduler it makes one, a `LambdaLR` with the same function for all groups."""
    problem = (
        "the scheduler gives the auxiliaries the learning-rate schedule of the primary; "
        "pass optimizers=(optimizer, LambdaLR(optimizer, [primary_factor, auxiliaries_factor]))"
    )
    primary = _ids(objective.primary.parameters())
    is_primary = [bool(_ids(group["params"]) & primary) for group in optimizer.param_groups]
    return [problem] if any(_is_of_both(part, is_primary, steps=steps) for part in _parts(scheduler)) else []


def _parts(scheduler: Any) -> list[Any]:
    """The schedulers that one is composed of."""
    if isinstance(scheduler, SequentialLR | ChainedScheduler):
        return [each for part in scheduler._schedulers for each in _parts(part)]
    return [scheduler]


def _is_of_both(scheduler: Any, is_primary: list[bool], *, steps: int) -> bool:
    """Whether a scheduler changes the rates of the primary and of an auxiliary by the same rule."""
    if isinstance(scheduler, _OF_ALL_GROUPS):
        return True
    if not isinstance(scheduler, LambdaLR | MultiplicativeLR):
        return False
    of_primary, of_auxiliaries = set[Any](), set[Any]()
    for primary, factor in zip(is_primary, scheduler.lr_lambdas, strict=True):
        (of_primary if primary else of_auxiliaries).add(factor)
    for factor in of_primary & of_auxiliaries:
        factors = {factor(step) for step in (0, steps // 2, steps)}
        if len(factors) > 1 or (isinstance(scheduler, MultiplicativeLR) and factors != {1}):
            return True
    return False


def _ids(parameters: Iterable[nn.Parameter]) -> set[int]:
    return set(map(id, parameters))
