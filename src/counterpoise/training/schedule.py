"""Learning rates as a function of progress alone, so that there is no scheduler whose state could go astray."""

import math
from bisect import bisect_right

from torch.optim import Optimizer

from counterpoise.recipes.config import OptimizerOptions


def decay_factor(progress: float, *, epochs: int, options: OptimizerOptions) -> float:
    """What the learning rate is multiplied by after `progress` epochs of `epochs`; warm-up included.

    >>> [round(decay_factor(p, epochs=4, options=OptimizerOptions(milestones=(2, 3))), 3) for p in (0, 1.9, 2, 3.5)]
    [1.0, 1.0, 0.1, 0.01]
    >>> [round(decay_factor(p, epochs=4, options=OptimizerOptions(schedule="cosine", warmup=2)), 3) for p in (0, 1, 2)]
    [0.0, 0.427, 0.5]
    """
    warmup = min(1.0, progress / options.warmup) if options.warmup else 1.0
    if options.schedule == "cosine":
        return warmup * 0.5 * (1 + math.cos(math.pi * min(1.0, progress / epochs)))
    return warmup * options.decay ** bisect_right(options.milestones, progress)


def set_learning_rates(optimizer: Optimizer, factor: float) -> None:
    """Give every group its initial learning rate times the factor, unless it is not scheduled."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * (factor if group.get("scheduled", True) else 1.0)
