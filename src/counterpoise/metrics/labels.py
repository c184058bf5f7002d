"""Labels as class indices, from integers, integral floats, booleans and text, one a sample."""

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise._arrays import as_array, as_numbers, as_tensor, dtype_name
from counterpoise._classes import numbering
from counterpoise._text import some

_TEXT = "OUST"
_NAMES_SHOWN = 8
_MOST = {"int8": 1 << 7, "uint8": 1 << 8, "int16": 1 << 15, "uint16": 1 << 16}
"""How many classes small types can number."""


def label_indices(
    labels: Any,
    leading: torch.Size,
    *,
    classes: int,
    names: Sequence[str] | None,
    counts: np.ndarray[Any, Any] | None = None,
    stated: bool = True,
) -> Tensor:
    """Labels as int64 `[n]`; never rounded, and never read in one of two possible ways.

    Args:
        labels: one for each of the leading axes' entries, `[...]` or `[..., 1]`.
        leading: axes of the predictions before the classes.
        classes: K.
        names: of the classes; text is looked up in them.
        counts: `[n]`, which entries count, or None where all do; the labels of others may be anything.
        stated: whether the names are in the order of the classes' numbers, as somebody said.
    """
    found = _whole_numbers(labels, classes, names, counts, stated=stated)
    if found.shape == (*leading, 1):
        found = found.squeeze(-1)
    if found.shape != leading:
        cure = ""
        if found.shape == (*leading, classes):
            cure = "; of one-hot labels pass labels.argmax(-1), of several labels a sample multilabel=True"
        elif found.ndim and found.shape == leading[: found.ndim]:
            cure = "; the last axis of predictions is that of the classes: drop an axis of length 1, average members"
        raise ValueError(
            f"labels must have shape {list(leading)}, one class index a sample, got {list(found.shape)}{cure}"
        )
    return found.reshape(-1)


def label_texts(labels: Any) -> set[str]:
    """The distinct texts that labels are; none if they are numbers."""
    if labels is None or isinstance(labels, Tensor):
        return set()
    try:
        found = as_array(labels, "labels")
    except ValueError:  # which is said where labels are looked up
        return set()
    return {label for label in found.flat if isinstance(label, str)} if found.dtype.kind in _TEXT else set()


def _whole_numbers(
    labels: Any, classes: int, names: Sequence[str] | None, counts: np.ndarray[Any, Any] | None, *, stated: bool
) -> Tensor:
    tensors = isinstance(labels, Tensor) or (
        isinstance(labels, list | tuple) and any(isinstance(each, Tensor) for each in labels)
    )
    if not tensors:
        labels = as_numbers(_without_others(as_array(labels, "labels"), counts))
        if labels.dtype.kind in _TEXT:
            return torch.from_numpy(_looked_up(labels, names))
    kind = str(getattr(labels, "dtype", "")).removeprefix("torch.")
    if _MOST.get(kind, classes) < classes:
        raise ValueError(f"labels are {kind}, which cannot number {classes} classes; keep them as int64")
    tensor = as_tensor(labels, "labels")
    if tensors and counts is not None:
        tensor = torch.from_numpy(_without_others(tensor.cpu().numpy(), counts)).to(tensor.device)
    if tensor.is_complex() or (tensor.dtype == torch.bool and classes != 2):
        raise ValueError(f"labels must be integer class indices, got {dtype_name(tensor)}")
    if tensor.is_floating_point():
        wrong = tensor != tensor.round()
        if bool(wrong.any()):
            row = wrong.nonzero()[0].tolist()
            value = tensor[tuple(row)].item()
            cure = "leave rows without a label out with valid=" if value != value else "they must be class indices"
            raise ValueError(f"labels row {row[0]} is {value}; {cure}")
    return _by_number(tensor.long(), names, stated=stated)


def _without_others(labels: np.ndarray[Any, Any], counts: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """What does not count as the first entry that does, so that it is one more of what is there anyway."""
    if counts is None or labels.size != counts.size or counts.all() or not counts.any():
        return labels
    flat = labels.reshape(-1)
    return np.where(counts, flat, flat[counts.argmax() : counts.argmax() + 1]).reshape(labels.shape)


def _looked_up(labels: np.ndarray[Any, Any], names: Sequence[Any] | None) -> np.ndarray[Any, Any]:
    """Indices of text in the names."""
    others = [place for place in np.ndindex(labels.shape) if not isinstance(labels[place], str)]
    if others:
        # Among numbers, what is none of them is at fault.
        row = next((place for place in others if not isinstance(labels[place], Real)), others[0])
        odd = labels[row]
        raise ValueError(
            f"labels must hold real numbers, or text with class_names=; {_at(row)} is {odd!r:.40}, of type "
            f"{type(odd).__name__}; leave rows without a label out with valid="
        )
    if names is None:
        raise ValueError(
            f"labels must hold real numbers, got text such as {str(labels.flat[0])!r:.40}; pass class_names=[...], the "
            "names of the classes in the order of the columns"
        )
    places = {str(name): index for index, name in enumerate(names)}
    if len(places) < len(names):
        twice = next(str(name) for index, name in enumerate(names) if places[str(name)] != index)
        raise ValueError(f"class_names has {twice!r} twice, so that a label {twice!r} could be of either")
    wrong = next((place for place in np.ndindex(labels.shape) if str(labels[place]) not in places), None)
    if wrong is not None:
        known = ", ".join(map(repr, list(places)[:_NAMES_SHOWN])) + (", ..." if len(places) > _NAMES_SHOWN else "")
        raise ValueError(
            f"labels {_at(wrong)} is {str(labels[wrong])!r:.40}, which is none of the classes {known}; pass "
            "class_names=[...] as labels spell them, in the order of the columns"
        )
    return np.array([places[str(label)] for label in labels.flat], np.int64).reshape(labels.shape)


def _by_number(labels: Tensor, names: Sequence[str] | None, *, stated: bool) -> Tensor:
    """Of classes that are named by numbers, a label may be the name or the place; where it could be either, ask."""
    if names is None or not labels.numel():
        return labels
    numbers = numbering(names)
    if numbers is None or len(set(numbers)) < len(numbers):
        if stated:
            return labels
        raise ValueError(
            f"labels are numbers, and nothing says which number each of the classes {some(names)} has; pass "
            "class_names=[...] in the order of the numbers, or the names as labels"
        )
    if numbers == tuple(range(len(numbers))):
        return labels
    found = set(np.unique(labels.cpu().numpy()).tolist())
    named, placed = found <= set(numbers), found <= set(range(len(numbers)))
    in_turn = stated or sorted(numbers) == list(range(min(numbers), min(numbers) + len(numbers)))
    if (named and placed) or not (named or in_turn):
        raise ValueError(
            f"labels such as {min(found)} may be places of classes, counted from 0, or their names "
            f"({', '.join(map(str, numbers[:_NAMES_SHOWN]))}); if names, pass them as text: [str(each) for each in "
            "labels]; if places, leave class_names= out and pass the predictions without column names"
        )
    if not named:
        return labels
    places = {number: index for index, number in enumerate(numbers)}
    return labels.cpu().clone().apply_(places.__getitem__)


def _at(place: tuple[int, ...]) -> str:
    return f"row {place[0]}" + "".join(f", column {each}" for each in place[1:])
