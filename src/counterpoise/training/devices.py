"""Which devices torch sees, and what they compute by themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def visible_devices() -> list[str]:
    """Such as `cpu`, or `cpu`, `cuda:0` and `cuda:1`."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count()))]


def require_device(name: str) -> None:
    """Refuse a device such as `cuda` or `cuda:1` that is not there."""
    there = visible_devices()
    kind, _, index = name.partition(":")
    if (name if name == "cpu" else f"{kind}:{index or 0}") not in there:
        raise ValueError(f"torch sees no device {name!r} here; it sees {', '.join(there)}")


@contextmanager
def full_float32() -> Iterator[None]:
    """Convolve float32 in float32: by default cuDNN takes TF32, with the 10 bits of float16, where a GPU has it.

    Its search for the fastest kernel is left out too, because it finds others from one time to the next.
    """
    cudnn = torch.backends.cudnn
    with cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=cudnn.deterministic, allow_tf32=False):
        yield
