"""Predictions and labels from tensors, arrays, tables or lists, checked value by value.

Losses trust their input; metrics do not. Every refusal is a `ValueError` that names the first bad row and column.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from counterpoise._arrays import as_tensor, column_names, dtype_name
from counterpoise._blocks import rows_at_a_time
from counterpoise.functional.reduction import upcast
from counterpoise.metrics.batch import Kind, PredictionBatch, from_logits, from_probabilities, place_of, refuse_outside
from counterpoise.metrics.labels import label_indices, label_texts
from counterpoise.metrics.outputs import in_class_order, require_same_rows


@dataclass(frozen=True)
class PredictionTable:
    """Predictions of n samples whose shapes, dtypes and labels are right and whose values have not been looked at.

    Attributes:
        values: `[n, K]`; `[n, 1]` where K = 2 and they are of the class 1, and of a confidence.
        kind: what the values are.
        labels: `[n]` int64, in [0, K) where the row counts, or None.
        valid: `[n]` boolean, or None where all rows count.
        in_distribution: `[n]` boolean, or None.
        first_row: number of the first row wherever errors name rows.
        decisions: how many rows one row of the input became: of a multilabel problem, one for each label.
        class_names: of the classes, or of the labels of a multilabel problem, where they are known.
    """

    values: Tensor
    kind: Kind
    labels: Tensor | None
    valid: Tensor | None
    in_distribution: Tensor | None
    first_row: int = 0
    decisions: int = 1
    class_names: tuple[str, ...] | None = None

    @property
    def classes(self) -> int:
        """K; 1 where only a confidence is known."""
        return 1 if self.kind == "confidence" else max(2, self.values.shape[-1])

    def checked_rows(self, start: int = 0, stop: int | None = None) -> PredictionBatch:
        """The rows from `start` to `stop`, by default all, that count, their values checked."""
        counted = self.kept(start, stop)
        rows = self.first_row + counted
        kept = slice(start, stop) if self.valid is None else counted  # a view, not a copy, where all count
        values = self.values[kept].contiguous()  # the sum of a row may depend on its layout in memory
        labels, inside = (None if column is None else column[kept] for column in (self.labels, self.in_distribution))
        if self.kind == "confidence":
            refuse_outside(values, rows, 1, "confidence")
            return PredictionBatch(upcast(values), labels, None, None, inside)
        if values.shape[-1] == 1:
            values = self._two_columns(values, rows)
        convert = from_logits if self.kind == "logits" else from_probabilities
        return convert(values, labels, inside, rows)

    def _two_columns(self, values: Tensor, rows: Tensor) -> Tensor:
        """Logits 0 and z, or probabilities 1 - p and p, of what is given of the class 1 alone."""
        refuse_outside(values, rows, self.decisions, self.kind)
        other = torch.zeros_like(values) if self.kind == "logits" else 1 - upcast(values)
        return torch.cat([other, values.to(other.dtype)], -1)

    def kept(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Numbers of the rows from `start` to `stop` that count."""
        rows = torch.arange(len(self.values), device=self.values.device)[start:stop]
        return rows if self.valid is None else rows[self.valid[start:stop]]

    def with_values(self, values: Tensor) -> "PredictionTable":
        return replace(self, values=values)

    def batches(self) -> Iterator[tuple[PredictionBatch, Tensor]]:
        """All rows that count, checked, and their numbers; so few at a time that they take little memory."""
        step = rows_at_a_time(self.classes * self.values.element_size())
        for start in range(0, len(self.values), step):
            yield self.checked_rows(start, start + step), self.kept(start, start + step)


def prediction_table(
    *,
    logits: Any = None,
    probabilities: Any = None,
    confidence: Any = None,
    labels: Any = None,
    correct: Any = None,
    multilabel: bool = False,
    valid: Any = None,
    in_distribution: Any = None,
    class_names: Sequence[Any] | None = None,
    first_row: int = 0,
) -> PredictionTable:
    """A table of `[..., K]` logits or probabilities with their `[...]` columns; leading axes are flattened.

    Args:
        logits: any real numbers but NaN and +inf; -inf marks an impossible class. `[...]` or `[..., 1]` are those of
            the class 1 of two.
        probabilities: at least 0, each row summing to 1 up to `SUM_TOLERANCE`; `[...]` or `[..., 1]` as above.
        confidence: `[...]` in [0, 1], of the predicted class, where no more is known.
        labels: class indices in [0, K), or text where the classes have names.
        correct: boolean, beside `confidence`: whether the prediction is right.
        multilabel: logits or probabilities are `[n, L]`, one for each label that may apply, and labels `[n, L]` 0 or 1.
        valid: boolean; rows where it is False are left out, unchecked.
        in_distribution: boolean; False for OOD samples.
        class_names: of the classes; by default the names of a table's columns.
        first_row: number of the first row wherever errors name rows.
    """
    given: dict[Kind, Any] = {"logits": logits, "probabilities": probabilities, "confidence": confidence}
    kinds = [kind for kind, value in given.items() if value is not None]
    if len(kinds) != 1:
        raise ValueError(
            "give either logits or probabilities (or the confidence of the predicted class alone), and not both: they "
            "are never told apart by their values"
        )
    kind = kinds[0]
    values = as_tensor(given[kind], kind).detach()
    if not values.is_floating_point():
        raise ValueError(f"{kind} must be floating point, got {dtype_name(values)}; predicted classes are not enough")
    if values.ndim == 0 or (0 in values.shape[-1:] and values.ndim > 1):
        raise ValueError(
            f"{kind} must have shape [..., K], samples by classes, or [n] of the class 1 of two, got "
            f"{list(values.shape)}: K = {values.shape[-1] if values.ndim else 0} classes"
        )
    if values.numel() == 0:
        raise ValueError(f"{kind} are empty: shape {list(values.shape)}")
    if values.device.type == "mps":
        values = values.cpu()  # it has no float64, which the sums of metrics need
    require_same_rows(
        given[kind], {"labels": labels, "correct": correct, "valid": valid, "in_distribution": in_distribution}
    )
    names = None if class_names is None else tuple(map(str, class_names))
    if multilabel:
        names = names or _names_of_labels(given[kind], labels)
        _check_multilabel(kind, values)
        values, valid = values.unsqueeze(-1), _of_decisions(valid, values.shape)
    elif values.ndim == 1:
        values = values.unsqueeze(-1)
    if kind != "confidence" and not multilabel:
        values, names = in_class_order(values, given[kind], class_names=class_names, texts=label_texts(labels))
    if kind == "confidence":
        if values.shape[-1] > 1 or labels is not None:
            raise ValueError(
                f"confidence is one number a sample, of the predicted class, with correct= beside it; got "
                f"{list(values.shape)}{' and labels=' if labels is not None else ''}; pass what is known of all "
                "classes as probabilities="
            )
        labels = None if correct is None else 1 - _mask(correct, values.shape[:-1], "correct", whole=True).long()
    elif correct is not None:
        raise ValueError(f"correct= belongs to confidence=; pass the labels of {kind} as labels=")
    leading, device, classes = values.shape[:-1], values.device, max(2, values.shape[-1])
    table = PredictionTable(
        values=values.reshape(-1, values.shape[-1]),
        kind=kind,
        labels=None,
        valid=None if valid is None else _mask(valid, leading, "valid").to(device),
        in_distribution=None
        if in_distribution is None
        else _mask(in_distribution, leading, "in_distribution").to(device),
        first_row=first_row,
        decisions=values.shape[-2] if multilabel else 1,
        class_names=names,
    )
    expected = table.decisions if multilabel else table.classes
    if kind != "confidence" and table.class_names is not None and len(table.class_names) != expected:
        raise ValueError(f"there are {len(table.class_names)} class_names for {expected} classes")
    if labels is None:
        return table
    if kind == "confidence":
        return replace(table, labels=labels.reshape(-1).to(device))
    counts = None if table.valid is None else table.valid.cpu().numpy()
    indices = label_indices(
        labels,
        leading,
        classes=classes,
        names=None if multilabel else names,
        counts=counts,
        stated=class_names is not None,
    ).to(device)
    counted = table.kept()
    of_counted = indices if table.valid is None else indices[counted]
    _check_labels(of_counted, classes, table.first_row + counted, table.decisions)
    return replace(table, labels=indices)


def _names_of_labels(predictions: Any, labels: Any) -> tuple[str, ...] | None:
    """The names of the columns of several labels, in which predictions and labels must agree."""
    own, others = (
        None if names is None else tuple(map(str, names)) for names in map(column_names, (predictions, labels))
    )
    if own is not None and others is not None and own != others and {*own} == {*others}:
        raise ValueError(
            "labels have the columns of the predictions in another order; pass labels[predictions.columns]"
        )
    return own


def _check_multilabel(kind: Kind, values: Tensor) -> None:
    if kind == "confidence":
        raise ValueError("multilabel=True needs the probabilities of all labels; pass probabilities=")
    if values.ndim != 2:
        raise ValueError(
            f"multilabel=True takes {kind} [n, L], one column a label, got {list(values.shape)}; from a list of [n, 2] "
            "for each label, as predict_proba gives, make np.stack([each[:, 1] for each in probabilities], 1)"
        )


def _of_decisions(valid: Any, shape: torch.Size) -> Any:
    """A mask of samples `[n]` as one of decisions `[n, L]`."""
    if valid is None:
        return None
    mask = as_tensor(valid, "valid")
    return mask.unsqueeze(-1).expand(shape) if mask.shape == shape[:1] else mask


def _mask(mask: Any, leading: torch.Size, name: str, *, whole: bool = False) -> Tensor:
    """A boolean `[n]`; of the numbers 0 and 1 too, where these are `whole` answers."""
    tensor = as_tensor(mask, name)
    if whole and tensor.dtype != torch.bool and bool(((tensor == 0) | (tensor == 1)).all()):
        tensor = tensor.bool()
    if tensor.dtype != torch.bool:
        raise ValueError(f"{name} must be boolean, got {dtype_name(tensor)}")
    if whole and tensor.shape == (*leading, 1):
        tensor = tensor.squeeze(-1)
    if tensor.shape != leading:
        raise ValueError(f"{name} must have shape {list(leading)}, got {list(tensor.shape)}")
    return tensor.reshape(-1)


def _check_labels(labels: Tensor, classes: int, rows: Tensor, decisions: int) -> None:
    bad = (labels < 0) | (labels >= classes)
    if not bool(bad.any()):
        return
    first, found = int(bad.nonzero()[0]), (int(labels.min()), int(labels.max()))
    cure = "leave rows without a class out with valid="
    if found == (1, classes):
        cure = f"they seem to count from 1: pass labels - 1, or {cure}"
    elif classes == 2 and found == (-1, 1) and not bool((labels == 0).any()):
        cure = f"if they are -1 and 1, pass (labels + 1) // 2; {cure}"
    elif classes == 2 and found[1] > 1:
        cure = f"two classes have the labels 0 and 1; {cure}"
    at = place_of(int(rows[first]), decisions) + (", column 0" if decisions == 1 else "")
    raise ValueError(f"labels {at} is {int(labels[first])}, outside [0, {classes}); {cure}")
