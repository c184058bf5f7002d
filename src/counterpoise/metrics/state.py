"""`ScoreState`: what `Scores` and paired comparisons are computed from, as sums that merge.

A batch, a file, a shard, a rank and a worker each give a state; any two merge, in any order, to the same result.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from counterpoise._choices import LOGARITHM_FACTORS, SUM_TOLERANCE
from counterpoise._documents import CHANGED, DIGEST
from counterpoise._files import content_digest, is_content_changed, read_safetensors, replacing
from counterpoise._json import parsed
from counterpoise.metrics.batch import PROBABILITIES, PredictionBatch, notices_of
from counterpoise.metrics.columns import (
    Column,
    Columns,
    GroupKey,
    Mask,
    group_codes,
    group_rows,
    is_corrupted,
    require_few_groups,
)
from counterpoise.metrics.headline import Headline, accumulate, fits, measurable
from counterpoise.metrics.inputs import prediction_table
from counterpoise.metrics.jackknife import with_intervals_of_ids
from counterpoise.metrics.keys import Keys, jackknife_group, sample_keys
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.protocol import Metric, Sums
from counterpoise.metrics.ranks import Ranks, ScoreColumn
from counterpoise.metrics.scores import Scores
from counterpoise.metrics.standard import group_metrics
from counterpoise.metrics.stream import collective_device
from counterpoise.metrics.summary import group_scores, scores_of
from counterpoise.metrics.trial import TrialSample

STATE_SCHEMA = "counterpoise.score_state"
STATE_VERSION = 3


class ScoreState:
    """Fixed-size sums of some predictions, batch by batch.

    The headline is about the clean samples where there are any, else about the corrupted ones; each is described by its
    columns `corruption` and `severity`. Samples of one domain, corruption, severity or any other column are groups.

    Args:
        classes: K; 1 where only the confidence of the predicted class is known.
        options: what is computed.

    >>> state = ScoreState(classes=2)
    >>> state.update(probabilities=[[0.9, 0.1], [0.4, 0.6]], labels=[0, 0], ids=["a", "b"])
    >>> other = ScoreState(classes=2)
    >>> other.update(probabilities=[[0.3, 0.7]], labels=[1], ids=["c"])
    >>> state.merge(other)
    >>> round(state.compute()["accuracy"].value, 3)
    0.667
    """

    def __init__(self, *, classes: int, options: ScoreOptions | None = None) -> None:
        self.classes, self.options = classes, options or ScoreOptions()
        self.clean, self.corrupted = (Headline(classes=classes, options=self.options) for _ in range(2))
        self.groups: dict[GroupKey, list[Sums]] = {}
        self.unlabelled = self.corrupted_samples = self.renormalised = self.impossible = 0
        self.seem = frozenset({PROBABILITIES, *LOGARITHM_FACTORS})
        self.names: dict[str, dict[str, None]] = {}
        self._numbered = 0

    @property
    def samples(self) -> int:
        """Labelled samples of the headline."""
        return self.headline.ranks.samples

    @property
    def headline(self) -> Headline:
        """The clean samples, or where there are none the corrupted ones."""
        return self.clean if self.clean.ranks.samples else self.corrupted

    @property
    def group_metrics(self) -> tuple[Metric, ...]:
        """What is known of each group."""
        own = group_metrics(self.options, classes=self.classes)
        return (*own, *measurable(self.options, classes=self.classes))

    def __repr__(self) -> str:
        return f"<ScoreState: {self.samples:,} samples, {self.classes:,} classes>"

    def update(
        self,
        *,
        logits: Any = None,
        probabilities: Any = None,
        confidence: Any = None,
        labels: Any = None,
        correct: Any = None,
        valid: Any = None,
        ids: Any = None,
        columns: Mapping[str, Iterable[Any]] | None = None,
        ood: str | None = None,
    ) -> None:
        """Add a batch.

        Args:
            logits: `[n, K]`; give these or `probabilities`.
            probabilities: `[n, K]`, rows summing to 1.
            confidence: `[n]` of the predicted class, where no more is known: of a state for 1 class.
            labels: class indices `[n]`; without them, samples must be OOD.
            correct: boolean `[n]` beside `confidence`, whether each prediction is right.
            valid: boolean `[n]`; rows where it is False are left out.
            ids: integers or text `[n]`, no two samples alike. They decide which jackknife group and which part of the
                temperature trial a sample belongs to. Without them, samples are numbered as they come.
            columns: descriptions `[n]` of the samples, by name; None where one is not stated. OOD samples have none.
            ood: name of the OOD set that all samples of the batch belong to.
        """
        table = prediction_table(
            logits=logits,
            probabilities=probabilities,
            confidence=confidence,
            labels=labels,
            correct=correct,
            valid=valid,
        )
        if table.classes != self.classes:
            raise ValueError(f"predictions have {table.classes} classes, the state is for {self.classes}")
        rows = len(table.values)
        keys = sample_keys(np.arange(self._numbered, self._numbered + rows) if ids is None else ids)
        described = {name: Column.of(values) for name, values in (columns or {}).items()}
        for name, length in {"ids": len(keys), **{name: len(each.codes) for name, each in described.items()}}.items():
            if length != rows:
                raise ValueError(f"{name} must have one entry for each of {rows} rows, got {length}")
        self._numbered += rows
        kept = np.ones(rows, bool) if table.valid is None else table.valid.cpu().numpy()
        described = {name: each.take(kept) for name, each in described.items()}
        batch = table.checked_rows()
        if ood is not None:
            self.add_ood(ood, batch, keys[kept])
        else:
            batch.required_labels()
            self.add(batch, keys[kept], columns=described)

    def add(self, batch: PredictionBatch, keys: Keys, *, columns: Columns) -> None:
        """Add labelled samples that have been checked."""
        corrupted, (groups, index) = is_corrupted(columns, len(keys)), group_rows(columns, len(keys))
        require_few_groups([*self.groups, *groups])
        codes = group_codes(groups, index)
        self.renormalised += batch.renormalised
        self.impossible += batch.impossible()
        self.seem &= batch.seem
        self.corrupted_samples += int(corrupted.sum())
        if not corrupted.all():
            self.clean.add(_taken(batch, ~corrupted), keys[~corrupted], codes[~corrupted], options=self.options)
        if corrupted.any() and not self.clean.ranks.samples:
            self.corrupted.add(_taken(batch, corrupted), keys[corrupted], codes[corrupted], options=self.options)
        self._drop_what_cannot_be_shown()
        for place, key in enumerate(groups):
            taken = _taken(batch, index == place)
            for sums, metric in zip(self._group(key), self.group_metrics, strict=True):
                accumulate(sums, metric.sums(taken))

    def add_ood(self, name: str, batch: PredictionBatch, keys: Keys) -> None:
        """Add OOD samples that have been checked."""
        self.renormalised += batch.renormalised
        column = ScoreColumn(batch.score(self.options.score).cpu(), jackknife_group(keys, self.options.groups))
        self.clean.ranks.add_ood(name, column)
        if not self.clean.ranks.samples:
            self.corrupted.ranks.add_ood(name, column)

    def describe(self, column: str, values: Iterable[str]) -> None:
        """Note the values of a column that tells where samples come from, such as `data_set`."""
        self.names.setdefault(column, {}).update(dict.fromkeys(values))

    def merge(self, other: "ScoreState") -> None:
        """Add what another state of the same options has seen."""
        if not isinstance(other, ScoreState):
            raise TypeError(f"a ScoreState merges with another ScoreState, got {type(other).__name__}")
        if (mine := self._identity()) != (theirs := other._identity()):
            raise ValueError(f"cannot merge states of different options: {mine} and {theirs}")
        require_few_groups(self.groups | other.groups)
        self.clean.merge(other.clean)
        if not self.clean.ranks.samples:
            self.corrupted.merge(other.corrupted)
        self._drop_what_cannot_be_shown()
        for key, sums in other.groups.items():
            for own, found in zip(self._group(key), sums, strict=True):
                accumulate(own, found)
        self.unlabelled += other.unlabelled
        self.renormalised += other.renormalised
        self.impossible += other.impossible
        self.seem &= other.seem
        self.corrupted_samples += other.corrupted_samples
        self._numbered += other._numbered
        for column, values in other.names.items():
            self.describe(column, values)

    def settle(self) -> None:
        """Bring the state into the form that `save` writes: what comes after gives the same bits as after that."""
        for part in (self.clean, self.corrupted):
            part.settle()

    def compute(self) -> Scores:
        """The scores of all samples so far."""
        part = self.headline
        if not part.ranks.samples:
            raise ValueError("there are no labelled samples: call update() before compute()")
        scores = scores_of(
            classes=self.classes,
            options=self.options,
            metrics=part.metrics,
            sums=[part.total(place) for place in range(len(part.metrics))],
            standard=part.standard,
            ranks=part.ranks,
        )
        if self.options.clustered:
            scores = with_intervals_of_ids(scores, part.grouped(), part.ranks)
        groups = group_scores(self.groups, self.group_metrics, options=self.options, classes=self.classes)
        return replace(scores, groups=groups)

    def notices(self) -> list[str]:
        """What a reader of the scores should know."""
        found = []
        if self.renormalised:
            found.append(
                f"{self.renormalised:,} rows of probabilities were rounded: they summed to 1 within {SUM_TOLERANCE} "
                "and were renormalised"
            )
        if self.impossible:
            found.append(
                f"the label of {self.impossible:,} rows has the probability 0: the NLL takes 1 / 2e of the last "
                "decimal for what was rounded to it, and is infinite if nothing was; write more digits, or write logits"
            )
        if self.samples:
            found += notices_of(self.seem)
        if self.classes == 1:
            found.append(
                "only the confidence of the predicted class is known: NLL, Brier score, classwise calibration and "
                "temperature scaling need the probabilities of all classes"
            )
        if self.options.clustered:
            found.append(
                "several labels a sample: values are of all decisions together, their intervals by leaving out samples "
                "with all their labels (jackknife); metrics for which that gives none have no interval"
            )
        return found

    def sync(self, group: dist.ProcessGroup | None = None) -> "ScoreState":
        """A state of what all ranks of the group (by default all) have seen. This one keeps its own part."""
        device = collective_device(group)
        own = torch.frombuffer(bytearray(self.to_bytes()), dtype=torch.uint8).to(device)
        sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
        dist.all_gather(sizes, torch.tensor([len(own)], device=device), group=group)
        longest = max(int(size) for size in sizes)
        parts = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in sizes]
        dist.all_gather(parts, torch.nn.functional.pad(own, (0, longest - len(own))), group=group)
        whole = ScoreState(classes=self.classes, options=self.options)
        for part, size in zip(parts, sizes, strict=True):
            whole.merge(ScoreState.from_bytes(part[: int(size)].cpu().numpy().tobytes(), metrics=self.options.metrics))
        return whole

    def save(self, path: str | Path) -> None:
        """Write the state as safetensors, atomically: a worker's part, to be merged elsewhere."""
        with replacing(path) as temporary:
            temporary.write_bytes(self.to_bytes())

    @classmethod
    def load(cls, path: str | Path, *, metrics: Sequence[Metric] = ()) -> "ScoreState":
        """Read what `save` wrote; `metrics` are those in addition to the standard ones, as when it was made."""
        metadata, tensors = read_safetensors(path)
        try:
            return cls._read(metadata, tensors, metrics)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def to_bytes(self) -> bytes:
        """The state as the bytes of a safetensors file."""
        tensors: dict[str, Tensor] = {}
        for name, part in (("clean", self.clean), ("corrupted", self.corrupted)):
            if part.ranks.samples or part.ranks.ood_samples:
                tensors |= _flat(f"{name}/metrics", part.sums)
                tensors |= {f"{name}/ranks/{key}": value for key, value in part.ranks.tensors().items()}
                tensors |= {f"{name}/trial/{key}": value for key, value in part.trial.tensors().items()}
        for index, sums in enumerate(self.groups.values()):
            tensors |= _flat(f"groups/{index}", sums)
        document = self._identity() | {
            "version": STATE_VERSION,
            "groups": list(self.groups),
            "unlabelled": self.unlabelled,
            "renormalised": self.renormalised,
            "impossible": self.impossible,
            "seem": sorted(self.seem),
            "corrupted_samples": self.corrupted_samples,
            "numbered": self._numbered,
            "names": {column: list(values) for column, values in self.names.items()},
        }
        whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        # One entry alone: safetensors writes several in any order, and the same state shall be the same bytes.
        document = json.loads(json.dumps(document))  # as it will be read
        document[DIGEST] = content_digest(document, whole)
        return to_safetensors(whole, metadata={STATE_SCHEMA: json.dumps(document)})

    @classmethod
    def from_bytes(cls, data: bytes, *, metrics: Sequence[Metric] = ()) -> "ScoreState":
        """Read what `to_bytes` gave."""
        length = int.from_bytes(data[:8], "little")
        metadata = parsed(data[8 : 8 + length]).get("__metadata__", {})
        tensors = from_safetensors(data)
        if is_content_changed(metadata, tensors):
            raise ValueError(CHANGED)
        return cls._read(metadata, tensors, metrics)

    @classmethod
    def _read(cls, metadata: Mapping[str, str], tensors: dict[str, Tensor], metrics: Sequence[Metric]) -> "ScoreState":
        if STATE_SCHEMA not in metadata:
            raise ValueError("it holds no score state")
        try:
            return cls._of_document(parsed(metadata[STATE_SCHEMA]), tensors, metrics)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            raise ValueError(f"it is incomplete or malformed: {error}") from None

    @classmethod
    def _of_document(cls, document: Any, tensors: dict[str, Tensor], metrics: Sequence[Metric]) -> "ScoreState":
        if document["version"] != STATE_VERSION:
            raise ValueError(f"its version is {document['version']!r}, this release reads {STATE_VERSION}")
        if (wanted := document["options"]["metrics"]) != [repr(metric) for metric in metrics]:
            raise ValueError(f"it was made with the additional metrics {wanted}; pass these as metrics=")
        options = ScoreOptions(**(document["options"] | {"metrics": tuple(metrics)}))
        state = cls(classes=document["classes"], options=options)
        # Copies: a view of a few numbers would keep the whole file in memory.
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        for name, part in (("clean", state.clean), ("corrupted", state.corrupted)):
            own = _below(tensors, name)
            for index, metric in enumerate(part.metrics):
                if found := _below(own, f"metrics/{index}"):
                    part.sums.append(_checked_sums(found, metric.zeros(), groups=options.groups))
            part.ranks = Ranks.of_tensors(
                _below(own, "ranks"), score=options.score, exact_samples=options.exact_samples
            )
            part.trial = TrialSample.of_tensors(_below(own, "trial"), classes=state.classes)
        for index, key in enumerate(document["groups"]):
            state.groups[tuple((column, value) for column, value in key)] = [
                _checked_sums(_below(tensors, f"groups/{index}/{place}"), metric.zeros(), groups=None)
                for place, metric in enumerate(state.group_metrics)
            ]
        state.unlabelled, state.corrupted_samples = document["unlabelled"], document["corrupted_samples"]
        state._numbered, state.renormalised = document["numbered"], document["renormalised"]
        state.impossible, state.seem = document["impossible"], frozenset(document["seem"])
        for column, values in document["names"].items():
            state.describe(column, values)
        return state

    def _group(self, key: GroupKey) -> list[Sums]:
        return self.groups.get(key) or self.groups.setdefault(key, [metric.zeros() for metric in self.group_metrics])

    def _drop_what_cannot_be_shown(self) -> None:
        """Once there is a clean sample, the headline is about clean samples."""
        ranks = self.corrupted.ranks
        if self.clean.ranks.samples and (ranks.samples or ranks.ood_samples):
            self.corrupted = Headline(classes=self.classes, options=self.options)

    def _identity(self) -> dict[str, Any]:
        options = asdict(replace(self.options, metrics=())) | {"metrics": [repr(each) for each in self.options.metrics]}
        return {"classes": self.classes, "options": options}


def _taken(batch: PredictionBatch, rows: Mask) -> PredictionBatch:
    return batch if rows.all() else batch.take(torch.from_numpy(rows).to(batch.probabilities.device))


def _flat(prefix: str, every: Sequence[Sums]) -> dict[str, Tensor]:
    return {f"{prefix}/{index}/{name}": value for index, sums in enumerate(every) for name, value in sums.items()}


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _checked_sums(found: Sums, zeros: Sums, *, groups: int | None) -> Sums:
    """Sums from a file, by jackknife group unless `groups` is None, held to what the metric needs."""
    leading = () if groups is None else (groups if fits(zeros, groups) else 1,)
    for name, zero in zeros.items():
        shape = torch.Size([*leading, *zero.shape])
        if name not in found or found[name].shape != shape or found[name].dtype != zero.dtype:
            raise ValueError(f"its sum {name!r} is missing, or not {list(shape)} of {zero.dtype}")
    return {name: found[name] for name in zeros}
