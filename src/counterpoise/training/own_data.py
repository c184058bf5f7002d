"""The data set that a run trained on, where that is what it is to predict: which rows of it were for what."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from counterpoise.data.fingerprint import fingerprint
from counterpoise.data.sources import WHOLE, DataSource, stored_split
from counterpoise.data.tables import parts_of
from counterpoise.recipes.config import DataOptions
from counterpoise.training.folder import RunFolder, read_environment
from counterpoise.training.splits import kept_split, splits_of, stored_ids


@dataclass(frozen=True)
class OwnData:
    """What a run read.

    Attributes:
        options: that say so.
        held: row numbers of what it held out of the training split, by what for.
        digests: of the content of what it read, by split.
    """

    options: DataOptions
    held: Mapping[str, list[int]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    def is_of(self, data: str | Path, source: DataSource, split: str | None, *, say: Callable[[str], None]) -> bool:
        """Whether this is what the run was trained on, by its content; of sets of domains nothing is known.

        Other data under the name of the run's own are noted; their rows cannot be those of a split that was held out.
        """
        training = WHOLE if WHOLE in self.digests else "train"
        if self.options.domain is not None or source.info.domains or training not in self.digests:
            return False
        if (training in source.files or not source.files) and fingerprint(source, training) == self.digests[training]:
            return True
        one, other = (parts_of(str(each))[0] for each in (data, self.options.name))
        if os.path.realpath(one) == os.path.realpath(other):
            changed = f"{data} has the name of what the run was trained on, but another content"
            if self.held_rows(source, split) is not None:
                raise ValueError(
                    f"{changed}, so that its rows for {split} are not known; restore it, or leave out --split"
                )
            say(f"note: {changed}; the run may know some of these images")
        return False

    def held_rows(self, source: DataSource, split: str | None) -> Tensor | None:
        """Those of a split that is not stored, but was held out."""
        if split is None or split in source.files or split not in self.held:
            return None
        return torch.tensor(self.held[split])

    def training_split(self, source: DataSource) -> str:
        """The split that it trained on, and held images out of."""
        return splits_of(source, self.options).training

    def trained_rows(self, data: str | Path, source: DataSource, split: str, *, root: Path | None) -> Tensor:
        training = self.training_split(source)
        whole = source.kind == "scikit-learn"  # whose splits have the row numbers of the whole
        if not whole and stored_split(source, split, None) != stored_split(source, training, None):
            return torch.tensor([], dtype=torch.int64)
        ids = stored_ids(replace(self.options, name=str(data)), training, root=root, limit=self.options.limit)
        return ids[~torch.isin(ids, torch.tensor([row for rows in self.held.values() for row in rows]))]

    def note(self, trained: int) -> str:
        remedy = f"; --split {min(self.held)} has those that were held out" if self.held else ""
        return f"note: the run was trained on {trained:,} of these images, which flatters it{remedy}"


def own_data(run: RunFolder) -> OwnData:
    """What a run says of its data."""
    held = kept_split(run.split) if run.split.exists() else {}
    if not run.environment.exists():
        return OwnData(run.recipe().data, held)
    environment = read_environment(run)
    return OwnData(run.recipe().data, held, [environment.started, *environment.resumed][-1].data)
