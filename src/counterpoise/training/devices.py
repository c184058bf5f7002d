"""Which devices torch sees."""

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
