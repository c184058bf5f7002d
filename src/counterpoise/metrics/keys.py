"""Randomness that depends on nothing but a sample's id: the same in every run, batch, shard and worker."""

from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise._arrays import as_tensor

Keys = NDArray[np.uint64]

_GROUP_SALT, _PRIORITY_SALT = 0, 1
_DIGITS = len(str(2**63))


def sample_keys(ids: Any) -> Keys:
    """64 bits for each id: an integer itself, also where it is written as text, and a digest of other text.

    >>> sample_keys([3, 4]), sample_keys(["3", "4"])
    (array([3, 4], dtype=uint64), array([3, 4], dtype=uint64))
    >>> sample_keys(["a", "b"]).tolist() == sample_keys(np.array(["a", "b"], object)).tolist()
    True
    """
    array = ids if isinstance(ids, np.ndarray | Tensor) else np.asarray(ids)
    if isinstance(array, np.ndarray) and array.dtype.kind in "OUS":
        texts = array.tolist()
        if wrong := next((each for each in texts if not isinstance(each, str)), None):
            raise ValueError(f"ids must be all integers or all text, got {wrong!r:.80}")
        return np.frombuffer(b"".join(map(_of_text, texts)), np.dtype("<u8")).astype(np.uint64, copy=False)
    numbers = as_tensor(array, "ids")
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool or numbers.ndim != 1:
        raise ValueError(f"ids must be integers or text, one a sample, got {list(numbers.shape)} of {numbers.dtype}")
    keys: Keys = numbers.cpu().long().numpy().astype(np.uint64)
    return keys


def _of_text(text: str) -> bytes:
    # Another program may have kept the same numbers as text; "007" is no number that anybody kept so.
    digits = text.removeprefix("-")
    if digits.isdecimal() and digits.isascii() and len(digits) <= _DIGITS and (digits[0] != "0" or text == "0"):
        number = int(text)
        if -(2**63) <= number < 2**63:
            return number.to_bytes(8, "little", signed=True)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def mixed(keys: NDArray[Any], *, salt: int) -> Keys:
    """64 well-mixed bits for each key (the finaliser of SplitMix64).

    >>> [int(bits % 100) for bits in mixed(np.arange(5), salt=0)]
    [35, 65, 10, 53, 78]
    """
    bits = keys.astype(np.uint64) + np.uint64((salt + 1) * 0x9E3779B97F4A7C15 % 2**64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def jackknife_group(keys: Keys, groups: int) -> Tensor:
    """Group `[n]` of each sample, uint8."""
    return torch.from_numpy((mixed(keys, salt=_GROUP_SALT) % np.uint64(groups)).astype(np.uint8))


def sampling_priority(keys: Keys) -> Keys:
    """Samples with the smallest priorities are a random sample of all."""
    return mixed(keys, salt=_PRIORITY_SALT)
