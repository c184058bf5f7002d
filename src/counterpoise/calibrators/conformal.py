"""Prediction sets that hold the label with a stated probability: fitted once, kept as JSON, applied to logits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from counterpoise._arrays import as_array, as_tensor
from counterpoise._choices import DEFAULT_ALPHA
from counterpoise._documents import read_document, to_document
from counterpoise._files import write_text
from counterpoise.calibrators.inputs import checked_logits, labelled_logits, row_blocks
from counterpoise.functional.conformal import (
    DEFAULT_FREE_RANKS,
    DEFAULT_PENALTY,
    SET_SCORES,
    SetScore,
    conformal_rank,
    conformal_thresholds,
    fewest_samples,
    require_penalty,
    set_scores,
)

SCHEMA, SCHEMA_VERSION = "counterpoise.conformal_sets", 1
_NAMED = 5
"""Classes or slices that a summary names."""


@dataclass(frozen=True)
class ConformalSets:
    """Prediction sets by split conformal prediction: `fit`, then logits in and the labels of each set out.

    A set holds the label of a new sample with a probability of at least `1 - alpha`, over calibration samples and the
    new one, if these are exchangeable: by class also of the samples of each class, by slice of each slice. Formulas
    and references: `counterpoise.functional.conformal`.

    Attributes:
        alpha: largest probability that the set misses the label.
        score: `lac`, `aps` or `raps`.
        by: what has a threshold of its own: `all` samples together, each `class`, or each `slice`.
        classes: K.
        thresholds: one, K, or one for each slice; infinite where there were too few samples.
        samples: calibration samples of each threshold.
        slices: their names, for `by="slice"`.
        penalty: of RAPS.
        free_ranks: of RAPS.
        randomised: whether APS or RAPS take a random number u for each sample.

    >>> logits = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]]).log()
    >>> sets = ConformalSets.fit(logits, [0, 0, 0, 0], alpha=0.4)
    >>> sets(torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log())
    tensor([[ True, False],
            [False, False]])
    """

    alpha: float
    score: SetScore
    by: Literal["all", "class", "slice"]
    classes: int
    thresholds: tuple[float, ...]
    samples: tuple[int, ...]
    slices: tuple[str, ...] = ()
    penalty: float = DEFAULT_PENALTY
    free_ranks: int = DEFAULT_FREE_RANKS
    randomised: bool = False

    def __post_init__(self) -> None:
        conformal_rank(0, self.alpha)  # refuses an alpha that is no level
        require_penalty(self.penalty, self.free_ranks)
        if self.score not in SET_SCORES:
            raise ValueError(f"there is no score {self.score!r}: choose one of {', '.join(SET_SCORES)}")
        if self.randomised and self.score == "lac":
            raise ValueError("lac takes no random numbers: leave u out, or choose aps or raps")
        expected = {"all": 1, "class": self.classes, "slice": len(self.slices)}[self.by]
        if not len(self.thresholds) == len(self.samples) == expected or len(set(self.slices)) < len(self.slices):
            raise ValueError(
                f"by {self.by} there are {expected} thresholds, got {len(self.thresholds)} of {len(self.samples)} "
                f"counts and the slices {self.slices}"
            )
        if any(math.isnan(each) for each in self.thresholds):
            raise ValueError(f"a threshold is NaN: {self.thresholds}")

    @classmethod
    def fit(
        cls,
        logits: Any,
        labels: Any,
        *,
        alpha: float = DEFAULT_ALPHA,
        score: SetScore = "lac",
        by_class: bool = False,
        slices: Any = None,
        penalty: float = DEFAULT_PENALTY,
        free_ranks: int = DEFAULT_FREE_RANKS,
        u: Any = None,
    ) -> Self:
        """Find the thresholds on samples that neither the model nor its temperature has seen.

        Args:
            logits: `[n, K]`; log-probabilities, as calibrators give them, are logits too.
            labels: `[n]`. A label of probability 0 counts like any other.
            alpha: largest probability that a set misses the label.
            score: `lac` for the smallest sets, `aps` for sets that grow with the doubt, `raps` for these with a limit.
            by_class: a threshold for each class.
            slices: `[n]` names; a threshold for each.
            penalty: of RAPS.
            free_ranks: of RAPS.
            u: `[n]` uniform on [0, 1], for randomised APS or RAPS; see `keyed_uniforms`.
        """
        require_penalty(penalty, free_ranks)
        data = labelled_logits(logits, labels, impossible_labels=True)
        if by_class and slices is not None:
            raise ValueError("give by_class or slices, not both: slices named by class and slice have both")
        names: tuple[str, ...] = ()
        category, categories = torch.zeros_like(data.labels), 1
        if by_class:
            category, categories = data.labels, data.classes
        elif slices is not None:
            column = _slice_names(slices, len(data.labels))
            names = tuple(sorted(set(column)))
            category, categories = _codes(column, names).to(category.device), len(names)
        draws = None if u is None else _uniform(u, len(data.labels)).to(category.device)
        unfitted = cls(
            alpha=float(alpha),
            score=score,
            by="class" if by_class else "slice" if names else "all",
            classes=data.classes,
            thresholds=(math.inf,) * categories,
            samples=tuple(torch.bincount(category, minlength=categories).tolist()),
            slices=names,
            penalty=float(penalty),
            free_ranks=int(free_ranks),
            randomised=draws is not None,
        )
        found = torch.cat(
            [
                unfitted.scores(data.logits[rows], None if draws is None else draws[rows])
                .gather(-1, data.labels[rows].unsqueeze(-1))
                .squeeze(-1)
                for rows in row_blocks(*data.logits.shape)
            ]
        )
        thresholds = conformal_thresholds(found, category, categories, alpha)
        return replace(unfitted, thresholds=tuple(thresholds.tolist()))

    def __call__(self, logits: Any, *, slices: Any = None, u: Any = None) -> Tensor:
        """Which labels are in the set of each sample: bool `[..., K]` from `[..., K]` logits.

        Args:
            logits: of the kind that the thresholds were fitted to.
            slices: `[...]` names, where there is a threshold for each.
            u: `[...]`, where the fit was randomised.
        """
        values = checked_logits(logits, classes=self.classes).detach()
        rows = values.reshape(-1, self.classes)
        rows = rows.cpu() if rows.device.type == "mps" else rows  # it has no float64
        if (u is not None) != self.randomised:
            raise ValueError("give u= to sets that were fitted with it, and to no others")
        draws = None if u is None else _uniform(u, len(rows)).to(rows.device)
        limits = self._limits(slices, len(rows)).to(rows.device)
        sets = torch.empty(rows.shape, dtype=torch.bool, device=rows.device)
        for block in row_blocks(*rows.shape):
            scores = self.scores(rows[block], None if draws is None else draws[block])
            sets[block] = scores <= (limits[block] if self.by == "slice" else limits)
        return sets.reshape(values.shape).to(values.device)

    def scores(self, logits: Tensor, u: Tensor | None = None) -> Tensor:
        """The score of every label, float64 `[n, K]` from `[n, K]` logits: a pure function, which files can hold."""
        # In float32, sums of probabilities would tie near 1, where thresholds for high coverage are.
        probabilities = torch.softmax(logits.double(), -1)
        return set_scores(self.score, probabilities, penalty=self.penalty, free_ranks=self.free_ranks, u=u)

    @property
    def without_threshold(self) -> tuple[str, ...]:
        """Classes or slices with too few calibration samples, by name or index: their threshold is infinite."""
        names = self.slices or tuple(map(str, range(len(self.thresholds))))
        return tuple(name for name, each in zip(names, self.thresholds, strict=True) if each == math.inf)

    def summary(self) -> str:
        """What is guaranteed, and what is not, in a sentence or two."""
        within = {"all": "", "class": " of each class", "slice": " of each slice"}[self.by]
        text = (
            f"Sets hold the label of a sample{within} with a probability of at least {1 - self.alpha:.4g} "
            f"({self.score}, {sum(self.samples):,} calibration samples)."
        )
        if not (few := self.without_threshold):
            return text
        need = f"fewer than the {fewest_samples(self.alpha):,} calibration samples that this needs"
        if self.by == "all":
            return f"{text} There are {need}, so every set has all labels."
        more = f" and {len(few) - _NAMED} more" if len(few) > _NAMED else ""
        whole = "these classes are in every set" if self.by == "class" else "the sets of these slices have all labels"
        plural = {"class": "Classes", "slice": "Slices"}[self.by]
        return f"{text} {plural} with {need}: {', '.join(few[:_NAMED])}{more}; {whole}."

    def save(self, path: str | Path) -> None:
        """Write JSON; `ConformalSets.load(path)` reads it."""
        write_text(path, self.to_json())

    def to_json(self, *, indent: int | None = 1) -> str:
        """Strict JSON; an infinite threshold is the text "inf"."""
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION, indent=indent)

    @classmethod
    def load(cls, path: str | Path) -> "ConformalSets":
        """Read what `save` wrote; anything else is a `ValueError` that names the file and the place."""
        return read_document(cls, path, schema=SCHEMA, version=SCHEMA_VERSION)

    def _limits(self, slices: Any, rows: int) -> Tensor:
        """Thresholds `[1]`, `[K]`, or of each row's slice `[n, 1]`."""
        limits = torch.tensor(self.thresholds, dtype=torch.float64)
        if (slices is not None) != (self.by == "slice"):
            raise ValueError("give slices= to sets that were fitted with them, and to no others")
        if slices is None:
            return limits
        return limits[_codes(_slice_names(slices, rows), self.slices)].unsqueeze(-1)


def _slice_names(slices: Any, rows: int) -> list[str]:
    names = [str(each) for each in as_array(slices, "slices").reshape(-1).tolist()]
    if len(names) != rows:
        raise ValueError(f"slices must name one for each of {rows} samples, got {len(names)}")
    return names


def _codes(names: Sequence[str], known: Sequence[str]) -> Tensor:
    code = {name: index for index, name in enumerate(known)}
    unknown = next((name for name in names if name not in code), None)
    if unknown is not None:
        raise ValueError(
            f"slices row {names.index(unknown)} is {unknown!r}, of which no sample was fitted to; there are "
            f"{', '.join(known)}: fit again with samples of it"
        )
    return torch.tensor([code[name] for name in names], dtype=torch.int64)


def _uniform(u: Any, rows: int) -> Tensor:
    draws = as_tensor(u, "u").double().reshape(-1)
    if len(draws) != rows:
        raise ValueError(f"u must have a number for each of {rows} samples, got {len(draws)}")
    outside = ~((draws >= 0) & (draws <= 1))
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(f"u row {row} is {float(draws[row])}, outside [0, 1]")
    return draws
