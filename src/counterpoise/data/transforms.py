"""Transforms of torchvision by name, and mixup and CutMix, whose draws are keyed as all others here.

Torchvision draws from torch's global generator. It is seeded by a key before each use, and restored afterwards: what an
image becomes depends on nothing that was drawn before it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from counterpoise._choices import TRANSFORMS
from counterpoise._extras import require
from counterpoise.data.keyed import MIXING, TRANSFORM, keyed_bits

OWN_SIZE = "RandomResizedCrop"
"""Takes images of any size, and so the only one that need not have them resized before."""

_COLOUR = ("RandomGrayscale",)
"""Without effect on grey images. Of the others, what would change colours leaves grey images as they are."""

_BUILD: dict[str, Callable[[Any, tuple[int, int]], Any]] = {
    "RandomResizedCrop": lambda v2, size: v2.Compose(
        [_window, v2.RandomResizedCrop(size, scale=(0.7, 1.0), antialias=True)]
    ),
    "RandomCrop": lambda v2, size: v2.RandomCrop(size, padding=max(size) // 8),
    "RandomHorizontalFlip": lambda v2, _: v2.RandomHorizontalFlip(),
    "RandomVerticalFlip": lambda v2, _: v2.RandomVerticalFlip(),
    "RandomRotation": lambda v2, _: v2.RandomRotation(15, interpolation=v2.InterpolationMode.BILINEAR),
    "RandomAffine": lambda v2, _: v2.RandomAffine(
        10, translate=(0.1, 0.1), scale=(0.9, 1.1), interpolation=v2.InterpolationMode.BILINEAR
    ),
    "RandomPerspective": lambda v2, _: v2.RandomPerspective(0.2),
    "ColorJitter": lambda v2, _: v2.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.3),
    "RandomGrayscale": lambda v2, _: v2.RandomGrayscale(),
    # A kernel of a tenth of the image, of odd length.
    "GaussianBlur": lambda v2, size: v2.GaussianBlur(max(3, min(size) // 20 * 2 + 1), sigma=(0.1, 2.0)),
    "AutoAugment": lambda v2, _: v2.AutoAugment(),
    "RandAugment": lambda v2, _: v2.RandAugment(),
    "TrivialAugment": lambda v2, _: v2.TrivialAugmentWide(),
    "TrivialAugmentWide": lambda v2, _: v2.TrivialAugmentWide(),
    "AugMix": lambda v2, _: v2.AugMix(),
    "RandomErasing": lambda v2, _: v2.RandomErasing(p=0.25),
}
"""How each is built, from torchvision's module and the height and width of the result.

Arguments are torchvision's defaults, but for what has none, and for what suits fine-tuning rather than ImageNet from
scratch: crop and jitter as in DomainBed (Gulrajani and Lopez-Paz, 2021), erasing a quarter of the time as in DeiT.
"""


def _window(image: Tensor) -> Tensor:
    """A part of a long image `[C, h, w]`, of sides 4:3, at a random place.

    Torchvision crops areas of at most 4:3; if 70% of the area is longer than that, it takes the centre each time.
    """
    for axis, other in ((-2, -1), (-1, -2)):
        length, part = image.shape[axis], image.shape[other] * 4 // 3
        if length > part:
            return image.narrow(axis, int(torch.randint(length - part + 1, ())), part)
    return image


@dataclass(frozen=True)
class Transforms:
    """Transforms of `torchvision.transforms.v2`, one after the other, on each image by itself.

    Attributes:
        names: of `counterpoise.data.transforms.TRANSFORMS`, in their order.
        shape: `(C, H, W)` of the results.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if unknown := [name for name in self.names if name not in _BUILD]:
            raise ValueError(f"there is no transform {', '.join(unknown)}; there are {', '.join(TRANSFORMS)}")
        colour = [name for name in self.names if name in _COLOUR]
        if colour and self.shape[0] == 1:
            raise ValueError(f"{', '.join(colour)} changes the colours of an image, and these are grey; leave it out")
        self._composed  # so that what is not installed is missed here  # noqa: B018

    @property
    def takes_own_size(self) -> bool:
        """Whether images may come at the size that they are stored with."""
        return OWN_SIZE in self.names

    def __call__(self, images: Iterable[Tensor], keys: Tensor, *, seed: int, epoch: int) -> Tensor:
        """Images uint8 `[C, h, w]` on the CPU, each by its own key in `keys [b]`, as uint8 `[b, C, H, W]`."""
        with _one_thread(), torch.random.fork_rng(devices=[]):
            results = []
            for image, key in zip(images, keyed_bits(seed, epoch, keys, TRANSFORM).tolist(), strict=True):
                torch.default_generator.manual_seed(key)
                # Of one layout, because rounding may differ between them.
                results.append(self._composed(image.contiguous()))
            return torch.stack(results)

    @cached_property
    def _composed(self) -> Any:
        v2 = require("torchvision.transforms.v2", extra="train", purpose="data.augment")
        _, height, width = self.shape
        return v2.Compose([_BUILD[name](v2, (height, width)) for name in self.names])


@dataclass(frozen=True)
class Mixing:
    """Mixup and CutMix of a batch with itself, shifted by one; where both are on, one of them by a fair coin.

    Mixup (Zhang et al., 2018) gives `lam x_i + (1 - lam) x_j`, CutMix (Yun et al., 2019) pastes a box of x_j, whose
    share of the area is `1 - lam`, into x_i. The label is `lam onehot(y_i) + (1 - lam) onehot(y_j)` in either case.

    Attributes:
        mixup: a of the distribution Beta(a, a) of lam for mixup; 0 for none.
        cutmix: a of the distribution Beta(a, a) of lam for CutMix, before the box is cut at the edges; 0 for none.
        classes: how many there are.
    """

    mixup: float
    cutmix: float
    classes: int

    def __call__(self, images: Tensor, labels: Tensor, *, seed: int, epoch: int, number: int) -> tuple[Tensor, Tensor]:
        """Images `[b, C, H, W]` and labels int64 `[b]` of batch `number`, mixed; labels as float32 `[b, K]`."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(keyed_bits(seed, epoch, torch.tensor(number), MIXING)))
            mixed, soft = self._choice(images, labels)
        return mixed.contiguous(memory_format=torch.channels_last), soft

    @cached_property
    def _choice(self) -> Any:
        v2 = require("torchvision.transforms.v2", extra="train", purpose="data.mixup and data.cutmix")
        given = [(v2.MixUp, self.mixup), (v2.CutMix, self.cutmix)]
        return v2.RandomChoice([mix(alpha=alpha, num_classes=self.classes) for mix, alpha in given if alpha])


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in a worker: sums over an image round by how many threads share them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
