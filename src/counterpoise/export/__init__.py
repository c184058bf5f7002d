"""What ships: the primary alone, as safetensors, ONNX or a torch.export program, with its temperature."""

from counterpoise.export.config import ModelConfig
from counterpoise.export.formats import FORMATS, Format, export_model
from counterpoise.export.guarantees import Guarantees, fit_guarantees
from counterpoise.export.onnx import export_onnx, load_onnx
from counterpoise.export.primary import describe
from counterpoise.export.program import export_pt2, load_pt2
from counterpoise.export.temperature import Temperature
from counterpoise.export.weights import export_safetensors, load_safetensors

__all__ = [
    "FORMATS",
    "Format",
    "Guarantees",
    "ModelConfig",
    "Temperature",
    "describe",
    "export_model",
    "export_onnx",
    "export_pt2",
    "export_safetensors",
    "fit_guarantees",
    "load_onnx",
    "load_pt2",
    "load_safetensors",
]
