"""The primary as one ONNX file."""

import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from counterpoise._addresses import as_path
from counterpoise._digests import read_vouched, replacing_vouched
from counterpoise._extras import require
from counterpoise._files import FilePath
from counterpoise.export.guarantees import NONE, Guarantees
from counterpoise.export.primary import DYNAMIC_BATCH, check_same_outputs, shipped, traced, with_version
from counterpoise.export.temperature import Temperature, temperature_value, with_temperature

OPSET = 18
"""The operators that torch's exporter writes without converting them; runtimes read them since early 2023."""

LARGEST = 2**31 - 1
"""Bytes of an ONNX file, by the format it is stored in."""


def export_onnx(
    model: nn.Module,
    path: str | Path,
    *,
    example: Tensor,
    metadata: dict[str, str],
    temperature: Temperature = None,
    guarantees: Guarantees = NONE,
) -> None:
    """Write a model from `images` `[batch, ...]` to `logits` and `probabilities`, for a batch of any size.

    Both are `[batch, classes]`: the logits are divided by the temperature, the probabilities are their softmax. With
    guarantees there are also `set`, bool `[batch, classes]`, and `accept`, bool `[batch]`. The file is checked: by
    ONNX's own checker, and by comparing its outputs under ONNX Runtime with the model's.

    Args:
        model: the primary; it is copied, and stays as it is.
        path: the file, which appears when it is whole and checked; its SHA-256 is beside it, in `PATH.sha256`.
        example: a batch of normalised images, for its shape alone.
        metadata: text to keep in the file, see `describe`.
        temperature: to fold in, as a number or as a fitted `TemperatureScaling`; then `folded_temperature` in the
            metadata.
        guarantees: to fold in, fitted at that temperature (`fit_guarantees`); each is in the metadata under its name.
    """
    onnx, onnxruntime, _ = (_required(module) for module in ("onnx", "onnxruntime", "onnxscript"))
    chosen = temperature_value(temperature)
    described = with_version(with_temperature(guarantees.added_to(metadata), chosen, folded=True))
    deployed = shipped(model, temperature=chosen, guarantees=guarantees)
    names = list(deployed.names)
    size = sum(value.nbytes for value in deployed.state_dict().values())
    if size > LARGEST:
        raise ValueError(f"{path}: an ONNX file holds at most {LARGEST:,} bytes, the weights take {size:,}: export pt2")
    program = traced(deployed, example)
    with warnings.catch_warnings(action="ignore"):  # the exporter's own, about its insides
        converted = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"],
            output_names=names,
            dynamic_shapes=DYNAMIC_BATCH,  # here for its name alone
            verbose=False,
        )
    assert converted is not None  # noqa: S101
    graph = converted.model_proto
    onnx.helper.set_model_props(graph, described)
    with replacing_vouched(path) as temporary:
        onnx.save(graph, str(temporary))
        onnx.checker.check_model(str(temporary), full_check=True)
        session = onnxruntime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])

        def run(rows: Tensor) -> dict[str, Tensor]:
            found = session.run(names, {"images": rows.numpy()})
            return {name: torch.from_numpy(values) for name, values in zip(names, found, strict=True)}

        check_same_outputs(run, deployed, example, path)


def load_onnx(
    path: str | FilePath, *, device: str = "cpu"
) -> tuple[Callable[[Tensor], dict[str, Tensor]], dict[str, str]]:
    """From normalised images `[n, ...]` to the outputs of a file by their names, and its metadata.

    ONNX Runtime computes with as many threads as torch has, so that each of several processes can be given its own.

    Args:
        path: of the file, or its address in an object store.
        device: `cpu`, or another of ONNX Runtime's, such as `cuda` or `cuda:1`.
    """
    onnxruntime = _required("onnxruntime")
    kind, _, index = device.partition(":")
    provider = f"{kind.upper()}ExecutionProvider"
    if provider not in (there := onnxruntime.get_available_providers()):
        raise ValueError(f"ONNX Runtime has no {provider} here for the device {device!r}; it has {', '.join(there)}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors alone: the others are about its own insides
    data = read_vouched(as_path(path))
    try:
        session = onnxruntime.InferenceSession(
            data, options, providers=[(provider, {"device_id": index} if index else {})]
        )
    except OSError:
        raise
    except Exception as error:  # a class of the runtime's own for each way in which a file can be damaged
        raise ValueError(f"{path} is no ONNX file that this ONNX Runtime can read: {error}") from None
    inputs, names = session.get_inputs(), [each.name for each in session.get_outputs()]
    if len(inputs) != 1:
        raise ValueError(
            f"{path} takes {len(inputs)} inputs: {', '.join(each.name for each in inputs)}; images are one"
        )

    def run(images: Tensor) -> dict[str, Tensor]:
        found = session.run(names, {inputs[0].name: images.cpu().contiguous().numpy()})
        return {name: torch.from_numpy(values) for name, values in zip(names, found, strict=True)}

    return run, dict(session.get_modelmeta().custom_metadata_map)


def _required(module: str) -> ModuleType:
    return require(module, extra="export", purpose="export to ONNX")
