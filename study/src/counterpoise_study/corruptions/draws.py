"""Random numbers that belong to a sample, whatever batch it comes in."""

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


class Draws:
    """Random tensors `[n, ...]` whose row i depends on (purpose, ids[i]) and on the number of earlier calls alone.

    Philox is counter-based: its key is (hash of the purpose, sample id), and each call starts a counter of its own. No
    state is shared with `numpy.random` or `torch`. The numbers are those of NumPy's distributions, which may change
    with its version.

    >>> first, second = (Draws("a purpose", torch.tensor(ids)).uniform(2) for ids in ([7, 8], [8]))
    >>> torch.equal(first[1], second[0])
    True
    """

    def __init__(self, purpose: str, ids: Tensor) -> None:
        self._ids = ids.numpy().view(np.uint64)
        self._purpose = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
        self._calls = 0

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform in [low, high), `[n, *shape]`."""
        values = np.empty((len(self._ids), *shape), np.float32)
        for generator, row in zip(self._generators(), values, strict=True):
            generator.random(out=row, dtype=np.float32)
        return torch.from_numpy(values) * (high - low) + low

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, `[n, *shape]`."""
        values = np.empty((len(self._ids), *shape), np.float32)
        for generator, row in zip(self._generators(), values, strict=True):
            generator.standard_normal(out=row, dtype=np.float32)
        return torch.from_numpy(values)

    def poisson(self, rates: Tensor) -> Tensor:
        """Poisson counts as floats, in the shape of `rates`, `[n, ...]`."""
        counts = np.empty(rates.shape, np.float32)
        for generator, row, rate in zip(self._generators(), counts, rates.numpy(), strict=True):
            row[...] = generator.poisson(rate)
        return torch.from_numpy(counts)

    def _generators(self) -> Iterator[np.random.Generator]:
        """One generator at a time: it is set to the next sample's state, which takes a tenth of making a new one."""
        bits = np.random.Philox(key=self._purpose, counter=self._calls << 192)
        self._calls += 1
        generator, state = np.random.Generator(bits), bits.state
        for sample in self._ids:
            state["state"]["key"][1] = sample
            bits.state = state
            yield generator
