"""Every training method as one line of a table: its objective, its hyper-parameters, and where their values come from.

A new loss joins with one line here (see CONTRIBUTING.md). `METHODS[name].build(models, **choice)` makes the objective.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from counterpoise.recipes.savings import HALF, SavingOptions

if TYPE_CHECKING:
    from torch import nn

    from counterpoise.objectives import Objective

PAPER = "the MTE paper's grid"
USUAL = "usual values; none in the MTE paper"
FLSD = "constants of its own; not a method of the MTE paper"
ALPHA_GRID = (0.4, 0.6, 0.8, 1.0, 1.2)
"""The interval that the paper tunes alpha in, at steps of 0.2."""

GAMMA_GRID = (1.0, 2.0, 3.0)

AUXILIARY_LR = 0.01
"""Of the published method."""

Build: TypeAlias = "Callable[..., Objective]"
"""`build(models, **choice)` takes one value of each hyper-parameter, tuned or fixed, by name."""


@dataclass(frozen=True)
class Method:
    """A way to train a classifier.

    Attributes:
        title: as tables show it.
        models: how many models train together, the primary first.
        build: makes the objective from the models and one value of each hyper-parameter.
        grid: hyper-parameters that are tuned, with the values to try.
        source: where the values come from.
        members: how many such trainings make one result; their probabilities are averaged.
        prunes: whether training leaves out its least confident samples, as DTDP does.
        soft_labels: whether it takes the labels of mixed images, which are distributions over classes.
        savings: what its auxiliaries leave out unless a recipe says otherwise; None where it has no auxiliaries.
        auxiliary_factor: of their learning rate over the primary's, which it follows, unless a recipe says otherwise;
            None for the constant one of the recipe.
        fixed: hyper-parameters that are not tuned unless somebody names them, with their usual values.
        bounds: half-open intervals `[low, high)` that values must lie in; `[0, inf)` where none is given.
    """

    title: str
    models: int
    build: Build = field(repr=False)
    grid: Mapping[str, tuple[float, ...]]
    source: str
    members: int = 1
    prunes: bool = False
    soft_labels: bool = True
    savings: SavingOptions | None = None
    auxiliary_factor: float | None = None
    fixed: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def savings_with(self, own: SavingOptions) -> SavingOptions:
        """What a recipe says, or, where it says nothing, what its auxiliaries leave out otherwise."""
        return own if self.savings is None or own != SavingOptions() else self.savings

    def choice(self, hyper: Mapping[str, float]) -> dict[str, float]:
        """One value of each hyper-parameter: the one given, the middle of the values to try, or the usual one.

        >>> METHODS["fl-mdca"].choice({"gamma": 3.0})
        {'gamma': 3.0, 'beta': 1.0}
        """
        usual = {name: values[len(values) // 2] for name, values in self.grid.items()} | dict(self.fixed)
        if unknown := sorted(set(hyper) - set(usual)):
            takes = ", ".join(usual) or "none"
            raise ValueError(f"{self.title} has no hyper-parameter {', '.join(unknown)}; it has {takes}")
        for name, value in hyper.items():
            low, high = self.bounds.get(name, (0.0, math.inf))
            if not (low <= value < high and math.isfinite(value)):
                top = "finite" if high == math.inf else f"below {high:g}"
                raise ValueError(f"{self.title}: hyper.{name} must be at least {low:g} and {top}, got {value}")
        return usual | dict(hyper)


def _loss(name: str) -> Build:
    """A function of `counterpoise.functional.losses` whose hyper-parameters are its keyword arguments.

    By name, because the table is read without torch.
    """

    def build(models: "Sequence[nn.Module]", **choice: float) -> "Objective":
        from counterpoise.functional import losses
        from counterpoise.objectives import SupervisedObjective

        (model,) = models
        return SupervisedObjective(model, partial(getattr(losses, name), **choice))

    return build


def _loss_and_term(loss: str, term: str, *, weight: str) -> Build:
    """A loss and a function of `counterpoise.functional.batch_terms`, whose weight is the hyper-parameter so named."""

    def build(models: "Sequence[nn.Module]", **choice: float) -> "Objective":
        from counterpoise.functional import batch_terms, losses
        from counterpoise.objectives import LossSum, SupervisedObjective

        (model,), factor = models, choice.pop(weight)
        base = partial(getattr(losses, loss), **choice)
        return SupervisedObjective(model, LossSum(base, getattr(batch_terms, term), weight=factor))

    return build


def _mutual_transport(models: "Sequence[nn.Module]", *, alpha: float, alpha_warmup: float) -> "Objective":
    from counterpoise.objectives import MutualTransport, linear_warmup

    return MutualTransport(
        models[0], models[1:], linear_warmup(alpha, fraction=alpha_warmup) if alpha_warmup else alpha
    )


def _self_distillation(models: "Sequence[nn.Module]", *, weight: float) -> "Objective":
    from counterpoise.objectives import SelfDistillation

    (model,) = models
    return SelfDistillation(model, weight=weight)


def _deep_mutual(models: "Sequence[nn.Module]", *, alpha: float) -> "Objective":
    from counterpoise.objectives import DeepMutualLearning

    return DeepMutualLearning(models, alpha)


_CONSTANT_ALPHA = {"alpha_warmup": 0.0}
"""Share of training over which alpha grows linearly from 0."""

_SHARE = {"alpha_warmup": (0.0, 1.0)}


def _mte(
    title: str,
    *,
    models: int,
    grid: tuple[float, ...] = ALPHA_GRID,
    source: str = PAPER,
    savings: SavingOptions = SavingOptions(),  # noqa: B008 (frozen)
    auxiliary_factor: float | None = None,
) -> Method:
    return Method(
        title,
        models,
        _mutual_transport,
        {"alpha": grid},
        source,
        savings=savings,
        auxiliary_factor=auxiliary_factor,
        fixed=_CONSTANT_ALPHA,
        bounds=_SHARE,
    )


METHODS: dict[str, Method] = {
    "ce": Method("Cross-entropy", 1, _loss("cross_entropy"), {}, PAPER),
    "ls": Method(
        "Label smoothing",
        1,
        _loss("label_smoothing"),
        {"smoothing": (0.05, 0.1)},
        USUAL,
        bounds={"smoothing": (0.0, 1.0)},
    ),
    "er": Method("Entropy regularisation", 1, _loss("entropy_regularised"), {"beta": (0.05, 0.1, 0.2)}, USUAL),
    "dca": Method(
        "DCA", 1, _loss_and_term("cross_entropy", "dca_term", weight="beta"), {"beta": (0.5, 1.0, 5.0, 10.0)}, PAPER
    ),
    "mmce": Method(
        "MMCE",
        1,
        _loss_and_term("cross_entropy", "mmce_term", weight="weight"),
        {"weight": (1.0, 2.0, 3.0, 4.0)},
        PAPER,
        soft_labels=False,
    ),
    "fl": Method("Focal loss", 1, _loss("focal"), {"gamma": GAMMA_GRID}, PAPER),
    "flsd53": Method("FLSD-53", 1, _loss("focal_sample_dependent"), {}, FLSD),
    "fl-mdca": Method(
        "FL+MDCA", 1, _loss_and_term("focal", "mdca_term", weight="beta"), {"gamma": GAMMA_GRID, "beta": (1.0,)}, PAPER
    ),
    "fl-dtdp": Method(  # its loss; its pruning is a callback of the training engine
        "FL+DTDP",
        1,
        _loss_and_term("focal", "dtdp_term", weight="weight"),
        {"gamma": GAMMA_GRID, "weight": (5.0, 10.0)},
        PAPER,
        prunes=True,
        soft_labels=False,  # of a mixed image, a low confidence says nothing of a sample
    ),
    "de3": Method("Deep ensemble of 3", 1, _loss("cross_entropy"), {}, PAPER, members=3),
    "dml": Method("DML", 2, _deep_mutual, {"alpha": ALPHA_GRID}, "MTE's grid"),
    "pskd": Method(
        "PS-KD",
        1,
        _self_distillation,
        {"weight": (0.6, 0.7, 0.8, 0.9)},
        "around the value of its paper, 0.8; not a method of the MTE paper",
        soft_labels=False,  # what is kept of a sample is no prediction of a mixed image
        bounds={"weight": (0.0, 1.0)},
    ),
    "mte1": _mte("MTE-1", models=2),
    "mte2": _mte("MTE-2", models=3),
    # What learns from less must learn faster: docs/cost.md has what the primary's own rate was worth.
    "mte-lite": _mte(
        "MTE-lite",
        models=2,
        grid=(0.8, 1.0, 1.2, 1.4, 1.6),
        source="around the value of the study of costs, 1.2; not a method of the MTE paper",
        savings=SavingOptions(trunk=HALF, every=2),
        auxiliary_factor=1.0,
    ),
}


def method_named(name: str) -> Method:
    """The method; a `ValueError` that lists them where there is none of this name."""
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; the methods are {', '.join(METHODS)}")
    return METHODS[name]
