"""Accept or refer: a confidence above which predictions are right often enough, with a stated probability."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoise._choices import DEFAULT_DELTA
from counterpoise._documents import read_document, to_document
from counterpoise._files import write_text
from counterpoise.calibrators.inputs import checked_logits, labelled_logits, row_blocks
from counterpoise.calibrators.keyed import second_half
from counterpoise.functional.conformal import candidate_thresholds, require_risk, selective_threshold

SCHEMA, SCHEMA_VERSION = "counterpoise.selective_threshold", 1


@dataclass(frozen=True)
class SelectiveThreshold:
    """Accept a prediction whose confidence, the largest probability, is at least the threshold; refer the others.

    With probability `1 - delta` over calibration samples, at most the share `risk` of accepted predictions is wrong
    (Learn then test; construction, proof and reference: `counterpoise.functional.conformal.selective_threshold`).

    Attributes:
        risk: largest share of wrong predictions among accepted ones.
        delta: largest probability that the share is larger.
        classes: K.
        threshold: of the confidence; infinite where nothing can be accepted.
        samples: that it was tested on.
        accepted: how many of these have at least this confidence.
        errors: how many of the accepted are wrong.
    """

    risk: float
    delta: float
    classes: int
    threshold: float
    samples: int
    accepted: int
    errors: int

    def __post_init__(self) -> None:
        require_risk(self.risk)
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie between 0 and 1, got {self.delta}")
        if math.isnan(self.threshold) or not 0 <= self.errors <= self.accepted <= self.samples:
            raise ValueError(
                f"the threshold {self.threshold} with {self.errors} errors, {self.accepted} accepted and "
                f"{self.samples} samples is none"
            )

    @classmethod
    def fit(
        cls, logits: Any, labels: Any, *, risk: float, delta: float = DEFAULT_DELTA, ids: Any = None
    ) -> "SelectiveThreshold":
        """Find the threshold on samples that the model has not seen.

        The samples are split in halves (`second_half`). The first says which thresholds are worth a test, the second
        alone carries the guarantee; a temperature may have been fitted on the first.

        Args:
            logits: `[n, K]`; log-probabilities, as calibrators give them, are logits too.
            labels: `[n]`.
            risk: largest share of wrong predictions among accepted ones.
            delta: largest probability that the share is larger.
            ids: `[n]`, integers or text, that decide the halves; without them, the number of the row does.
        """
        data = labelled_logits(logits, labels, impossible_labels=True)
        require_risk(risk)
        blocks = [_confidence(data.logits[rows]) for rows in row_blocks(*data.logits.shape)]
        confidence = torch.cat([each for each, _ in blocks]).cpu()
        correct = torch.cat([each for _, each in blocks]).cpu() == data.labels.cpu()
        tested = second_half(range(len(correct)) if ids is None else ids)
        if len(tested) != len(correct):
            raise ValueError(f"ids must be one for each of {len(correct)} samples, got {len(tested)}")
        candidates = candidate_thresholds(confidence[~tested], correct[~tested], risk=risk)
        found = selective_threshold(confidence[tested], correct[tested], candidates, risk=risk, delta=delta)
        return cls(
            risk=float(risk),
            delta=float(delta),
            classes=data.classes,
            threshold=found.threshold,
            samples=int(tested.sum()),
            accepted=found.accepted,
            errors=found.errors,
        )

    def __call__(self, logits: Any) -> Tensor:
        """Which predictions to accept: bool `[...]` from `[..., K]` logits."""
        values = checked_logits(logits, classes=self.classes).detach()
        rows = values.reshape(-1, self.classes)
        rows = rows.cpu() if rows.device.type == "mps" else rows  # it has no float64
        accepted = [self.accepts(rows[block]) for block in row_blocks(*rows.shape)]
        joined = torch.cat(accepted) if accepted else torch.empty(0, dtype=torch.bool)
        return joined.reshape(values.shape[:-1]).to(values.device)

    def accepts(self, logits: Tensor) -> Tensor:
        """The same of `[n, K]` logits: a pure function, which files can hold."""
        return _confidence(logits)[0] >= self.threshold

    def summary(self) -> str:
        """What is guaranteed, or why nothing is, in a sentence."""
        promise = f"at most {100 * self.risk:.4g}% of what is accepted is wrong, with probability {1 - self.delta:.4g}"
        if self.threshold < math.inf:
            return (
                f"Predictions with a confidence of at least {self.threshold:.4g} are accepted: {promise}. Of "
                f"{self.samples:,} calibration samples {self.accepted:,} are, and {self.errors:,} of these are wrong."
            )
        if self.risk == 0:
            return f"Nothing is accepted: no number of samples can show that {promise}."
        need = math.ceil(math.log(self.delta) / math.log1p(-self.risk))
        return (
            f"Nothing is accepted: {self.samples:,} calibration samples do not show that {promise}. It takes at least "
            f"{need:,} accepted ones without an error, or more with some."
        )

    def save(self, path: str | Path) -> None:
        """Write JSON; `SelectiveThreshold.load(path)` reads it."""
        write_text(path, self.to_json())

    def to_json(self, *, indent: int | None = 1) -> str:
        """Strict JSON; an infinite threshold is the text "inf"."""
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION, indent=indent)

    @classmethod
    def load(cls, path: str | Path) -> "SelectiveThreshold":
        """Read what `save` wrote; anything else is a `ValueError` that names the file and the place."""
        return read_document(cls, path, schema=SCHEMA, version=SCHEMA_VERSION)


def _confidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest probability `[n]` in float64, and whose it is."""
    largest = torch.softmax(logits.double(), -1).max(-1)
    return largest.values, largest.indices
