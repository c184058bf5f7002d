"""What the auxiliaries of a recipe leave out, so that they cost less."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from counterpoise.recipes.checks import not_positive, refuse

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
    own_view: bool = False
    """Auxiliaries see images that are mirrored once more, by chance."""

    def __post_init__(self) -> None:
        problems = not_positive({"savings.every": self.every})
        if self.trunk is not None and self.own_view:
            problems.append("savings.trunk has no images of its own: leave out savings.own_view")
        if self.cached and self.every == 1:
            problems.append("savings.cached needs savings.every above 1: on which steps auxiliaries run")
        refuse(problems)


def with_savings(models: "Sequence[nn.Module]", options: SavingOptions) -> "list[nn.Module]":
    """The primary as it is, then each auxiliary as the options have it."""
    primary, *auxiliaries = models
    return [primary, *(_saving(auxiliary, options) for auxiliary in auxiliaries)]


def _saving(auxiliary: "nn.Module", options: SavingOptions) -> "nn.Module":
    from counterpoise import objectives as kinds
    from counterpoise.objectives.models import network_in

    if options.trunk is not None:
        network = network_in(auxiliary)  # the primary's trunk has normalised the images
        after = kinds.halfway(network) if options.trunk == HALF else options.trunk
        auxiliary = kinds.SharedTrunk(network, after=after)
    if options.own_view:
        auxiliary = kinds.OwnView(auxiliary)
    if options.cached:
        return kinds.Cached(auxiliary, every=options.every)
    if options.every > 1:
        return kinds.Seldom(auxiliary, every=options.every)
    return auxiliary
