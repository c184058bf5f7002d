"""The formats by name: a literal table."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from counterpoise.export.onnx import export_onnx
from counterpoise.export.program import export_pt2
from counterpoise.export.weights import export_safetensors

Format = Literal["safetensors", "onnx", "pt2"]

FORMATS: dict[Format, Callable[[nn.Module, str | Path, Tensor, dict[str, str]], None]] = {
    "safetensors": lambda model, path, _, metadata: export_safetensors(model, path, metadata=metadata),
    "onnx": lambda model, path, example, metadata: export_onnx(model, path, example=example, metadata=metadata),
    "pt2": lambda model, path, example, metadata: export_pt2(model, path, example=example, metadata=metadata),
}
"""`FORMATS[name](model, path, example, metadata)`."""


def export_model(model: nn.Module, path: str | Path, *, to: Format, example: Tensor, metadata: dict[str, str]) -> None:
    """Write a model in one of the `FORMATS`; see `export_safetensors`, `export_onnx` and `export_pt2`."""
    if to not in FORMATS:
        raise ValueError(f"there is no format {to!r}: choose one of {', '.join(FORMATS)}")
    FORMATS[to](model, path, example, metadata)
