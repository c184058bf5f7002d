"""The data set that a run trained on, where that is what it is to predict: which rows of it were for what."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from counterpoise.data.sources import DataSource, stored_split
from counterpoise.data.tables import parts_of
from counterpoise.recipes.config import DataOptions
from counterpoise.training.data import stored_ids
from counterpoise.training.folder import RunFolder
from counterpoise.training.splits import kept_split, splits_of


@dataclass(frozen=True)
class OwnData:
    """What a run read.

    Attributes:
        options: that say so.
        held: row numbers of what it held out of the training split, by what for.
    """

    options: DataOptions
    held: Mapping[str, list[int]] = field(default_factory=dict)

    def is_of(self, data: str | Path) -> bool:
        """Whether these are the data, as far as their names tell; of sets of domains nothing is known."""
        one, other = (parts_of(str(each))[0] for each in (data, self.options.name))
        return self.options.domain is None and os.path.realpath(one) == os.path.realpath(other)

    def held_rows(self, source: DataSource, split: str | None) -> Tensor | None:
        """Those of a split that is not stored, but was held out."""
        if split is None or split in source.files or split not in self.held:
            return None
        return torch.tensor(self.held[split])

    def training_split(self, source: DataSource) -> str:
        """The split that it trained on, and held images out of."""
        return splits_of(source, self.options).training

    def trained_rows(self, source: DataSource, split: str, *, root: Path | None) -> Tensor:
        training = self.training_split(source)
        whole = source.kind == "scikit-learn"  # whose splits have the row numbers of the whole
        if not whole and stored_split(source, split, None) != stored_split(source, training, None):
            return torch.tensor([], dtype=torch.int64)
        ids = stored_ids(self.options, training, root=root, limit=self.options.limit)
        return ids[~torch.isin(ids, torch.tensor([row for rows in self.held.values() for row in rows]))]

    def note(self, trained: int) -> str:
        remedy = f"; --split {min(self.held)} has those that were held out" if self.held else ""
        return f"note: the run was trained on {trained:,} of these images, which flatters it{remedy}"


def own_data(run: RunFolder) -> OwnData:
    """What a run says of its data."""
    return OwnData(run.recipe().data, kept_split(run.split) if run.split.exists() else {})
