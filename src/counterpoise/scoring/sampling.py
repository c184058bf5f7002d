"""Randomness that depends on nothing but the number of a sample: the same in every run, batch size and worker."""

import numpy as np
from numpy.typing import NDArray


def mixed(numbers: NDArray[np.int64], *, salt: int) -> NDArray[np.uint64]:
    """64 well-mixed bits for each number (the finaliser of SplitMix64).

    >>> [int(bits % 100) for bits in mixed(np.arange(5), salt=0)]
    [35, 65, 10, 53, 78]
    """
    bits = numbers.astype(np.uint64) + np.uint64((salt + 1) * 0x9E3779B97F4A7C15 % 2**64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
