"""What depends on the order of all samples: kept one by one up to a number, then counted in a fine histogram.

Whether ranks are exact depends on the number of samples alone, so any partition of them, merged in any order, decides
alike. Each sample has its jackknife group with it, so that groups can be left out of a ranking too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.functional.calibration import BinSums
from counterpoise.functional.confidence import UNIT_INTERVAL_SCORES
from counterpoise.functional.detection import RankCounts, merged_groups, rank_groups
from counterpoise.functional.histogram import CELLS, cell_floor, exact_cells, histogram_cells, unit_or_score_cells
from counterpoise.metrics.protocol import NoSamplesError

_RANK_CELLS = 1024
"""Neighbouring cells are merged to so many before groups are left out."""
_MOST_WAITING = 4 * CELLS
"""Adding to all cells takes as long as counting some 100,000 samples, so that samples wait for others."""

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class LabelledColumns:
    """Of n labelled samples: confidence, whether they are right, the score where it is not the confidence, group."""

    confidence: Tensor
    hits: Tensor
    scores: Tensor | None
    group: Tensor

    @property
    def ranked(self) -> Tensor:
        return self.confidence if self.scores is None else self.scores


class ScoreColumn(NamedTuple):
    """Scores of n samples with the group of each."""

    scores: Tensor
    group: Tensor


class CellCounts:
    """Samples of each group in each cell of the fine histogram, as far as there are any: scores occupy few cells."""

    def __init__(self, places: Tensor | None = None, counts: Tensor | None = None) -> None:
        self.places = torch.zeros(0, dtype=torch.int64) if places is None else places
        self.counts = torch.zeros(0, dtype=torch.int64) if counts is None else counts

    @classmethod
    def of(cls, score: str, columns: Sequence[ScoreColumn]) -> "CellCounts":
        places = [column.group.long() * CELLS + unit_or_score_cells(score, column.scores) for column in columns]
        return cls(*torch.unique(torch.cat(places or [torch.zeros(0, dtype=torch.int64)]), return_counts=True))

    def plus(self, other: "CellCounts") -> "CellCounts":
        places, index = torch.unique(torch.cat([self.places, other.places]), return_inverse=True)
        counts = torch.zeros_like(places).index_add_(0, index, torch.cat([self.counts, other.counts]))
        return CellCounts(places, counts)

    @property
    def cell(self) -> Tensor:
        return self.places % CELLS

    @property
    def group(self) -> Tensor:
        return self.places // CELLS

    def total(self) -> Tensor:
        """Samples of all groups in each cell, `[CELLS]`."""
        return torch.zeros(CELLS, dtype=torch.int64).index_add_(0, self.cell, self.counts)


@dataclass
class _Counted:
    """What is left of samples that were counted."""

    confidence: BinSums
    right: CellCounts
    wrong: CellCounts
    ood: dict[str, CellCounts]

    def merge(self, other: "_Counted") -> None:
        self.confidence = self.confidence.plus(other.confidence)
        self.right, self.wrong = self.right.plus(other.right), self.wrong.plus(other.wrong)
        for name, counts in other.ood.items():
            self.ood[name] = self.ood.get(name, CellCounts()).plus(counts)


class Ranking(NamedTuple):
    """Counts by falling score, and the smallest score of each group of equal rank `[G]`."""

    counts: RankCounts
    threshold: Tensor


class Ranks:
    """Labelled samples by confidence and score, and OOD samples by score, of each set.

    Args:
        score: name of the confidence score.
        exact_samples: up to how many samples of each kind ranks are exact; None for any number.
    """

    def __init__(self, *, score: str, exact_samples: int | None) -> None:
        self.score, self.exact_samples = score, exact_samples
        self.samples = 0
        self.ood_samples: dict[str, int] = {}
        self._labelled: list[LabelledColumns] = []
        self._ood: dict[str, list[ScoreColumn]] = {}
        self._waiting = 0
        self._counted: _Counted | None = None

    @property
    def exact(self) -> bool:
        return self._counted is None

    def add(self, columns: LabelledColumns) -> None:
        self._labelled.append(columns)
        self.samples += len(columns.hits)
        self._settle(len(columns.hits))

    def add_ood(self, name: str, column: ScoreColumn) -> None:
        self._ood.setdefault(name, []).append(column)
        self.ood_samples[name] = self.ood_samples.get(name, 0) + len(column.scores)
        self._settle(len(column.scores))

    def merge(self, other: "Ranks") -> None:
        self._labelled += other._labelled
        self.samples += other.samples
        for name, columns in other._ood.items():
            self._ood.setdefault(name, []).extend(columns)
        for name, samples in other.ood_samples.items():
            self.ood_samples[name] = self.ood_samples.get(name, 0) + samples
        if other._counted is not None:
            self._count()
            assert self._counted is not None  # noqa: S101
            self._counted.merge(other._counted)
        self._settle(other._waiting)

    def settle(self) -> None:
        """Count what waits to be counted, as `tensors` does; sums of floats depend on when that is."""
        if self._counted is not None:
            self._count()

    def confidence_cells(self) -> BinSums:
        """One cell for each distinct confidence, or those of the histogram, ascending."""
        if not self.samples:
            raise NoSamplesError
        if self._counted is None:
            rows = self._columns()
            return exact_cells(rows.confidence, rows.hits)
        self._count()
        return self._counted.confidence

    def misclassification(self) -> Ranking:
        if self._counted is None:
            rows = self._columns()
            return Ranking(*rank_groups(rows.ranked.double(), rows.hits))
        self._count()
        return self._ranking_of_cells(self._counted.right.total(), self._counted.wrong.total())

    def detection(self, name: str) -> Ranking:
        """In-distribution against the samples of an OOD set."""
        if self._counted is None:
            inside = self._columns().ranked.double()
            outside = torch.cat([column.scores for column in self._ood[name]]).double()
            scores = torch.cat([inside, outside])
            return Ranking(*rank_groups(scores, torch.arange(len(scores)) < len(inside)))
        self._count()
        inside = self._counted.right.total() + self._counted.wrong.total()
        return self._ranking_of_cells(inside, self._counted.ood.get(name, CellCounts()).total())

    def misclassification_by_group(self, groups: int) -> RankCounts:
        """Counts `[groups, _RANK_CELLS]` of right and wrong predictions, highest score first."""
        right, wrong = self._cells()
        return _by_group([right], [wrong], groups)

    def detection_by_group(self, name: str, groups: int) -> RankCounts:
        """Counts `[groups, _RANK_CELLS]` of in-distribution and OOD samples, highest score first."""
        counted = CellCounts() if self._counted is None else self._counted.ood.get(name, CellCounts())
        outside = counted.plus(CellCounts.of(self.score, self._ood.get(name, [])))
        return _by_group(list(self._cells()), [outside], groups)

    def tensors(self) -> Tensors:
        self.settle()
        if self._counted is not None:
            counted = {f"cells/{part.name}": getattr(self._counted.confidence, part.name) for part in fields(BinSums)}
            sides = {"right": self._counted.right, "wrong": self._counted.wrong}
            sides |= {f"ood/{name}": counts for name, counts in self._counted.ood.items()}
            for name, counts in sides.items():
                counted |= {f"{name}/places": counts.places, f"{name}/counts": counts.counts}
            return counted
        found: Tensors = {}
        if self._labelled:
            rows = self._columns()
            found = {"confidence": rows.confidence, "hits": rows.hits, "group": rows.group}
            found |= {} if rows.scores is None else {"scores": rows.scores}
        for name, columns in self._ood.items():
            whole = _joined(columns)
            found |= {f"ood/{name}/scores": whole.scores, f"ood/{name}/group": whole.group}
        return found

    @classmethod
    def of_tensors(cls, tensors: Tensors, *, score: str, exact_samples: int | None) -> "Ranks":
        ranks = cls(score=score, exact_samples=exact_samples)
        sets = dict.fromkeys(
            name.removeprefix("ood/").rpartition("/")[0] for name in tensors if name.startswith("ood/")
        )
        if "cells/count" in tensors:
            cells = BinSums(**{part.name: tensors[f"cells/{part.name}"] for part in fields(BinSums)})

            def counts(name: str) -> CellCounts:
                return CellCounts(tensors[f"{name}/places"], tensors[f"{name}/counts"])

            of_sets = {name: counts(f"ood/{name}") for name in sets}
            ranks._counted = _Counted(cells, counts("right"), counts("wrong"), of_sets)
            ranks.samples = int(cells.count.sum())
            ranks.ood_samples = {name: int(found.counts.sum()) for name, found in of_sets.items()}
            return ranks
        if "confidence" in tensors:
            columns = tensors["confidence"], tensors["hits"], tensors.get("scores"), tensors["group"]
            ranks.add(LabelledColumns(*columns))
        for name in sets:
            ranks.add_ood(name, ScoreColumn(tensors[f"ood/{name}/scores"], tensors[f"ood/{name}/group"]))
        return ranks

    def _settle(self, new: int) -> None:
        self._waiting += new
        if self._counted is not None:
            if self._waiting > _MOST_WAITING:
                self._count()
        elif self.exact_samples is not None and max(self.samples, *self.ood_samples.values(), 0) > self.exact_samples:
            self._count()

    def _count(self) -> None:
        """From now on, keep no samples but those that wait to be counted."""
        if self._counted is None:
            empty = torch.zeros(0), torch.zeros(0, dtype=torch.bool)
            self._counted = _Counted(histogram_cells(*empty), CellCounts(), CellCounts(), {})
        if self._labelled:
            rows = self._columns()
            self._counted.confidence = self._counted.confidence.plus(histogram_cells(rows.confidence, rows.hits))
            right, wrong = _sides(self.score, rows)
            self._counted.right, self._counted.wrong = self._counted.right.plus(right), self._counted.wrong.plus(wrong)
        for name, columns in self._ood.items():
            known = self._counted.ood.get(name, CellCounts())
            self._counted.ood[name] = known.plus(CellCounts.of(self.score, columns))
        self._labelled, self._ood, self._waiting = [], {}, 0

    def _columns(self) -> LabelledColumns:
        if len(self._labelled) != 1:
            scores = [rows.scores for rows in self._labelled if rows.scores is not None]
            self._labelled = [
                LabelledColumns(
                    confidence=torch.cat([rows.confidence for rows in self._labelled]),
                    hits=torch.cat([rows.hits for rows in self._labelled]),
                    scores=torch.cat(scores) if scores else None,
                    group=torch.cat([rows.group for rows in self._labelled]),
                )
            ]
        return self._labelled[0]

    def _cells(self) -> tuple[CellCounts, CellCounts]:
        if self._counted is None:
            return _sides(self.score, self._columns())
        self._count()
        return self._counted.right, self._counted.wrong

    def _ranking_of_cells(self, positive: Tensor, negative: Tensor) -> Ranking:
        occupied = torch.nonzero(positive + negative).squeeze(-1).flip(0)
        floor = cell_floor(occupied).double()
        threshold = torch.sigmoid(floor) if self.score in UNIT_INTERVAL_SCORES else floor
        return Ranking(RankCounts(positive[occupied], negative[occupied]), threshold)


def _sides(score: str, rows: LabelledColumns) -> tuple[CellCounts, CellCounts]:
    right, wrong = (
        CellCounts.of(score, [ScoreColumn(rows.ranked[side], rows.group[side])]) for side in (rows.hits, ~rows.hits)
    )
    return right, wrong


def _joined(columns: Sequence[ScoreColumn]) -> ScoreColumn:
    return ScoreColumn(*(torch.cat(parts) for parts in zip(*columns, strict=True)))


def _by_group(positive: Sequence[CellCounts], negative: Sequence[CellCounts], groups: int) -> RankCounts:
    """Counts `[groups, _RANK_CELLS]`, highest score first: cells of all samples, merged until so many are left."""
    totals = [torch.stack([part.total() for part in side]).sum(0) for side in (positive, negative)]
    rank = merged_groups(RankCounts(*(total.flip(-1) for total in totals)), _RANK_CELLS).flip(0)
    counts = torch.zeros(2, groups * _RANK_CELLS, dtype=torch.int64)
    for row, side in zip(counts, (positive, negative), strict=True):
        for part in side:
            row.index_add_(0, part.group * _RANK_CELLS + rank[part.cell], part.counts)
    return RankCounts(*counts.view(2, groups, _RANK_CELLS))
