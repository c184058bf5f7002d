"""Classes that are not equally many: weights of the loss, or an order in which each is drawn equally often."""

import torch
from torch import Tensor

from counterpoise.data.keyed import BALANCE, keyed_bits, permutation

_ROUND = 1 << 40
"""Added to the id of a sample for each time that it was drawn before in an epoch; above all ids."""


def class_weights(counts: Tensor) -> Tensor:
    """`n / (K n_k)`, float32 `[K]`, from the number `n_k` of samples of each class; its mean over the samples is 1.

    A class without samples has no say, neither in K nor in the mean; its own weight, which none has, is that of one.

    >>> class_weights(torch.tensor([6, 2]))
    tensor([0.6667, 2.0000])
    """
    return (counts.sum() / ((counts > 0).sum() * counts.clamp(min=1))).float()


def label_weights(labels: Tensor, weights: Tensor) -> Tensor:
    """The weight of each label's class, `[b]`; of soft labels `[b, K]` the expected one, `sum_k q_k w_k`.

    >>> label_weights(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([1.0, 3.0]))
    tensor([2., 3.])
    """
    return (labels * weights).sum(-1) if labels.is_floating_point() else weights[labels]


def balanced(labels: Tensor, ids: Tensor, *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
    """As many positions as there are labels, each class equally often, in a keyed order; and a key for each draw.

    A class with fewer samples than its share comes round again, in another order; one with more is not seen whole.
    Where shares are not whole numbers, some classes, others in each epoch, are drawn once more. The key of a sample's
    first draw is its id; later draws have keys of their own, so that they are augmented in another way.
    """
    counts = torch.unique(labels, return_counts=True)[1].tolist()
    share, rest = divmod(len(labels), len(counts))
    once_more = set(permutation(seed, epoch, len(counts), BALANCE)[:rest].tolist())
    positions, keys = [], []
    for index, own in enumerate(torch.split(labels.argsort(stable=True), counts)):
        draws = share + (index in once_more)
        rounds = torch.arange(-(-draws // len(own)))[:, None] * _ROUND + ids[own]
        order = keyed_bits(seed, epoch, rounds, BALANCE).argsort(dim=1, stable=True)
        positions.append(own[order].flatten()[:draws])
        keys.append(rounds.gather(1, order).flatten()[:draws])
    drawn, key = torch.cat(positions), torch.cat(keys)
    order = permutation(seed, epoch, key)
    return drawn[order], key[order]
