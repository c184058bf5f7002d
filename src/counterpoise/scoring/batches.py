"""From a batch of a file to its score state, and to what pairs its samples with those of other models."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise._arrays import as_tensor
from counterpoise.functional.confidence import LOGIT_SCORES, PROBABILITY_SCORES
from counterpoise.functional.reduction import upcast
from counterpoise.metrics.columns import Column, is_corrupted
from counterpoise.metrics.comparison import paired_values
from counterpoise.metrics.inputs import PredictionBatch, PredictionTable
from counterpoise.metrics.keys import Keys, mixed, sample_keys
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.state import ScoreState
from counterpoise.predictions import (
    MISSING_LABEL,
    MISSING_SEVERITY,
    Category,
    PredictionFile,
    PredictionFileError,
    Predictions,
)

CLEAN, CORRUPTED, OOD_SET = "clean", "corrupted", "ood:"
_SHARD_BITS = 40
_LABEL_SALT = 2

Mask = NDArray[np.bool_]


class Marks(NamedTuple):
    """What a comparison needs of single samples.

    Attributes:
        part: `CLEAN`, `CORRUPTED`, or `OOD_SET` and the name of the set.
        keys: `[n]`, equal for the same sample with the same label.
        values: `[n, len(PAIRED)]`; of OOD samples nothing, `[n, 0]`.
    """

    part: str
    keys: Keys
    values: NDArray[np.float64]


@dataclass(frozen=True)
class FileBatch:
    """Some rows of a file.

    Attributes:
        file: that they were read from.
        table: the rows.
        first_row: number of the first one in the file.
        shard: place of the file in its set.
        ood: where all of them are OOD, the name of the set unless its rows name it.
    """

    file: PredictionFile
    table: Predictions
    first_row: int
    shard: int
    ood: str | None

    def keys(self) -> Keys:
        """Of every row; where there are no ids, by its place."""
        keys = sample_keys(self.table.ids)
        return keys if self.file.has_ids else keys + np.uint64(self.shard << _SHARD_BITS)


@dataclass(frozen=True)
class BatchScorer:
    """How the batches of one model are scored.

    Attributes:
        classes: K.
        options: what is computed.
        temperature: that logits are divided by first.
        unnamed_ood: name of OOD samples that have none.
        label_of: where class names tell, the other model's index `[K]` of each class.
    """

    classes: int
    options: ScoreOptions
    temperature: float
    unnamed_ood: str
    label_of: NDArray[np.int64] | None = None

    def score(self, batch: FileBatch) -> tuple[ScoreState, list[Marks]]:
        """The state of a batch, and marks where models are compared; changes nothing, so that threads can share it."""
        state, marks = ScoreState(classes=self.classes, options=self.options), list[Marks]()
        table, keys = batch.table, batch.keys()
        outside = _is_outside(batch)
        labelled = ~outside & (table.labels != MISSING_LABEL)
        state.unlabelled = int((~labelled & ~outside).sum())
        if batch.ood is None:
            for name in ("data_set", "split"):
                column: Category | None = getattr(table, name)
                state.describe(name, () if column is None else column.names)
        if labelled.any():
            checked = self._checked(batch, labelled, labelled=True)
            columns = {name: column.take(labelled) for name, column in _columns(table).items()}
            state.add(checked, keys[labelled], columns=columns)
            if self.options.paired:
                marks += self._marks(checked, keys[labelled], is_corrupted(columns, len(checked)))
        for name, rows in self._ood_sets(batch, outside):
            checked = self._checked(batch, rows, labelled=False)
            state.add_ood(name, checked, keys[rows])
            if self.options.paired:
                marks.append(Marks(OOD_SET + name, mixed(keys[rows], salt=_LABEL_SALT), np.zeros((len(checked), 0))))
        return state, marks

    def _checked(self, batch: FileBatch, rows: Mask, *, labelled: bool) -> PredictionBatch:
        try:
            found = checked_rows(batch.table, rows, labelled=labelled, first_row=batch.first_row)
        except ValueError as error:
            raise PredictionFileError(f"{batch.file.path}: {error}") from None
        return at_temperature(found, self.temperature)

    def _marks(self, batch: PredictionBatch, keys: Keys, corrupted: Mask) -> Iterator[Marks]:
        labels = batch.required_labels().cpu().numpy()
        shared = labels if self.label_of is None else self.label_of[labels]
        own = mixed(keys ^ mixed(shared, salt=_LABEL_SALT), salt=_LABEL_SALT)
        values = np.stack([column.cpu().numpy() for column in paired_values(batch)], -1)
        for part, rows in ((CLEAN, ~corrupted), (CORRUPTED, corrupted)):
            if rows.any():
                yield Marks(part, own[rows], values[rows])

    def _ood_sets(self, batch: FileBatch, outside: Mask) -> Iterator[tuple[str, Mask]]:
        if not outside.any():
            return
        unnamed, column = batch.ood or self.unnamed_ood, batch.table.data_set
        if column is None:
            yield unnamed, outside
            return
        for code in np.unique(column.codes[outside]).tolist():
            yield column.names[code] if code >= 0 else unnamed, outside & (column.codes == code)


def require_score(file: PredictionFile, score: str) -> None:
    """Refuse a score of logits where there are none: those of a mean of probabilities are fixed but for a constant."""
    if score in PROBABILITY_SCORES or score not in LOGIT_SCORES:
        return
    if file.members is not None:
        raise PredictionFileError(
            f"{file.path}: {score} needs the logits of one network, and this is an ensemble of {file.members}, whose "
            f"probabilities are averaged; choose from {', '.join(PROBABILITY_SCORES)}"
        )
    if file.kind != "logits":
        raise PredictionFileError(f"{file.path}: {score} needs logits: probabilities do not determine it")


def clean_rows(table: Predictions) -> Mask:
    """Which rows are labelled, in-distribution and not corrupted."""
    inside = np.ones(len(table), bool) if table.in_distribution is None else np.asarray(table.in_distribution)
    found: Mask = inside & (table.labels != MISSING_LABEL) & ~is_corrupted(_columns(table), len(table))
    return found


def checked_rows(table: Predictions, rows: Mask, *, labelled: bool, first_row: int) -> PredictionBatch:
    """The rows of the mask, checked value by value; the members of an ensemble are averaged as probabilities."""
    values, are_logits = as_tensor(table.values, table.kind), table.kind == "logits"
    whole = PredictionTable(
        values=values,
        are_logits=are_logits,
        labels=torch.from_numpy(np.require(table.labels, requirements=["W"])) if labelled else None,
        valid=None if bool(rows.all()) else torch.from_numpy(rows),
        in_distribution=None,
        first_row=first_row,
    )
    if values.ndim == 2:
        return whole.checked_rows()
    for member, of_member in enumerate(values.unbind(1)):
        try:
            whole.with_values(
                of_member
            ).checked_rows()  # each by itself: what is wrong with two can cancel in their mean
        except ValueError as error:
            raise ValueError(f"member {member}: {error}") from None
    return whole.with_values(_mean_of_members(values, are_logits=are_logits)).checked_rows()


def at_temperature(batch: PredictionBatch, temperature: float) -> PredictionBatch:
    """The predictions as temperature scaling makes them: the softmax of logits / T, or of log-probabilities / T."""
    if temperature == 1:
        return batch
    scaled = PredictionTable(
        values=batch.as_logits() / temperature,
        are_logits=True,
        labels=batch.labels,
        valid=None,
        in_distribution=batch.in_distribution,
    )
    return scaled.checked_rows()


def _is_outside(batch: FileBatch) -> Mask:
    if batch.ood is not None:
        return np.ones(len(batch.table), bool)
    inside = batch.table.in_distribution
    return np.zeros(len(batch.table), bool) if inside is None else ~np.asarray(inside)


def _columns(table: Predictions) -> dict[str, Column]:
    """The columns that samples are grouped by."""
    found = {
        name: Column(category.codes, category.names)
        for name, category in (("domain", table.domain), ("corruption", table.corruption))
        if category is not None
    }
    if table.severity is not None:
        values, codes = np.unique(table.severity, return_inverse=True)
        codes = np.where(table.severity == MISSING_SEVERITY, -1, codes.reshape(-1))
        found["severity"] = Column(codes, values.tolist())
    return found


def _mean_of_members(values: Tensor, *, are_logits: bool) -> Tensor:
    """Mean probabilities `[n, K]` of `[n, M, K]`; from logits, as the logarithm of it."""
    if not are_logits:
        return upcast(values).mean(1)
    members = torch.tensor(float(values.shape[1]))
    return torch.logsumexp(torch.log_softmax(upcast(values), -1), 1) - members.log()
