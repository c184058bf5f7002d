"""Which rows are held out: a function of seed and number of rows alone, on every platform."""

import torch
from torch import Tensor

from counterpoise.data.keyed import HELD_OUT, STRETCHES, keyed_bits, permutation


def hold_out(rows: int, *, size: int | float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices for training and for validation, both sorted; a function of the arguments alone, on every platform.

    Args:
        rows: how many there are.
        size: how many to hold out, or which fraction in (0, 1).
        seed: which of the choices.

    >>> hold_out(6, size=2, seed=0)
    (tensor([0, 1, 4, 5]), tensor([2, 3]))
    """
    count = _held_out_count(rows, size)
    order = permutation(seed, 0, rows, HELD_OUT)
    return order[count:].sort().values, order[:count].sort().values


def hold_out_hashed(rows: int, *, size: int | float, seed: int) -> Tensor:
    """Sorted indices for validation: of each of as many equal stretches of rows one, by a keyed hash of the stretch.

    What is not held out is for training. Nothing is numbered, shuffled or kept but these indices, so that there may be
    any number of rows, and every process finds the same ones. The first stretch begins anywhere, by the seed, and the
    last one ends there, so that each row is as likely as any other; rows that are stored class by class are held out
    in proportion.

    >>> hold_out_hashed(12, size=3, seed=0), hold_out_hashed(10**12, size=2, seed=0)
    (tensor([ 3,  6, 10]), tensor([ 32782279211, 864368890418]))
    """
    count = _held_out_count(rows, size)
    each, rest = divmod(rows, count)
    stretches = torch.arange(count + 1)
    edges = stretches * each + stretches * rest // count
    places = edges[:-1] + _positive_bits(seed, 0, stretches[:-1]) % edges.diff()
    begin = _positive_bits(seed, 1, stretches[:1]) % rows
    return ((places + begin) % rows).sort().values


def hold_out_by_class(labels: Tensor, *, size: int | float, seed: int) -> tuple[Tensor, Tensor]:
    """What `hold_out` gives, with each class in its proportion; the last image of a class is never held out.

    Where proportions are no whole numbers, those furthest from one are rounded up first, equal ones by the seed.

    >>> hold_out_by_class(torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 2]), size=3, seed=0)
    (tensor([0, 1, 4, 5, 7, 8, 9]), tensor([2, 3, 6]))
    """
    count = _held_out_count(len(labels), 1 if 0 < size * len(labels) < 1 else size)  # at least one
    classes, members = torch.unique(labels, return_inverse=True)
    available = torch.bincount(members) - 1
    if not available.any():
        raise ValueError(
            f"each of {len(classes)} classes has one image, so that none can be held out; give more images"
        )
    share = count * torch.bincount(members).double() / len(labels)
    held = torch.minimum(share.floor().long(), available)
    chance = permutation(seed, 1, len(classes), HELD_OUT)
    while int(held.sum()) < min(count, int(available.sum())):
        # Of those that have images left, in the order of what they lack.
        lacking = torch.where(held < available, share - held, -torch.inf)[chance]
        held[chance[torch.argsort(lacking, descending=True, stable=True)[0]]] += 1
    order = permutation(seed, 0, len(labels), HELD_OUT)
    by_class = order[torch.argsort(members[order], stable=True)]
    starts = torch.bincount(members).cumsum(0) - torch.bincount(members)
    place = torch.arange(len(labels)) - starts[members[by_class]]
    chosen = place < held[members[by_class]]
    return by_class[~chosen].sort().values, by_class[chosen].sort().values


def _positive_bits(seed: int, epoch: int, indices: Tensor) -> Tensor:
    return keyed_bits(seed, epoch, indices, STRETCHES) & torch.iinfo(torch.int64).max


def _held_out_count(rows: int, size: int | float) -> int:
    if isinstance(size, float) and not 0 < size < 1:
        raise ValueError(f"a fraction to hold out must be in (0, 1), got {size}; a number of rows is an integer")
    count = round(size * rows) if isinstance(size, float) else size
    if not 0 < count < rows:
        raise ValueError(f"cannot hold out {count} of {rows} rows and train on the others")
    return count


def evenly(total: int, count: int) -> Tensor:
    """Positions of so many rows, evenly from all.

    >>> evenly(10, 3)
    tensor([0, 3, 6])
    """
    return torch.arange(count) * total // count


def limited(total: int, most: int | None, *, spread: bool) -> Tensor:
    """Positions of at most so many rows, the first ones or evenly from all; of all where None.

    >>> limited(10, 3, spread=False), limited(3, None, spread=True)
    (tensor([0, 1, 2]), tensor([0, 1, 2]))
    """
    count = total if most is None else min(total, most)
    return evenly(total, count) if spread else torch.arange(count)
