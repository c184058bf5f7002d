"""Randomness that depends on a sample's id alone, so that nothing changes with the order or the number of samples."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from counterpoise._arrays import as_array

_BITS = 53
"""Of a uniform number: those of a float64."""


def keyed_uniforms(ids: Any, *, seed: int = 0) -> Tensor:
    """A number in [0, 1) for each id `[n]`, float64: the same for the same id and seed, on every machine.

    Args:
        ids: integers or text; an integer and its text are one id.
        seed: another seed for other numbers, as for samples that share ids without being the same.

    >>> keyed_uniforms(["a", "b", "a"]).tolist() == keyed_uniforms(["a", "b"]).tolist() + keyed_uniforms(["a"]).tolist()
    True
    """
    return _uniforms(ids, person=f"uniform {seed}")


def second_half(ids: Any) -> Tensor:
    """Which samples `[n]` of a set are kept for a guarantee; what comes before it is chosen on the others.

    Each id falls into one of the halves by its hash, with probability 1/2: a copy of a sample is in the same half, and
    no half depends on which other samples there are.

    >>> second_half(range(8)).tolist()
    [False, True, False, False, False, True, False, False]
    """
    return _uniforms(ids, person="second half") < 0.5


def _uniforms(ids: Any, *, person: str) -> Tensor:
    array = as_array(ids.cpu() if isinstance(ids, Tensor) else ids, "ids")
    if array.dtype.kind == "f":
        raise ValueError("ids must be integers or text, got real numbers, whose text is another; pass whole ones")
    texts: Iterable[str] = map(str, array.tolist())
    start = blake2b(person.encode(), digest_size=8)

    def bits(text: str) -> int:
        digest = start.copy()
        digest.update(b"\n" + text.encode("utf-8", "surrogatepass"))
        return int.from_bytes(digest.digest(), "little") >> (64 - _BITS)

    return torch.tensor([bits(text) * 2.0**-_BITS for text in texts], dtype=torch.float64)
