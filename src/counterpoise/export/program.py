"""The primary as a program of torch.export: runs in Python or C++ without the code of the model."""

import json
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from counterpoise._files import replacing
from counterpoise.export.primary import check_same_logits, shipped, traced, with_version

METADATA_FILE = "counterpoise.json"


def export_pt2(model: nn.Module, path: str | Path, *, example: Tensor, metadata: dict[str, str]) -> None:
    """Write a model from images `[batch, ...]` to logits `[batch, classes]`, for a batch of any size.

    The file is read again and its logits are compared with the model's. Later versions of torch may not read it: keep
    the safetensors file as well.

    Args:
        model: the primary; it is copied, and stays as it is.
        path: the file, which appears when it is whole and checked.
        example: a batch of normalised images, for its shape alone.
        metadata: text to keep in the file, see `describe`.
    """
    primary = shipped(model)
    program = traced(primary, example)
    with replacing(path) as temporary:
        with temporary.open("wb") as file, warnings.catch_warnings(action="ignore"):
            torch.export.save(program, file, extra_files={METADATA_FILE: json.dumps(with_version(metadata))})
        check_same_logits(load_pt2(temporary)[0], primary, example, path)


def load_pt2(path: str | Path) -> tuple[nn.Module, dict[str, str]]:
    """The module of a file, and its metadata. Parts of such a file are unpickled: load only files that you trust."""
    extra = {METADATA_FILE: "{}"}
    with Path(path).open("rb") as file, warnings.catch_warnings(action="ignore"):
        try:
            program = torch.export.load(file, extra_files=extra)
        except Exception as error:  # a damaged file fails in any of the parts that read it
            raise ValueError(f"{path} is no program that this torch can read, or not the whole of one") from error
    metadata: dict[str, str] = json.loads(extra[METADATA_FILE])
    return program.module(), metadata
