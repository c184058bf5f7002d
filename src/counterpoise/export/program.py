"""The primary as a program of torch.export: runs in Python or C++ without the code of the model."""

import io
import json
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from counterpoise._digests import read_vouched, replacing_vouched
from counterpoise._json import parsed
from counterpoise.export.guarantees import NONE, Guarantees
from counterpoise.export.primary import check_same_outputs, shipped, traced, with_version
from counterpoise.export.temperature import Temperature, temperature_value, with_temperature

METADATA_FILE = "counterpoise.json"


def export_pt2(
    model: nn.Module,
    path: str | Path,
    *,
    example: Tensor,
    metadata: dict[str, str],
    temperature: Temperature = None,
    guarantees: Guarantees = NONE,
) -> None:
    """Write a model from images `[batch, ...]` to a dict of `logits` and `probabilities`, for a batch of any size.

    The file is read again and its outputs are compared with the model's. Later versions of torch may not read it: keep
    the safetensors file as well.

    Arguments are those of `export_onnx`, and so are the outputs.
    """
    chosen = temperature_value(temperature)
    described = with_version(with_temperature(guarantees.added_to(metadata), chosen, folded=True))
    deployed = shipped(model, temperature=chosen, guarantees=guarantees)
    program = traced(deployed, example)
    with replacing_vouched(path) as temporary:
        with temporary.open("wb") as file, warnings.catch_warnings(action="ignore"):
            torch.export.save(program, file, extra_files={METADATA_FILE: json.dumps(described)})
        check_same_outputs(load_pt2(temporary)[0], deployed, example, path)


def load_pt2(path: str | Path) -> tuple[nn.Module, dict[str, str]]:
    """The module of a file, which returns a dict of its outputs, and its metadata.

    Parts of such a file are unpickled: load only files that you trust.
    """
    extra = {METADATA_FILE: "{}"}
    data = read_vouched(Path(path))
    with warnings.catch_warnings(action="ignore"):
        try:
            program = torch.export.load(io.BytesIO(data), extra_files=extra)
        except Exception as error:  # a damaged file fails in any of the parts that read it
            raise ValueError(f"{path} is no program that this torch can read, or not the whole of one") from error
    metadata: dict[str, str] = parsed(extra[METADATA_FILE])
    return program.module(), metadata
