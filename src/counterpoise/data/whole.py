"""Training images with their borders: whole, resized, each of its own shape, in one block of memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class WholeImages:
    """Images uint8 `[H, W, C]` of unequal shapes, one after the other.

    One tensor, because worker processes share each tensor through a file descriptor.

    Attributes:
        values: uint8 `[total]`, all pixels.
        starts: int64 `[n]`, where each image begins.
        shapes: int64 `[n, 3]`.
    """

    values: Tensor
    starts: Tensor
    shapes: Tensor

    @classmethod
    def of(cls, values: bytearray, shapes: Sequence[tuple[int, ...]]) -> "WholeImages":
        """The images whose pixels follow each other in `values`, which is not copied."""
        every = torch.tensor(shapes)
        sizes = every.prod(1)
        return cls(torch.frombuffer(values, dtype=torch.uint8), sizes.cumsum(0) - sizes, every)

    def __getitem__(self, row: int) -> Tensor:
        """Pixels uint8 `[C, H, W]` of one image."""
        shape, start = self.shapes[row], int(self.starts[row])
        return self.values[start : start + int(shape.prod())].view(*shape.tolist()).permute(2, 0, 1)

    def take(self, indices: Tensor) -> "WholeImages":
        """The images at these positions, in this order; no pixel is copied."""
        return replace(self, starts=self.starts[indices], shapes=self.shapes[indices])
