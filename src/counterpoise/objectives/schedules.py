"""Alpha as a plain function of training progress, from 0.0 at the first step to nearly 1.0 at the last."""

import math
from collections.abc import Callable
from functools import partial
from numbers import Real

from torch import Tensor

AlphaSchedule = Callable[[float], float]
"""Maps progress in [0, 1] to alpha."""


def require_weight(alpha: float) -> float:
    """Alpha as a float; refused where it is negative, infinite, NaN or no single number."""
    if isinstance(alpha, Tensor) and alpha.ndim == 0:
        alpha = alpha.item()
    if not isinstance(alpha, Real):
        raise TypeError(
            f"alpha must be one number, or a function of progress where there is a schedule, got {type(alpha).__name__}"
        )
    if not 0 <= alpha < math.inf:
        raise ValueError(f"alpha must be a finite number of at least 0, got {alpha}")
    return float(alpha)


def linear_warmup(alpha: float, *, fraction: float) -> AlphaSchedule:
    """Alpha grows linearly from 0 over the first `fraction` of training and stays.

    >>> schedule = linear_warmup(0.8, fraction=0.5)
    >>> schedule(0.0), schedule(0.25), schedule(0.5), schedule(1.0)
    (0.0, 0.4, 0.8, 0.8)
    """
    alpha = require_weight(alpha)
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}")
    return partial(_ramp, alpha, fraction)


def _ramp(alpha: float, fraction: float, progress: float) -> float:
    return alpha * min(1.0, progress / fraction)
