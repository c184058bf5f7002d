"""Logits and labels for calibrators, checked value by value.

Every refusal is a `ValueError` that names the first bad row and column; rows count through all leading axes.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from counterpoise._arrays import as_tensor, class_indices, dtype_name
from counterpoise._choices import SUM_TOLERANCE
from counterpoise.functional.reduction import upcast

_BLOCK_ELEMENTS = 1 << 18
"""Logits handled at a time: a few MB in float64, whatever the number of samples."""

_LEAST_LOGIT = -1e30
"""What is lower is a mask, such as the least float32, and no logit."""


@dataclass(frozen=True)
class LabelledLogits:
    """What calibrators are fitted to.

    Attributes:
        logits: `[n, K]`, float32 or float64; -inf marks an impossible class.
        labels: `[n]` int64; the logit of a label is finite, unless impossible labels were asked for.
    """

    logits: Tensor
    labels: Tensor

    @property
    def classes(self) -> int:
        return self.logits.shape[-1]


def labelled_logits(logits: Any, labels: Any, *, impossible_labels: bool = False) -> LabelledLogits:
    """The samples to fit to, from `[..., K]` logits and `[...]` labels.

    With `impossible_labels`, the logit of a label may be -inf: a guarantee holds for samples as they come, and those
    that the model ruled out come as well.
    """
    values = _logits(logits).detach()
    if values.ndim < 2:
        raise ValueError(f"logits must have shape [..., K], samples by classes, got {list(values.shape)}")
    if values.numel() == 0:
        raise ValueError(f"there are no samples to fit to: logits have shape {list(values.shape)}")
    if values.device.type == "mps":
        values = values.cpu()  # it has no float64, which fitting needs
    rows = upcast(values).reshape(-1, values.shape[-1])
    _refuse_bad_logits(rows)
    if len(rows) > 1 and bool(((rows >= 0).all(-1) & ((rows.sum(-1) - 1).abs() < SUM_TOLERANCE)).all()):
        warnings.warn(
            "every row of logits lies in [0, 1] and sums to 1, as probabilities do; if these are probabilities, fit to "
            "their logarithms",
            stacklevel=3,
        )
    classes = class_indices(labels, values.shape[:-1]).to(rows.device)
    _refuse_labels_outside(classes, rows.shape[-1])
    if not impossible_labels:
        _refuse_impossible_labels(classes, rows)
    return LabelledLogits(rows, classes)


def checked_logits(logits: Any, *, classes: int) -> Tensor:
    """`[..., K]` logits in float32 or float64, for a calibrator that was fitted to `classes` classes."""
    values = _logits(logits)
    if values.ndim < 1 or values.shape[-1] != classes:
        raise ValueError(
            f"logits must have shape [..., {classes}], as the calibrator was fitted to {classes} classes, "
            f"got {list(values.shape)}"
        )
    values = upcast(values)
    _refuse_bad_logits(values.detach().reshape(-1, classes))
    return values


def refuse_masked(logits: Tensor, name: str) -> None:
    """Refuse -inf, and what stands for it, where each class has a say in the score of every other."""
    rows = logits.detach().reshape(-1, logits.shape[-1])
    bad = rows.amin(-1) < _LEAST_LOGIT
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        column = int((rows[row] < _LEAST_LOGIT).nonzero()[0])
        raise ValueError(
            f"logits row {row}, column {column} is {float(rows[row, column]):.3g}; {name} mixes all classes and cannot "
            "leave one out: use TemperatureScaling or VectorScaling for masked classes"
        )


def row_blocks(samples: int, classes: int) -> Iterator[slice]:
    """Slices over the rows of an `[n, K]` table, a few MB each."""
    rows = max(1, _BLOCK_ELEMENTS // classes)
    return (slice(start, start + rows) for start in range(0, samples, rows))


def _logits(logits: Any) -> Tensor:
    values = as_tensor(logits, "logits")
    if not values.is_floating_point():
        raise ValueError(f"logits must be floating point, got {dtype_name(values)}")
    if values.ndim and values.shape[-1] < 2:
        raise ValueError(
            f"logits have K = {values.shape[-1]} classes, at least 2 are needed; "
            "a single logit z of a binary model becomes the two columns 0 and z"
        )
    return values


def _refuse_bad_logits(rows: Tensor) -> None:
    # The maximum of a row is finite unless the row holds NaN or +inf, or nothing but -inf.
    bad = ~torch.isfinite(rows.amax(-1))
    if not bool(bad.any()):
        return
    row = int(bad.nonzero()[0])
    wrong = torch.isnan(rows[row]) | (rows[row] == torch.inf)
    if not bool(wrong.any()):
        raise ValueError(
            f"logits row {row}, columns 0 to {rows.shape[-1] - 1} are all -inf; at least one class must be possible"
        )
    column = int(wrong.nonzero()[0])
    raise ValueError(
        f"logits row {row}, column {column} is {rows[row, column].item()}; logits must not be NaN or +inf: "
        "mend the model, or leave the row out"
    )


def _refuse_labels_outside(labels: Tensor, classes: int) -> None:
    outside = (labels < 0) | (labels >= classes)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"labels row {row}, column 0 is {int(labels[row])}, outside [0, {classes}); leave rows without a class out"
        )


def _refuse_impossible_labels(labels: Tensor, rows: Tensor) -> None:
    impossible = rows.gather(-1, labels.unsqueeze(-1)).squeeze(-1) == -torch.inf
    if bool(impossible.any()):
        row = int(impossible.nonzero()[0])
        raise ValueError(
            f"labels row {row}, column 0 is {int(labels[row])}, and logits row {row}, column {int(labels[row])} is "
            "-inf: the label has been ruled out, and nothing can be learned from it; leave the row out"
        )
