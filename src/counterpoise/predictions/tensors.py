"""Predictions from tensors: safetensors, and what `torch.save` writes, of which nothing but tensors is loaded."""

import itertools
import pickle
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from counterpoise.predictions.arrays import of_arrays
from counterpoise.predictions.compression import check_expansion
from counterpoise.predictions.digest import Source
from counterpoise.predictions.prediction_file import RawTable, refusing
from counterpoise.predictions.table import Array, PredictionFileError, as_array

_Path = tuple[str, ...]
_CODE = re.compile(r"GLOBAL (\S+)")
_VALUE_BYTES = 64
"""That a number, a text or a list of Python takes, about."""
_CHARACTER_BYTES = 4
"""In NumPy's arrays of text, all of whose rows are as long as the longest."""


def open_safetensors(source: Source) -> RawTable:
    """Read the tensors of a safetensors file, each of which is a column."""
    from safetensors.torch import load, load_file

    with refusing(source.path, what="safetensors file"):
        if isinstance(source.path, Path):
            tensors = load_file(source.path)
        else:
            with source.reopened() as file:
                tensors = load(file.read())
        _require_predictions(tensors)
        arrays = {name: as_array(tensor) for name, tensor in tensors.items()}
        return of_arrays(source, arrays, what="safetensors file")


def open_torch(source: Source) -> RawTable:
    """Read the tensors that `torch.save` wrote, each of which is a column.

    They stand in a dictionary, or in a tuple, where they are `arr_0`, `arr_1` and so on, as in NumPy's archives; a
    tensor alone has the name of the file. A list of any of these is what a loop has collected batch by batch.
    """
    with refusing(source.path, what="PyTorch file"), source.reopened() as file:
        found = _loaded(file)
        _require_justified(found, stored=source.size)
        arrays = dict(_arrays(found, source))
        _require_predictions(arrays)
        return of_arrays(source, arrays, what="PyTorch file")


def _require_predictions(names: Iterable[str]) -> None:
    """Refuse the weights of a network, which have the same suffixes."""
    if weights := next((name for name in names if name.endswith((".weight", ".bias"))), None):
        raise PredictionFileError(
            f"it holds a network's weights, such as {weights!r}, not its predictions: save its logits, with the labels"
        )


def _loaded(file: pa.NativeFile) -> Any:
    import torch

    if file.read(2) != b"PK":
        raise PredictionFileError("it is not what torch.save has written since PyTorch 1.6; save its tensors again")
    with zipfile.ZipFile(file) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise PredictionFileError("it is compressed, which torch.save never does; save its tensors again")
    file.seek(0)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        code = _CODE.search(str(error))
        held = f"it holds {code[1]}" if code else "it is damaged, or holds code"
        raise PredictionFileError(
            f"{held}; tensors, numbers and text alone are loaded: write torch.save({{'logits': logits, 'labels': "
            "labels}, PATH)"
        ) from None


def _require_justified(found: Any, *, stored: int) -> None:
    """Refuse what is larger than the file can be the reason for: a tensor of few bytes and many rows, or many times."""
    import torch

    declared, left = 0, [found]
    while left:
        value = left.pop()
        declared += value.nbytes if isinstance(value, torch.Tensor) else _VALUE_BYTES
        check_expansion(declared=declared, stored=stored, what="it")
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list | tuple):
            left.extend(value)


def _arrays(found: Any, source: Source) -> Iterator[tuple[str, Array]]:
    columns = dict(_columns(found, ()))
    shortest = {path[-1] for path in columns if path}
    for path, value in columns.items():
        # The names of dictionaries within are needed where they tell two of one name apart.
        name = path[-1] if path and len(shortest) == len(columns) else ".".join(path) or source.path.stem
        if isinstance(value, list) and isinstance(value[0], str):
            longest = max(map(len, value))
            check_expansion(declared=_CHARACTER_BYTES * longest * len(value), stored=source.size, what=f"list {name!r}")
        yield name, as_array(value)


def _columns(found: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
    """Tensors and lists of numbers or texts, by the names that lead to them; what is neither means nothing here."""
    import torch

    if isinstance(found, torch.Tensor):
        yield path, found
    elif isinstance(found, Mapping):
        for key, value in found.items():
            yield from _columns(value, (*path, str(key)))
    elif isinstance(found, list) and found and _are_values(found):
        yield path, found
    elif isinstance(found, list) and found and (joined := _joined(found, path)) is not None:
        yield from joined.items()
    elif isinstance(found, list | tuple):
        for place, value in enumerate(found):
            yield from _columns(value, (*path, f"arr_{place}"))


def _are_values(found: list[Any]) -> bool:
    """Whether a list is a column: of texts, or of numbers, or of lists of numbers."""
    return (
        all(isinstance(each, str) for each in found)
        or all(isinstance(each, int | float) for each in found)
        or all(isinstance(each, list) and all(isinstance(value, int | float) for value in each) for each in found)
    )


def _joined(found: list[Any], path: _Path) -> dict[_Path, Any] | None:
    """Batches of one form as whole columns; None where they have several, and are no batches."""
    import torch

    parts = [dict(_columns(each, path)) for each in found]
    if not parts[0] or any(part.keys() != parts[0].keys() for part in parts):
        return None
    columns = {key: [part[key] for part in parts] for key in parts[0]}
    if all(isinstance(part, list) for column in columns.values() for part in column):
        return {key: list(itertools.chain.from_iterable(column)) for key, column in columns.items()}
    if not all(isinstance(part, torch.Tensor) for column in columns.values() for part in column):
        return None
    # The logits and the labels of a list of both differ in shape, as batches do not.
    odd = next((key for key, column in columns.items() if len({part.shape[1:] for part in column}) > 1), None)
    if odd is not None and all(isinstance(each, Mapping) for each in found):
        shapes = [list(part.shape) for part in columns[odd]]
        place = next(place for place, shape in enumerate(shapes) if shape[1:] != shapes[0][1:])
        raise PredictionFileError(
            f"batch {place} of {odd[-1]!r} has shape {shapes[place]}, and batch 0 {shapes[0]}; keep the axis of "
            "samples in each batch, also of one sample, and save the predictions again"
        )
    if odd is not None:
        return None
    return {key: torch.cat([part if part.ndim else part[None] for part in column]) for key, column in columns.items()}
