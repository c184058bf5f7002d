"""Tensors from whatever users have: tensors, arrays, nested lists."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


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
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(
            f"{name} are a masked array with masked entries; fill them, or leave their rows out with valid="
        )
    try:
        if isinstance(values, list | tuple) and any(isinstance(each, Tensor) for each in values):
            # NumPy would ask each for its numbers, which a tensor with a gradient refuses.
            return as_tensor(torch.stack([torch.as_tensor(each).detach() for each in values]), name)
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{name} are not a rectangular array of numbers: {error}") from None
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got an array of dtype {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise ValueError(f"{name} have dtype {array.dtype}; convert them to float64")
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} hold integers above {np.iinfo(np.int64).max}")
    kinds = {"f": array.dtype.newbyteorder("="), "i": np.dtype(np.int64), "u": np.dtype(np.int64), "b": np.dtype(bool)}
    # torch takes neither reversed nor read-only arrays as they are.
    return torch.from_numpy(np.require(array, dtype=kinds[array.dtype.kind], requirements=["C", "W"]))


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
