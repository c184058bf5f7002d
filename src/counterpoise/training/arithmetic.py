"""bfloat16 on a CPU that has no instructions for it.

There torch's autocast converts within every kernel, and a convolution is slower than in float32. The same arithmetic by
float32 kernels is not: inputs, weights and outputs, and in the backward pass their gradients, are rounded to bfloat16
where autocast rounds them. A product of two bfloat16 numbers is exact in float32, and sums are of float32 in either
case, so that the two differ in the order of summation alone, as two models of CPU do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from counterpoise.recipes.config import Kernels, Precision

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_UNITS = ("avx512_bf16", "amx_bf16")
_WIDENED = {torch.conv1d, torch.conv2d, torch.conv3d, functional.linear}


def kernels_of(precision: Precision, *, device: str) -> Kernels:
    """Those that are faster on a device; for bfloat16, `float32` on an x86 CPU without instructions for it."""
    if precision != "bfloat16" or device != "cpu":
        return "native"
    if not hasattr(torch.cpu, "get_capabilities"):  # as in older releases of torch
        return "native"
    able = torch.cpu.get_capabilities()
    return "float32" if able.get("architecture") == "x86_64" and not any(map(able.get, _UNITS)) else "native"


@contextmanager
def mixed_precision(precision: Precision, *, device: str) -> Iterator[None]:
    """What the engine runs a forward pass in; in float32, nothing."""
    if precision == "float32":
        yield
        return
    widened = kernels_of(precision, device=device) == "float32"
    with torch.autocast(device, _DTYPES[precision]), float32_kernels() if widened else nullcontext():
        yield


class WidenedBfloat16(MixedPrecision):
    """Lightning's autocast to bfloat16 on a CPU, with float32 kernels."""

    def __init__(self) -> None:
        """There is one such precision."""
        super().__init__("bf16-mixed", "cpu")

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """Around each forward pass."""
        with super().forward_context(), float32_kernels():
            yield


class float32_kernels(TorchFunctionMode):  # noqa: N801 - used as a context, like torch.autocast
    """Within it, what autocast on the CPU would compute in bfloat16 is computed by float32 kernels.

    >>> layer, images = torch.nn.Conv2d(3, 8, 3), torch.rand(2, 3, 8, 8)
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     native = layer(images)
    ...     with float32_kernels():
    ...         widened = layer(images)
    >>> widened.dtype, bool(torch.allclose(native, widened, rtol=2**-7, atol=1e-4))
    (torch.bfloat16, True)
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called in place of every function of torch."""
        named = kwargs or {}
        if func not in _WIDENED or not _rounds():
            return func(*args, **named)
        with torch.autocast("cpu", enabled=False):
            result = func(*map(_rounded, args), **{name: _rounded(value) for name, value in named.items()})
        return result.bfloat16()


def _rounds() -> bool:
    """Whether autocast to bfloat16 is in force."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def _rounded(value: Any) -> Any:
    """A tensor as float32 whose values, and whose gradient, are those of bfloat16."""
    return value.bfloat16().float() if isinstance(value, Tensor) else value
