"""What ships: the primary alone, as safetensors, ONNX or a torch.export program."""

from counterpoise.export.formats import FORMATS, Format, export_model
from counterpoise.export.onnx import export_onnx
from counterpoise.export.primary import describe
from counterpoise.export.program import export_pt2, load_pt2
from counterpoise.export.weights import export_safetensors, load_safetensors

__all__ = [
    "FORMATS",
    "Format",
    "describe",
    "export_model",
    "export_onnx",
    "export_pt2",
    "export_safetensors",
    "load_pt2",
    "load_safetensors",
]
