"""Which devices torch sees, and what they compute in."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from counterpoise.recipes.config import Precision

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


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


def mixed_precision(precision: Precision, *, device: str) -> torch.autocast:
    """What the engine runs a forward pass in; of float32, nothing changes."""
    return torch.autocast(device, _DTYPES.get(precision), enabled=precision != "float32")


def computes_bfloat16(device: str) -> bool:
    """Whether a device has instructions for bfloat16; of others than x86 CPUs it is believed."""
    if device != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # as in older releases of torch
        return True
    able = torch.cpu.get_capabilities()
    return able.get("architecture") != "x86_64" or any(map(able.get, _BFLOAT16_INSTRUCTIONS))
