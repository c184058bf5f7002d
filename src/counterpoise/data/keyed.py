"""Randomness as a pure function of a key: (seed, epoch, stream, index) in, 64 bits out.

There is no generator and so no state: a sample's crop, or its place in an epoch, is the same whatever was drawn before
it, on whichever rank, worker or device, and after any interruption. The function is that of SplitMix64 (Steele, Lea
and Flood, 2014), a counter through a bijective mixer, in the wrap-around arithmetic of int64.
"""

from typing import Final

import torch
from torch import Tensor

ORDER: Final = 0
AUGMENTATION: Final = 1
HELD_OUT: Final = 2
ROW_GROUPS: Final = 3
TRANSFORM: Final = 4
MIXING: Final = 5
BALANCE: Final = 6
STRETCHES: Final = 7
"""Streams: what the bits are for. Two uses of one key must differ here, or they would be the same draw."""

_WEYL: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_WORD: Final = (1 << 64) - 1


def keyed_bits(seed: int, epoch: int, indices: Tensor, stream: int) -> Tensor:
    """64 random bits for each index, as int64 of the shape and on the device of `indices`.

    >>> keyed_bits(0, 0, torch.arange(2), ORDER).tolist()
    [2391539541053276776, 920862675595841680]
    """
    key = _mixed(_mixed(_mixed(seed) + epoch) + stream)
    return _mixed_tensor(indices.long() * _signed(_WEYL) + _signed(key))


def keyed_integers(seed: int, epoch: int, indices: Tensor, stream: int, *, high: int) -> Tensor:
    """Integers in [0, high), high <= 2^31; no value is likelier than another by more than `high / 2^32`."""
    if not 1 <= high <= 1 << 31:
        raise ValueError(f"high must be in [1, 2^31], got {high}")
    return (_shifted(keyed_bits(seed, epoch, indices, stream), 32) * high) >> 32


def permutation(seed: int, epoch: int, indices: Tensor | int, stream: int = ORDER) -> Tensor:
    """The positions 0..n-1 in the order of the keys of `indices`; an integer n stands for the indices 0..n-1.

    What is left of a permutation when some indices are taken out is the permutation of the others.

    >>> permutation(0, 0, 5).tolist(), permutation(0, 1, 5).tolist()
    ([2, 3, 1, 0, 4], [4, 0, 1, 2, 3])
    """
    keyed = torch.arange(indices) if isinstance(indices, int) else indices
    return torch.argsort(keyed_bits(seed, epoch, keyed, stream), stable=True)


def _mixed(word: int) -> int:
    """The mixer on a Python integer; one Weyl step first, so that zero does not stay zero."""
    word = (word + _WEYL) & _WORD
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)


def _mixed_tensor(words: Tensor) -> Tensor:
    words = words + _signed(_WEYL)
    words = (words ^ _shifted(words, 30)) * _signed(_FIRST)
    words = (words ^ _shifted(words, 27)) * _signed(_SECOND)
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, by: int) -> Tensor:
    """The logical shift to the right; that of int64 would copy the sign."""
    return (words >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
