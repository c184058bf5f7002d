"""What the auxiliaries of a recipe leave out, so that they cost less."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from counterpoise.recipes.checks import not_between_0_and_1, not_positive, refuse

if TYPE_CHECKING:
    from torch import nn

HALF: Final = "half"


@dataclass(frozen=True)
class SavingOptions:
    """How auxiliaries of MTE cost less; by default they do not, as published."""

    trunk: str | None = None
    """Auxiliaries share the primary's network up to this module, such as layer2, and begin after it; half for the
    middle of the network."""
    every: int = 1
    """Auxiliaries learn from every so many steps."""
    cached: bool = False
    """On the other steps, take what they last said of each image instead of running them."""
    kept_classes: int | None = None
    """Of what they said, keep the likeliest so many classes and one that stands for the others; None for all."""
    share: float = 1.0
    """Auxiliaries learn from this share of each batch."""
    scale: float = 1.0
    """Auxiliaries see images at this fraction of their side."""
    own_view: bool = False
    """Auxiliaries see images that are mirrored once more, by chance."""
    average: float | None = None
    """In place of networks of their own, auxiliaries are moving averages of the primary with this decay."""

    def __post_init__(self) -> None:
        problems = not_positive({"savings.every": self.every, "savings.kept_classes": self.kept_classes})
        problems += not_between_0_and_1({"savings.average": self.average})
        problems += [
            f"savings.{name} must be above 0 and at most 1, got {value}"
            for name, value in {"share": self.share, "scale": self.scale}.items()
            if not 0 < value <= 1
        ]
        if self.trunk is not None and (self.share < 1 or self.scale < 1 or self.own_view):
            problems.append("savings.trunk has no images of its own: leave out savings.share, scale and own_view")
        changed = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        if self.average is not None and changed != {"average"}:
            problems.append("savings.average has nothing to train: leave out the other savings")
        if self.cached and self.every == 1:
            problems.append("savings.cached needs savings.every above 1: on which steps auxiliaries run")
        if self.cached and self.share < 1:
            problems.append("savings.cached runs auxiliaries on whole batches: leave out savings.share")
        if self.kept_classes is not None and not self.cached:
            problems.append("savings.kept_classes is about savings.cached, which is off")
        refuse(problems)


def with_savings(models: "Sequence[nn.Module]", options: SavingOptions) -> "list[nn.Module]":
    """The primary as it is, then each auxiliary as the options have it."""
    primary, *auxiliaries = models
    return [primary, *(_saving(auxiliary, primary, options) for auxiliary in auxiliaries)]


def _saving(auxiliary: "nn.Module", primary: "nn.Module", options: SavingOptions) -> "nn.Module":
    from counterpoise import objectives as kinds
    from counterpoise.objectives.models import network_in

    if options.average is not None:
        return kinds.MovingAverage(primary, decay=options.average)
    if options.trunk is not None:
        network = network_in(auxiliary)  # the primary's trunk has normalised the images
        after = kinds.halfway(network) if options.trunk == HALF else options.trunk
        auxiliary = kinds.SharedTrunk(network, after=after)
    if options.scale < 1:
        auxiliary = kinds.Smaller(auxiliary, scale=options.scale)
    if options.own_view:
        auxiliary = kinds.OwnView(auxiliary)
    if options.cached:
        return kinds.Cached(auxiliary, every=options.every, kept=kinds.KeptPredictions(top=options.kept_classes))
    if options.every > 1 or options.share < 1:
        return kinds.Seldom(auxiliary, every=options.every, share=options.share)
    return auxiliary
