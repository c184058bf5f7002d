"""The primary's weights as safetensors."""

from pathlib import Path

from safetensors.torch import save_model
from torch import nn

from counterpoise._files import read_safetensors, replacing
from counterpoise.export.primary import require_primary, with_version
from counterpoise.export.temperature import Temperature, temperature_value, with_temperature

_NAMED = 12
"""Tensors that a message names."""


def export_safetensors(
    model: nn.Module, path: str | Path, *, metadata: dict[str, str], temperature: Temperature = None
) -> None:
    """Write the weights and buffers of a model, bit by bit as they are, and text about them.

    Weights stay what they are: a temperature is kept in the metadata, as `temperature`, for whoever loads them to
    divide the logits by. Tensors that share memory are written once; the metadata then say under which name.
    """
    require_primary(model)
    described = with_version(with_temperature(metadata, temperature_value(temperature), folded=False))
    with replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        save_model(model, str(temporary), metadata=described)
        temporary.chmod(mode)  # safetensors lets the owner alone read its files


def load_safetensors(model: nn.Module, path: str | Path) -> dict[str, str]:
    """Fill a model with the weights of a file, all of them or none, and return the file's metadata."""
    metadata, tensors = read_safetensors(path)
    expected = model.state_dict()
    shared = {name: kept for name, kept in metadata.items() if name in expected and kept in tensors}
    tensors |= {name: tensors[kept] for name, kept in shared.items()}
    problems = [
        *(f"{name} is missing" for name in expected if name not in tensors),
        *(f"{name} is unexpected" for name in tensors if name not in expected),
        *(
            f"{name} is {tensors[name].dtype} {list(tensors[name].shape)}, not {value.dtype} {list(value.shape)}"
            for name, value in expected.items()
            if name in tensors and (tensors[name].dtype, tensors[name].shape) != (value.dtype, value.shape)
        ),
    ]
    if problems:
        more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise ValueError(
            f"{path} does not fit {type(model).__name__}: {'; '.join(problems[:_NAMED])}{more}. "
            "Build the model with the backbone, classes and channels that the file was trained with"
        )
    model.load_state_dict(tensors)
    return {name: value for name, value in metadata.items() if name not in shared}
