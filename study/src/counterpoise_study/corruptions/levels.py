"""Grey levels."""

from torch import Tensor

_HAIR = 2.0**-10
"""A value that is a whole level up to the rounding of floats is that level, and not the one below."""


def quantised(images: Tensor) -> Tensor:
    """Floats in [0, 1] as bytes, `floor(255 x)` as in the published files; what leaves the range is clipped.

    >>> import torch
    >>> quantised(torch.tensor([-1.0, 0.0, 7.9 / 255, 8 / 255, 1.0]))
    tensor([  0,   0,   7,   8, 255], dtype=torch.uint8)
    """
    return (255 * images + _HAIR).clamp(0, 255).byte()
