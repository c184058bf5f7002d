"""The formats by name: a literal table."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from counterpoise.export.guarantees import NONE, Guarantees
from counterpoise.export.onnx import export_onnx
from counterpoise.export.program import export_pt2
from counterpoise.export.temperature import Temperature
from counterpoise.export.weights import export_safetensors

Format = Literal["safetensors", "onnx", "pt2"]


def _weights_alone(
    model: nn.Module,
    path: str | Path,
    _: Tensor,
    metadata: dict[str, str],
    temperature: Temperature,
    guarantees: Guarantees,
) -> None:
    if guarantees.names:
        raise ValueError("safetensors hold weights and no outputs: export guarantees to onnx or pt2")
    export_safetensors(model, path, metadata=metadata, temperature=temperature)


FORMATS: dict[Format, Callable[[nn.Module, str | Path, Tensor, dict[str, str], Temperature, Guarantees], None]] = {
    "safetensors": _weights_alone,
    "onnx": lambda model, path, example, metadata, temperature, guarantees: export_onnx(
        model, path, example=example, metadata=metadata, temperature=temperature, guarantees=guarantees
    ),
    "pt2": lambda model, path, example, metadata, temperature, guarantees: export_pt2(
        model, path, example=example, metadata=metadata, temperature=temperature, guarantees=guarantees
    ),
}
"""`FORMATS[name](model, path, example, metadata, temperature, guarantees)`."""


def export_model(
    model: nn.Module,
    path: str | Path,
    *,
    to: Format,
    example: Tensor,
    metadata: dict[str, str],
    temperature: Temperature = None,
    guarantees: Guarantees = NONE,
) -> None:
    """Write a model in one of the `FORMATS`; see `export_safetensors`, `export_onnx` and `export_pt2`."""
    if to not in FORMATS:
        raise ValueError(f"there is no format {to!r}: choose one of {', '.join(FORMATS)}")
    FORMATS[to](model, path, example, metadata, temperature, guarantees)
