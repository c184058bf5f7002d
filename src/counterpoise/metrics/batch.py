"""Checked predictions of some samples: probabilities from whatever was given, value by value.

Every rejection is a `ValueError` that names the first bad row and column.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import torch
from torch import Tensor

from counterpoise._choices import LOGARITHM_FACTORS, SUM_TOLERANCE
from counterpoise.functional.confidence import UNIT_INTERVAL_SCORES, confidence_score
from counterpoise.functional.reduction import upcast

Kind = Literal["logits", "probabilities", "confidence"]

PROBABILITIES: Final = "probabilities"
_EXACT = {torch.bfloat16: 2.0**-7}
_EXACT_BY_DEFAULT = 2.0**-10
"""Up to here, by dtype, a sum differs from 1 by the arithmetic that made it; beyond, the row is renormalised. No sum of
up to five decimals is that far from 1, so a last bit never decides whether rounded rows are renormalised."""

_MOST_DECIMALS = 6
_LAST_BITS = 1e-7
"""How far float32 may be from a decimal number."""

ONLY_CONFIDENCE = "only the confidence of the predicted class is known; it needs the probabilities of all classes"


@dataclass(frozen=True)
class PredictionBatch:
    """Checked predictions of n samples.

    Attributes:
        probabilities: `[n, K]`, float32 or float64; `[n, 1]` where only the confidence of the predicted class is known.
        labels: `[n]` int64, or None. Beside a confidence alone, 0 where the prediction is right, 1 where it is wrong.
        logits: `[n, K]`, or None where only probabilities are known.
        log_label: log-probability of the label `[n]`, bounded where it was rounded to 0; None without labels and
            beside a confidence alone.
        in_distribution: `[n]` boolean, or None.
        renormalised: rows whose probabilities were rounded, and summed to 1 only after this.
        seem: what else than logits the rows of logits could be: `PROBABILITIES`, or a key of `LOGARITHM_FACTORS`.
    """

    probabilities: Tensor
    labels: Tensor | None
    logits: Tensor | None
    log_label: Tensor | None
    in_distribution: Tensor | None
    renormalised: int = 0
    seem: frozenset[str] = frozenset()

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

    @staticmethod
    def joined(batches: Sequence["PredictionBatch"]) -> "PredictionBatch":
        """All samples of batches that know the same of theirs."""

        def column(name: str) -> Any:
            parts = [getattr(batch, name) for batch in batches]
            return None if parts[0] is None else torch.cat(parts)

        return PredictionBatch(*map(column, ("probabilities", "labels", "logits", "log_label", "in_distribution")))

    def top(self) -> tuple[Tensor, Tensor]:
        """Confidence `[n]` in [0, 1] and correctness `[n]` of the predicted class."""
        confidence, prediction = self._largest
        return confidence, prediction == self.required_labels()

    def score(self, name: str) -> Tensor:
        """Confidence score `[n]` of that name (see `counterpoise.functional.confidence`)."""
        if name == "max_softmax":
            return self._largest[0]
        if self.probabilities.shape[-1] == 1:
            raise ValueError(f"score={name!r}: {ONLY_CONFIDENCE}; use max_softmax")
        if self.logits is None or name in UNIT_INTERVAL_SCORES:
            return confidence_score(name, probabilities=self.probabilities)
        return confidence_score(name, logits=self.logits)

    def as_logits(self) -> Tensor:
        """The logits, or log-probabilities where only probabilities are known."""
        return self.probabilities.log() if self.logits is None else self.logits

    def impossible(self) -> int:
        """How many rows have a label whose probability is 0, as given."""
        if self.log_label is None:
            return 0
        of_label = self.probabilities.gather(-1, self.required_labels().unsqueeze(-1)).squeeze(-1)
        return int(((self.log_label == -torch.inf) | ((of_label == 0) & (self.logits is None))).sum())

    def required_labels(self) -> Tensor:
        if self.labels is None:
            raise ValueError("this metric needs labels; pass labels=")
        return self.labels


def from_logits(logits: Tensor, labels: Tensor | None, inside: Tensor | None, rows: Tensor) -> PredictionBatch:
    """Check logits, which may be -inf but not NaN or +inf, and take their softmax."""
    logits = upcast(logits)
    largest = logits.amax(-1)
    # The maximum of a row is finite unless the row holds NaN or +inf, or nothing but -inf.
    refuse(~torch.isfinite(largest), logits, rows, _describe_bad_logits)
    probabilities = torch.softmax(logits, -1)
    log_label = None
    if labels is not None:
        # log p_y = z_y - z_max + log p_max: as exact as a log-softmax, of one column instead of K.
        of_label = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        log_label = of_label - largest + probabilities.amax(-1).log()
    return PredictionBatch(probabilities, labels, logits, log_label, inside, seem=_other_readings(logits))


def _other_readings(logits: Tensor) -> frozenset[str]:
    """What each row of logits could be instead. The first row rules out nearly all readings of nearly all logits."""
    found = {
        name
        for name, factor in LOGARITHM_FACTORS.items()
        if all(_sum_to_one(torch.exp(factor * rows)) for rows in (logits[:1], logits))
    }
    return frozenset(found | {PROBABILITIES} if all(map(_sum_to_one, (logits[:1], logits))) else found)


def notices_of(seem: frozenset[str]) -> list[str]:
    """What to say of logits that could be something else in every row."""
    found = [
        f"every row of logits sums to 1 as log-probabilities {name} do; if they are some, multiply them by {factor:.7g}"
        for name, factor in LOGARITHM_FACTORS.items()
        if name in seem
    ]
    if PROBABILITIES in seem:
        found.append(
            "every row of logits lies in [0, 1] and sums to 1, as probabilities do; if they are some, pass "
            "probabilities= (on the command line, --probabilities and the same columns)"
        )
    return found


def _sum_to_one(rows: Tensor) -> bool:
    """Whether no number of any row is negative, and each row sums to about 1."""
    return bool(((rows.amin(-1) >= 0) & ((rows.sum(-1) - 1).abs() <= SUM_TOLERANCE)).all())


def from_probabilities(values: Tensor, labels: Tensor | None, inside: Tensor | None, rows: Tensor) -> PredictionBatch:
    """Check probabilities, and divide rows that rounding explains by their sum."""
    exact = _EXACT.get(values.dtype, _EXACT_BY_DEFAULT)
    values = upcast(values)
    off = (values.sum(-1) - 1).abs()
    refuse(~((values.amin(-1) >= 0) & (off <= SUM_TOLERANCE + exact)), values, rows, _describe_bad_probabilities)
    rounded, given = off > exact, values
    if renormalised := int(rounded.sum()):
        values = torch.where(rounded.unsqueeze(-1), values / values.sum(-1, keepdim=True), values)
    log_label = None
    if labels is not None:
        log_label = values.gather(-1, labels.unsqueeze(-1)).squeeze(-1).log()
        impossible = log_label == -torch.inf
        if bool(impossible.any()):
            log_label[impossible] = _log_of_zero(given[impossible])
    return PredictionBatch(values, labels, None, log_label, inside, renormalised)


def _log_of_zero(rows: Tensor) -> Tensor:
    """What stands for the logarithm of a 0 in each row: log(u / 2) - 1 where its values have decimals of the unit u.

    A value that was rounded to 0 was below u / 2; where all such values are as likely, this is its mean logarithm. It
    is -inf where the row has no decimals, or more than are written by hand: the 0 is what the model says.
    """
    found = rows.new_full(rows.shape[:1], -torch.inf)
    for decimals in range(_MOST_DECIMALS, -1, -1):
        unit = 10.0**-decimals
        whole = ((rows - rows.round(decimals=decimals)).abs() < _LAST_BITS) & ((rows == 0) | (rows >= unit / 2))
        found[whole.all(-1)] = math.log(unit / 2) - 1 if decimals else -math.inf
    return found


def refuse_outside(values: Tensor, rows: Tensor, decisions: int, kind: Kind) -> None:
    """Refuse what is no logit, or no number in [0, 1], of `[n, 1]` values."""
    column = values.squeeze(-1)
    bad = ~(column < torch.inf) if kind == "logits" else ~((column >= 0) & (column <= 1))
    if not bool(bad.any()):
        return
    first = int(bad.nonzero()[0])
    at, value = place_of(int(rows[first]), decisions), float(column[first])
    if kind == "logits":
        raise ValueError(f"logits {at} is {value}; logits must not be NaN or +inf")
    cure = "if these are percentages, divide by 100 (on the command line --percent)" if 1 < value <= 100 else ""
    if kind == "probabilities":
        cure += ("; " if cure else "") + "if they are logits, pass logits="
    raise ValueError(f"{kind} {at} is {value:.6g}, outside [0, 1]{'; ' if cure else ''}{cure}")


def place_of(row: int, decisions: int) -> str:
    """Where a value is in the input.

    >>> place_of(7, 1), place_of(7, 3)
    ('row 7', 'row 2, column 1')
    """
    return f"row {row}" if decisions == 1 else f"row {row // decisions}, column {row % decisions}"


def refuse(bad: Tensor, values: Tensor, rows: Tensor, describe: Any) -> None:
    """Raise a `ValueError` for the first bad row, if there is one."""
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
    column, total = int(values.argmax()), values.sum().item()
    if abs(total - 100) <= 100 * SUM_TOLERANCE:
        return (
            f"probabilities row {row} sums to {total:.6g}, not 1: if these are percentages, divide them by 100 (on the "
            "command line --percent)"
        )
    return (
        f"probabilities row {row} sums to {total:.6g}, not 1 (its largest is {values[column].item():.6g} "
        f"in column {column}); normalise them, or pass logits= if these are logits"
    )
