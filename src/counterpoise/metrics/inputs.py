"""Predictions and labels from tensors, arrays or lists, checked value by value.

Losses trust their input; metrics do not. Every refusal is a `ValueError` that names the first bad row and column.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from counterpoise._arrays import as_tensor, class_indices, dtype_name
from counterpoise._blocks import rows_at_a_time
from counterpoise.functional.confidence import UNIT_INTERVAL_SCORES, confidence_score
from counterpoise.functional.reduction import upcast

SUM_TOLERANCE = {torch.bfloat16: 1e-2}
"""How far a row of probabilities may be from 1, by dtype: bfloat16 keeps 8 bits of each."""

DEFAULT_SUM_TOLERANCE = 1e-3

_BINARY = "a single probability p of a binary model becomes the two columns 1 - p and p"


@dataclass(frozen=True)
class PredictionBatch:
    """Checked predictions of n samples.

    Attributes:
        probabilities: `[n, K]`, float32 or float64.
        labels: `[n]` int64, or None.
        logits: `[n, K]`, or None where only probabilities are known.
        log_label: log-probability of the label `[n]`, or None without labels.
        in_distribution: `[n]` boolean, or None.
    """

    probabilities: Tensor
    labels: Tensor | None
    logits: Tensor | None
    log_label: Tensor | None
    in_distribution: Tensor | None

    def __len__(self) -> int:
        return len(self.probabilities)

    def take(self, rows: Tensor) -> "PredictionBatch":
        """The samples of those row numbers, or where that mask is True."""
        columns = (self.probabilities, self.labels, self.logits, self.log_label, self.in_distribution)
        return PredictionBatch(*(None if column is None else column[rows] for column in columns))  # type: ignore[arg-type]

    @cached_property
    def _largest(self) -> tuple[Tensor, Tensor]:
        """The largest probability of each row and its class: several metrics of one batch need them.

        Rounding can make it larger than 1, which would rank a sample above those that are as sure.
        """
        confidence, prediction = self.probabilities.max(-1)
        return confidence.clamp(max=1), prediction

    def top(self) -> tuple[Tensor, Tensor]:
        """Confidence `[n]` in [0, 1] and correctness `[n]` of the predicted class."""
        confidence, prediction = self._largest
        return confidence, prediction == self.required_labels()

    def score(self, name: str) -> Tensor:
        """Confidence score `[n]` of that name (see `counterpoise.functional.confidence`)."""
        if name == "max_softmax":
            return self._largest[0]
        if self.logits is None or name in UNIT_INTERVAL_SCORES:
            return confidence_score(name, probabilities=self.probabilities)
        return confidence_score(name, logits=self.logits)

    def as_logits(self) -> Tensor:
        """The logits, or log-probabilities where only probabilities are known."""
        return self.probabilities.log() if self.logits is None else self.logits

    def required_labels(self) -> Tensor:
        """The labels, where a metric cannot do without."""
        if self.labels is None:
            raise ValueError("this metric needs labels; pass labels=")
        return self.labels


@dataclass(frozen=True)
class PredictionTable:
    """Predictions of n samples whose shapes and dtypes are right and whose values have not been looked at.

    Attributes:
        values: `[n, K]` logits or probabilities.
        are_logits: which of the two.
        labels: `[n]` int64, or None.
        valid: `[n]` boolean, or None where all rows count.
        in_distribution: `[n]` boolean, or None.
        first_row: number of the first row wherever errors name rows.
    """

    values: Tensor
    are_logits: bool
    labels: Tensor | None
    valid: Tensor | None
    in_distribution: Tensor | None
    first_row: int = 0

    def checked_rows(self, start: int = 0, stop: int | None = None) -> PredictionBatch:
        """The rows from `start` to `stop`, by default all, that count, their values checked."""
        values = self.values[start:stop]
        rows = self.first_row + torch.arange(start, start + len(values), device=values.device)
        labels, inside = (
            None if column is None else column[start:stop] for column in (self.labels, self.in_distribution)
        )
        if self.valid is not None:
            kept = self.valid[start:stop]
            values, rows = values[kept], rows[kept]
            labels, inside = (None if column is None else column[kept] for column in (labels, inside))
        if labels is not None:
            _check_labels(labels, values.shape[-1], rows)
        convert = _from_logits if self.are_logits else _from_probabilities
        return convert(values, labels, inside, rows)

    def with_values(self, values: Tensor) -> "PredictionTable":
        """The same samples with other predictions."""
        return replace(self, values=values)

    def batches(self) -> Iterator[PredictionBatch]:
        """All rows that count, checked; so few at a time that memory beside the predictions does not grow with them."""
        step = rows_at_a_time(self.values.shape[-1] * self.values.element_size())
        for start in range(0, len(self.values), step):
            yield self.checked_rows(start, start + step)


def prediction_table(
    *,
    logits: Any = None,
    probabilities: Any = None,
    labels: Any = None,
    valid: Any = None,
    in_distribution: Any = None,
    first_row: int = 0,
) -> PredictionTable:
    """A table of `[..., K]` logits or probabilities with their `[...]` columns; leading axes are flattened.

    Args:
        logits: any real numbers but NaN and +inf; -inf marks an impossible class.
        probabilities: at least 0, each row summing to 1.
        labels: integers in [0, K).
        valid: boolean; rows where it is False are left out, unchecked.
        in_distribution: boolean; False for OOD samples.
        first_row: number of the first row wherever errors name rows.
    """
    if (logits is None) == (probabilities is None):
        raise ValueError("give either logits or probabilities, and not both: they are never told apart by their values")
    name = "probabilities" if logits is None else "logits"
    values = as_tensor(probabilities if logits is None else logits, name).detach()
    if not values.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {dtype_name(values)}")
    if values.ndim < 2:
        raise ValueError(f"{name} must have shape [..., K], samples by classes, got {list(values.shape)}; {_BINARY}")
    if values.shape[-1] < 2:
        raise ValueError(f"{name} have K = {values.shape[-1]} classes, at least 2 are needed; {_BINARY}")
    if values.numel() == 0:
        raise ValueError(f"{name} are empty: shape {list(values.shape)}")
    if values.device.type == "mps":
        values = values.cpu()  # it has no float64, which the sums of metrics need
    leading, device = values.shape[:-1], values.device
    return PredictionTable(
        values=values.reshape(-1, values.shape[-1]),
        are_logits=logits is not None,
        labels=None if labels is None else class_indices(labels, leading).to(device),
        valid=None if valid is None else _mask(valid, leading, "valid").to(device),
        in_distribution=None
        if in_distribution is None
        else _mask(in_distribution, leading, "in_distribution").to(device),
        first_row=first_row,
    )


def _from_logits(logits: Tensor, labels: Tensor | None, inside: Tensor | None, rows: Tensor) -> PredictionBatch:
    logits = upcast(logits)
    largest = logits.amax(-1)
    # The maximum of a row is finite unless the row holds NaN or +inf, or nothing but -inf.
    _refuse(~torch.isfinite(largest), logits, rows, _describe_bad_logits)
    probabilities = torch.softmax(logits, -1)
    log_label = None
    if labels is not None:
        # log p_y = z_y - z_max + log p_max: as exact as a log-softmax, of one column instead of K.
        of_label = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        log_label = of_label - largest + probabilities.amax(-1).log()
    return PredictionBatch(probabilities, labels, logits, log_label, inside)


def _from_probabilities(values: Tensor, labels: Tensor | None, inside: Tensor | None, rows: Tensor) -> PredictionBatch:
    tolerance = SUM_TOLERANCE.get(values.dtype, DEFAULT_SUM_TOLERANCE)
    values = upcast(values)
    in_range = (values.amin(-1) >= 0) & ((values.sum(-1) - 1).abs() <= tolerance)
    _refuse(~in_range, values, rows, _describe_bad_probabilities)
    log_label = None if labels is None else values.gather(-1, labels.unsqueeze(-1)).squeeze(-1).log()
    return PredictionBatch(values, labels, None, log_label, inside)


def _refuse(bad: Tensor, values: Tensor, rows: Tensor, describe: Any) -> None:
    if not bool(bad.any()):
        return
    first = int(bad.nonzero()[0])
    raise ValueError(describe(int(rows[first]), values[first].double().cpu()))


def _describe_bad_logits(row: int, values: Tensor) -> str:
    wrong = torch.isnan(values) | (values == torch.inf)
    if bool(wrong.any()):
        column = int(wrong.nonzero()[0])
        return f"logits row {row}, column {column} is {values[column].item()}; logits must not be NaN or +inf"
    return f"logits row {row}, columns 0 to {len(values) - 1} are all -inf; at least one class must be possible"


def _describe_bad_probabilities(row: int, values: Tensor) -> str:
    wrong = ~torch.isfinite(values) | (values < 0)
    if bool(wrong.any()):
        column = int(wrong.nonzero()[0])
        return (
            f"probabilities row {row}, column {column} is {values[column].item()}; "
            "probabilities are numbers of at least 0 (if these are logits, pass logits=)"
        )
    column = int(values.argmax())
    return (
        f"probabilities row {row} sums to {values.sum().item():.6g}, not 1 (its largest is {values[column].item():.6g} "
        f"in column {column}); normalise them, or pass logits= if these are logits"
    )


def _mask(mask: Any, leading: torch.Size, name: str) -> Tensor:
    tensor = as_tensor(mask, name)
    if tensor.dtype != torch.bool:
        raise ValueError(f"{name} must be boolean, got {dtype_name(tensor)}")
    if tensor.shape != leading:
        raise ValueError(f"{name} must have shape {list(leading)}, got {list(tensor.shape)}")
    return tensor.reshape(-1)


def _check_labels(labels: Tensor, classes: int, rows: Tensor) -> None:
    bad = (labels < 0) | (labels >= classes)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"labels row {int(rows[first])}, column 0 is {int(labels[first])}, outside [0, {classes}); "
            "leave rows without a class out with valid="
        )
