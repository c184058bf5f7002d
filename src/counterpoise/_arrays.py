"""Tensors from whatever users have: tensors, arrays, nested lists, tables and columns of other libraries."""

from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from numpy.typing import NDArray
from torch import Tensor

_BOOLEANS, _INTEGERS, _FLOATS = (bool, np.bool_), (int, np.integer), (float, np.floating)


def as_tensor(values: Any, name: str) -> Tensor:
    """A dense tensor from a tensor, which is returned as it is, an array, or nested lists of numbers."""
    if isinstance(values, Tensor):
        if values.is_nested:
            raise ValueError(
                f"{name} are a nested tensor; pass a dense one: torch.nested.to_padded_tensor, or stack rows"
            )
        if values.layout != torch.strided:
            raise ValueError(f"{name} must be a dense tensor, got {values.layout}; call .to_dense()")
        if values.is_meta:
            raise ValueError(f"{name} are on the meta device, where tensors have no values; pass real ones")
        if values.is_floating_point() and values.dtype.itemsize < 2:
            raise ValueError(
                f"{name} have dtype {dtype_name(values)}, which has no arithmetic; convert them with .float()"
            )
        return values
    if isinstance(values, list | tuple) and any(isinstance(each, Tensor) for each in values):
        # NumPy would ask each for its numbers, which a tensor with a gradient refuses.
        try:
            return as_tensor(torch.stack([torch.as_tensor(each).detach() for each in values]), name)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(f"{name} are not a rectangular array of numbers: {error}") from None
    array = as_numbers(as_array(values, name))
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got an array of dtype {array.dtype}{_odd_one(array, values)}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise ValueError(f"{name} have dtype {array.dtype}; convert them to float64")
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} hold integers above {np.iinfo(np.int64).max}")
    kinds = {"f": array.dtype.newbyteorder("="), "i": np.dtype(np.int64), "u": np.dtype(np.int64), "b": np.dtype(bool)}
    # torch takes neither reversed nor read-only arrays as they are.
    return torch.from_numpy(np.require(array, dtype=kinds[array.dtype.kind], requirements=["C", "W"]))


def as_array(values: Any, name: str) -> NDArray[Any]:
    """An array of anything: of what has `__array__`, `to_pandas` or `__dlpack__`, or of nested lists."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(
            f"{name} are a masked array with masked entries; fill them, or leave their rows out with valid="
        )
    if hasattr(values, "toarray"):
        raise ValueError(f"{name} are a sparse matrix; call .toarray()")
    if hasattr(values, "to_pandas") and not hasattr(values, "__array__"):
        values = values.to_pandas()
    try:
        array = np.asarray(values)
        if array.dtype == object and array.ndim == 1 and len(array) and hasattr(array[0], "__len__"):
            nested = not isinstance(array[0], str)
            array = np.asarray([np.asarray(row) for row in array]) if nested else array  # a column of lists
    except (ValueError, TypeError, RuntimeError) as error:
        if hasattr(values, "__dlpack__"):  # on a device where NumPy cannot look
            return torch.utils.dlpack.from_dlpack(values).cpu().numpy()
        raise ValueError(f"{name} are not a rectangular array of numbers: {error}") from None
    return array


def as_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """An array of Python's numbers as one of NumPy's; any other as it is."""
    if array.dtype != object or not array.size:
        return array
    kinds = {type(each) for each in array.flat}
    for numbers, dtype in ((_BOOLEANS, bool), (_INTEGERS, np.int64), ((*_INTEGERS, *_FLOATS), np.float64)):
        if all(issubclass(kind, numbers) and (kind in _BOOLEANS) == (dtype is bool) for kind in kinds):
            return array.astype(dtype)
    return array


def _odd_one(array: NDArray[Any], values: Any) -> str:
    """What in an array is no number, and in which column of a table."""
    for place in np.ndindex(array.shape) if array.dtype == object and array.ndim else ():
        if not isinstance(array[place], int | float | np.number):
            names = column_names(values)
            column = f" in column {names[place[1]]!r}" if names is not None and len(place) == 2 else ""
            return f": row {place[0]}{column} is {array[place]!r:.40}"
    return ""


def column_names(values: Any) -> tuple[Any, ...] | None:
    """The names of a table's columns; None where it has none, or they only count from 0."""
    names = getattr(values, "column_names", None)  # of Arrow and of Hugging Face; there, `columns` are arrays
    names = names if isinstance(names, list | tuple) else getattr(values, "columns", None)
    if names is None or callable(names) or isinstance(values, Tensor | np.ndarray):
        return None
    return None if tuple(names) == tuple(range(len(names))) else tuple(names)


def class_indices(labels: Any, leading: torch.Size) -> Tensor:
    """Labels as int64 `[n]`, from one integer for each of the leading axes' entries."""
    tensor = as_tensor(labels, "labels")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"labels must be integer class indices, got {dtype_name(tensor)}")
    if tensor.shape != leading:
        raise ValueError(f"labels must have shape {list(leading)}, one class index a sample, got {list(tensor.shape)}")
    return tensor.reshape(-1).long()


def dtype_name(tensor: Tensor) -> str:
    """Such as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")
