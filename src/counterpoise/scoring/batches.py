"""From a batch of a file to its score state, and to what pairs its samples with those of other models."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise._arrays import as_tensor
from counterpoise.functional.confidence import LOGIT_SCORES, PROBABILITY_SCORES
from counterpoise.functional.reduction import upcast
from counterpoise.metrics.batch import ONLY_CONFIDENCE, Kind, PredictionBatch
from counterpoise.metrics.columns import Column, is_corrupted, label_column
from counterpoise.metrics.comparison import paired_values
from counterpoise.metrics.inputs import PredictionTable
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
_IDENTITY_SALT = 7

Mask = NDArray[np.bool_]


class Marks(NamedTuple):
    """What a comparison needs of single samples.

    Attributes:
        part: `CLEAN`, `CORRUPTED`, or `OOD_SET` and the name of the set.
        keys: `[n]`, equal for the same sample with the same label.
        values: `[n, len(PAIRED)]`, NaN where one is not known; nothing, `[n, 0]`, of OOD samples, and where samples are
            not independent.
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

    @cached_property
    def keys(self) -> Keys:
        """Of every row; where there are no ids, by its place."""
        keys = sample_keys(self.table.ids)
        return keys if self.file.has_ids else keys + np.uint64(self.shard << _SHARD_BITS)

    def pairing_keys(self, corrupted: Mask, *, told_apart: Collection[str]) -> Keys:
        """Equal for the same sample of another model: by its id, and by columns that both have.

        Clean samples may have a corruption of severity 0, or none: only of corrupted ones it tells what they are.
        """
        found, table = self.keys, self.table
        if not self.file.has_ids:
            return found
        if "domain" in told_apart:
            found = mixed(found ^ _names(table.domain, len(table)), salt=_IDENTITY_SALT)
        if "corruption" in told_apart:
            found = np.where(corrupted, mixed(found ^ _names(table.corruption, len(table)), salt=_IDENTITY_SALT), found)
        if "severity" in told_apart:
            stated = np.full(len(table), MISSING_SEVERITY) if table.severity is None else table.severity
            level = np.asarray(stated).astype(np.int64).view(np.uint64)
            found = np.where(corrupted, mixed(found ^ level, salt=_IDENTITY_SALT), found)
        return found

    def identities(self) -> Keys:
        """What tells a row from all others of its set: its id, and what was done to the sample."""
        found, table = self.keys, self.table
        for column in (table.data_set, table.domain, table.corruption):
            if column is not None:
                found = mixed(found ^ _names(column, len(table)), salt=_IDENTITY_SALT)
        for numbers in (table.severity, table.in_distribution):
            if numbers is not None:
                found = mixed(found ^ np.asarray(numbers).astype(np.int64).view(np.uint64), salt=_IDENTITY_SALT)
        return found


@dataclass(frozen=True)
class BatchScorer:
    """How the batches of one model are scored.

    Attributes:
        classes: K.
        options: what is computed.
        temperature: that logits are divided by first.
        unnamed_ood: name of OOD samples that have none.
        label_of: where class names tell, the other model's index `[K]` of each class.
        labels_known: whether every model's labels are known, and not only which of its predictions are right.
        told_apart: of domain, corruption and severity, what all models say of their samples.
    """

    classes: int
    options: ScoreOptions
    temperature: float
    unnamed_ood: str
    label_of: NDArray[np.int64] | None = None
    labels_known: bool = True
    told_apart: tuple[str, ...] = ()

    def score(self, batch: FileBatch) -> tuple[ScoreState, list[Marks]]:
        """The state of a batch, and marks where models are compared; changes nothing, so that threads can share it."""
        state, marks = ScoreState(classes=self.classes, options=self.options), list[Marks]()
        table, decisions = batch.table, batch.table.decisions
        keys, outside = np.repeat(batch.keys, decisions), np.repeat(_is_outside(batch), decisions)
        if table.multilabel and outside.any():
            raise PredictionFileError(
                f"{batch.file.path}: OOD detection is of samples, and these are several labels each; leave --ood out"
            )
        labelled = ~outside & (table.labels.reshape(-1) != MISSING_LABEL)
        state.unlabelled = int((~labelled & ~outside).sum())
        if batch.ood is None:
            state.describe("data_set", () if table.data_set is None else table.data_set.names)
            state.describe("split", splits_of(table, ~_is_outside(batch)))
        if labelled.any():
            checked = self._checked(batch, labelled, labelled=True)
            described = _columns(table)
            columns = {name: column.take(labelled) for name, column in described.items()}
            try:
                state.add(checked, keys[labelled], columns=columns)
            except ValueError as error:
                raise PredictionFileError(f"{batch.file.path}: {error}") from None
            if self.options.paired:
                corrupted = is_corrupted(described, len(labelled))
                pairing = np.repeat(batch.pairing_keys(corrupted[::decisions], told_apart=self.told_apart), decisions)
                own = self._sample_keys(checked, pairing[labelled], np.flatnonzero(labelled) % decisions)
                marks += self._marks(checked, own, corrupted[labelled])
        for name, rows in self._ood_sets(batch, outside):
            checked = self._checked(batch, rows, labelled=False)
            state.add_ood(name, checked, keys[rows])
            if self.options.paired:
                marks.append(Marks(OOD_SET + name, mixed(keys[rows], salt=_LABEL_SALT), np.zeros((len(checked), 0))))
        return state, marks

    def _checked(self, batch: FileBatch, rows: Mask, *, labelled: bool) -> PredictionBatch:
        try:
            found = checked_rows(batch.table, rows, labelled=labelled, first_row=batch.first_row)
            return at_temperature(found, self.temperature)
        except ValueError as error:
            raise PredictionFileError(f"{batch.file.path}: {error}") from None

    def _sample_keys(self, batch: PredictionBatch, keys: Keys, decision: NDArray[np.intp]) -> Keys:
        """Equal for the same sample, or decision of a sample, with the same label."""
        if not self.labels_known:
            return mixed(keys, salt=_LABEL_SALT)
        labels = batch.required_labels().cpu().numpy()
        if not self.options.clustered:
            shared = labels if self.label_of is None else self.label_of[labels]
        else:
            shared = 2 * (decision if self.label_of is None else self.label_of[decision]) + labels
        return mixed(keys ^ mixed(shared, salt=_LABEL_SALT), salt=_LABEL_SALT)

    def _marks(self, batch: PredictionBatch, keys: Keys, corrupted: Mask) -> Iterator[Marks]:
        values = np.zeros((len(keys), 0)) if self.options.clustered else paired_values(batch).cpu().numpy()
        for part, rows in ((CLEAN, ~corrupted), (CORRUPTED, corrupted)):
            if rows.any():
                yield Marks(part, keys[rows], values[rows])

    def _ood_sets(self, batch: FileBatch, outside: Mask) -> Iterator[tuple[str, Mask]]:
        if not outside.any():
            return
        unnamed, column = batch.ood or self.unnamed_ood, batch.table.data_set
        if column is None:
            yield unnamed, outside
            return
        for code in np.unique(column.codes[outside]).tolist():
            yield column.names[code] if code >= 0 else unnamed, outside & (column.codes == code)


def _names(column: Category | None, rows: int) -> Keys:
    """Of each row, a digest of what a column says of it."""
    names = sample_keys(np.array([*([] if column is None else column.names), ""], dtype=object))
    return names[np.full(rows, -1) if column is None else column.codes]


def splits_of(table: Predictions, rows: Mask) -> set[str]:
    """The splits that the rows of the mask belong to; "" where none is named."""
    column = table.split
    codes = [-1] if column is None else np.unique(column.codes[rows]).tolist()
    return {"" if code < 0 or column is None else column.names[code] for code in codes if rows.any()}


def require_score(file: PredictionFile, score: str) -> None:
    """Refuse a score of logits where there are none: those of a mean of probabilities are fixed but for a constant."""
    if file.kind == "confidence" and score != "max_softmax":
        raise PredictionFileError(f"{file.path}: --score {score}: {ONLY_CONFIDENCE}; use max_softmax")
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
    kind: Kind = "probabilities" if table.kind == "multilabel" else table.kind
    values, decisions = as_tensor(table.values, kind), table.decisions
    whole = PredictionTable(
        values=values.reshape(-1, 1) if table.multilabel else values,
        kind=kind,
        labels=torch.from_numpy(np.require(table.labels.reshape(-1), np.int64, ["W"])) if labelled else None,
        valid=None if bool(rows.all()) else torch.from_numpy(rows),
        in_distribution=None,
        first_row=first_row * decisions,
        decisions=decisions,
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
    return whole.with_values(_mean_of_members(values, are_logits=kind == "logits")).checked_rows()


def at_temperature(batch: PredictionBatch, temperature: float) -> PredictionBatch:
    """The predictions as temperature scaling makes them: the softmax of logits / T, or of log-probabilities / T."""
    if temperature == 1:
        return batch
    if batch.probabilities.shape[-1] == 1:
        raise ValueError(f"a temperature of {temperature:g}: {ONLY_CONFIDENCE}")
    scaled = PredictionTable(
        values=batch.as_logits() / temperature,
        kind="logits",
        labels=batch.labels,
        valid=None,
        in_distribution=batch.in_distribution,
    )
    found = scaled.checked_rows()
    return replace(found, renormalised=batch.renormalised, seem=batch.seem)


def _is_outside(batch: FileBatch) -> Mask:
    if batch.ood is not None:
        return np.ones(len(batch.table), bool)
    inside = batch.table.in_distribution
    return np.zeros(len(batch.table), bool) if inside is None else ~np.asarray(inside)


def _columns(table: Predictions) -> dict[str, Column]:
    """The columns that samples are grouped by."""
    found = {
        name: Column(category.codes, category.names)
        for name, category in (("domain", table.domain), ("corruption", table.corruption), *table.groups.items())
        if category is not None
    }
    if table.severity is not None:
        values, codes = np.unique(table.severity, return_inverse=True)
        codes = np.where(table.severity == MISSING_SEVERITY, -1, codes.reshape(-1))
        found["severity"] = Column(codes, values.tolist())
    if table.multilabel:
        labels = table.decisions
        found = {name: Column(np.repeat(each.codes, labels), each.values) for name, each in found.items()}
        found |= label_column(np.tile(np.arange(labels), len(table)), labels, table.header.class_names)
    return found


def _mean_of_members(values: Tensor, *, are_logits: bool) -> Tensor:
    """Mean probabilities `[n, K]` of `[n, M, K]`; from logits, as the logarithm of it."""
    if not are_logits:
        return upcast(values).mean(1)
    members = torch.tensor(float(values.shape[1]))
    return torch.logsumexp(torch.log_softmax(upcast(values), -1), 1) - members.log()
