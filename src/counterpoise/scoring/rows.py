"""From rows of a file to checked predictions, and which of them count for what."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise._arrays import as_tensor
from counterpoise.functional.reduction import upcast
from counterpoise.metrics.inputs import PredictionBatch, prediction_table
from counterpoise.predictions import MISSING_LABEL, Predictions

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class RowKinds:
    """Which rows of a table are labelled and clean, labelled and corrupted, foreign, or none of these."""

    clean: Mask
    corrupted: Mask
    foreign: Mask

    @classmethod
    def of(cls, table: Predictions) -> "RowKinds":
        """Rows are in-distribution and clean unless the table says otherwise.

        A corruption may be named for clean samples too, if their severity is stated to be 0.
        """
        rows = len(table)
        inside = np.ones(rows, bool) if table.in_distribution is None else np.asarray(table.in_distribution)
        corrupted = np.zeros(rows, bool) if table.corruption is None else table.corruption.codes >= 0
        if table.severity is not None:
            corrupted = (corrupted & (table.severity != 0)) | (table.severity > 0)
        counted = inside & (table.labels != MISSING_LABEL)
        return cls(clean=counted & ~corrupted, corrupted=counted & corrupted, foreign=~inside)


def checked(table: Predictions, mask: Mask, *, labelled: bool, first_row: int) -> PredictionBatch:
    """The rows of the mask as checked predictions; the members of an ensemble are averaged as probabilities."""
    values, are_logits = as_tensor(table.values, table.kind), table.kind == "logits"
    valid = None if bool(mask.all()) else torch.from_numpy(mask)

    def rows_of(values: Tensor, labels: Tensor | None = None) -> PredictionBatch:
        return prediction_table(
            logits=values if are_logits else None,
            probabilities=None if are_logits else values,
            labels=labels,
            valid=valid,
            first_row=first_row,
        ).checked_rows()

    if values.ndim == 3:
        for member, of_member in enumerate(values.unbind(1)):
            try:
                rows_of(of_member)  # each by itself: what is wrong with two can cancel in their mean
            except ValueError as error:
                raise ValueError(f"member {member}: {error}") from None
        values = _mean_of_members(values, are_logits=are_logits)
    return rows_of(values, torch.from_numpy(np.require(table.labels, requirements=["W"])) if labelled else None)


def at_temperature(batch: PredictionBatch, temperature: float) -> PredictionBatch:
    """The predictions as temperature scaling makes them: the softmax of logits / T, or of log-probabilities / T."""
    if temperature == 1:
        return batch
    logits = batch.probabilities.log() if batch.logits is None else batch.logits
    return prediction_table(
        logits=logits / temperature, labels=batch.labels, in_distribution=batch.in_distribution
    ).checked_rows()


def _mean_of_members(values: Tensor, *, are_logits: bool) -> Tensor:
    """Mean probabilities `[n, K]` of `[n, M, K]`; from logits, as the logarithm of it."""
    if not are_logits:
        return upcast(values).mean(1)
    members = torch.tensor(float(values.shape[1]))
    return torch.logsumexp(torch.log_softmax(upcast(values), -1), 1) - members.log()
