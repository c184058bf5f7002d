"""The file of a calibrator: safetensors, whose metadata hold one description in JSON, with a checksum of everything.

Data only: the kind is looked up in a literal table, and no import path is ever read from a file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from counterpoise._documents import DIGEST
from counterpoise._files import content_digest, read_safetensors, replacing
from counterpoise._json import parsed

SCHEMA = "counterpoise.calibrator"
SCHEMA_VERSION = 1
Number = int | float | None


@dataclass(frozen=True)
class Record:
    """A fitted calibrator as plain data.

    Attributes:
        kind: its name in `CALIBRATORS`.
        classes: K.
        state: how the fit ended.
        settings: what the calibrator was made with.
        results: what the fit chose, besides tensors.
        tensors: what the fit learned, on the host.
    """

    kind: str
    classes: int
    state: str
    settings: Mapping[str, Number]
    results: Mapping[str, Number]
    tensors: Mapping[str, Tensor]

    def setting(self, name: str) -> Any:
        """A setting, by name."""
        return _entry(self.settings, name, "setting")

    def result(self, name: str) -> Any:
        """A result, by name."""
        return _entry(self.results, name, "result")

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A float64 tensor by name, of that shape (-1: any length) and finite."""
        if name not in self.tensors:
            raise ValueError(f"the tensor {name!r} is missing")
        value = self.tensors[name]
        fits = len(value.shape) == len(shape) and all(n in (-1, m) for n, m in zip(shape, value.shape, strict=True))
        if not fits or value.dtype != torch.float64:
            raise ValueError(
                f"the tensor {name!r} has shape {list(value.shape)} and dtype {value.dtype}, "
                f"expected {list(shape)} and torch.float64"
            )
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"the tensor {name!r} holds NaN or infinity")
        return value


def write_record(path: str | Path, record: Record) -> None:
    """Write a record, atomically: a reader sees the old file or the new one."""
    # safetensors refuses tensors that share memory.
    tensors = {name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in record.tensors.items()}
    content = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kind": record.kind,
        "classes": record.classes,
        "state": str(record.state),
        "settings": dict(record.settings),
        "results": dict(record.results),
    }
    # One entry, since safetensors writes several in any order, and the same calibrator should give the same bytes.
    metadata = {"description": json.dumps({**content, DIGEST: content_digest(content, tensors)}, allow_nan=False)}
    with replacing(path) as temporary:
        temporary.write_bytes(to_safetensors(tensors, metadata=metadata))


def read_record(path: str | Path) -> Record:
    """Read a record; `ValueError` that names the file if it is anything but what `write_record` wrote."""
    metadata, tensors = read_safetensors(path)
    try:
        content = parsed(metadata.get("description", ""))
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"{path} is not the file of a calibrator: its metadata hold no description of one")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema version {content.get('schema_version')!r}, this release reads {SCHEMA_VERSION}"
        )
    if content.pop(DIGEST, None) is None:  # without it, nobody has verified the content
        raise ValueError(f"{path} is damaged: it has lost its digest; save the calibrator anew")
    kinds = {"kind": str, "classes": int, "state": str, "settings": dict, "results": dict}
    for name, kind in kinds.items():
        if type(content.get(name)) is not kind:
            raise ValueError(f"{path}: {name} must be of type {kind.__name__}, got {content.get(name)!r}")
    if content["classes"] < 2:
        raise ValueError(f"{path}: a calibrator has at least 2 classes, got {content['classes']}")
    for name, value in {**content["settings"], **content["results"]}.items():
        if value is not None and type(value) not in (int, float):
            raise ValueError(f"{path}: {name} must be a number or null, got {value!r}")
    return Record(**{name: content[name] for name in kinds}, tensors=tensors)


def _entry(entries: Mapping[str, Number], name: str, what: str) -> Number:
    if name not in entries:
        raise ValueError(f"the {what} {name!r} is missing")
    return entries[name]
