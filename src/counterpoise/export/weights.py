"""The primary's weights as safetensors."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from counterpoise._files import read_safetensors, write_safetensors
from counterpoise.export.primary import require_primary, uncompiled, with_version
from counterpoise.export.temperature import Temperature, temperature_value, with_temperature
from counterpoise.models.weights import misfits

_NAMED = 12
"""Tensors that a message names."""


def export_safetensors(
    model: nn.Module, path: str | Path, *, metadata: dict[str, str], temperature: Temperature = None
) -> None:
    """Write the weights and buffers of a model, bit by bit as they are, and text about them.

    Weights stay what they are: a temperature is kept in the metadata, as `temperature`, for whoever loads them to
    divide the logits by. Tensors that share memory are written once; the metadata then say under which name.
    """
    model = uncompiled(model)
    require_primary(model)
    described = with_temperature(metadata, temperature_value(temperature), folded=False)
    export_weights(model.state_dict(), path, metadata=described)


def export_weights(state: Mapping[str, Tensor], path: str | Path, *, metadata: dict[str, str]) -> None:
    """`export_safetensors` of weights and buffers by name, without the model that they are of."""
    tensors, within = _stored(state)
    write_safetensors(path, tensors, with_version(metadata) | within)


def load_safetensors(model: nn.Module, path: str | Path) -> dict[str, str]:
    """Fill a model with the weights of a file, all of them or none, and return the file's metadata."""
    return fill(model, *read_safetensors(path), path=path)


def fill(model: nn.Module, metadata: dict[str, str], tensors: dict[str, Tensor], *, path: str | Path) -> dict[str, str]:
    """`load_safetensors` of what was read from the file already."""
    others, fitting = require_fit(model, metadata, tensors, path=path)
    model.load_state_dict(fitting, strict=False)  # a part of another tensor is filled with it
    return others


def require_fit(
    model: nn.Module, metadata: dict[str, str], tensors: dict[str, Tensor], *, path: str | Path
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors for a model, which may be on the meta device; refused if they are not its own."""
    expected = model.state_dict()
    shared = {name: kept for name, kept in metadata.items() if name in expected and kept in tensors}
    parts = {name for name, kept in shared.items() if kept in expected and _is_view(expected[name], expected[kept])}
    tensors = tensors | {name: tensors[kept] for name, kept in shared.items() if name not in parts}
    problems = misfits({name: value for name, value in expected.items() if name not in parts}, tensors)
    if problems:
        more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise ValueError(
            f"{path} does not fit {type(model).__name__}: {'; '.join(problems[:_NAMED])}{more}. "
            "Build the model with the backbone, classes, channels and dtype that the file was trained with"
        )
    return {name: value for name, value in metadata.items() if name not in shared}, tensors


def _stored(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors to write, and the names of those that lie within another, with its name: safetensors' own convention."""
    owners: dict[int, str] = {}
    for name in sorted(state):
        storage = state[name].untyped_storage()
        if _is_whole(state[name]):
            owners.setdefault(storage.data_ptr(), name)
    owner = {name: owners.get(value.untyped_storage().data_ptr(), name) for name, value in state.items()}
    # A square matrix and its transpose have one memory and one shape, but not the same values.
    owner |= {
        name: name
        for name, kept in owner.items()
        if state[name].shape == state[kept].shape and not torch.equal(state[name], state[kept])
    }
    tensors = {
        name: value.contiguous() if _is_whole(value) else value.clone(memory_format=torch.contiguous_format)
        for name, value in state.items()
        if owner[name] == name
    }
    return tensors, {name: kept for name, kept in owner.items() if kept != name}


def _is_whole(value: Tensor) -> bool:
    """Whether a tensor is all of its memory."""
    return 0 < value.numel() * value.element_size() == value.untyped_storage().nbytes()


def _is_view(value: Tensor, whole: Tensor) -> bool:
    """Whether a tensor is another view of the memory of one."""
    return value.shape != whole.shape and value.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
