"""Which images of a set are trained on, validated with and tested on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from counterpoise._addresses import read_text
from counterpoise._files import write_text
from counterpoise.data.holding_out import hold_out, hold_out_by_class, hold_out_hashed
from counterpoise.data.sources import FILES, WHOLE, DataSource, pictures_in
from counterpoise.data.tables import SUFFIXES, read_table
from counterpoise.recipes.config import DataOptions, HeldOutRows

TEST_SEED: Final = 1 << 40
"""Of the test images that are held out: those of every seed, so that runs can be compared, and no run's own seed."""


class Splits(NamedTuple):
    """Stored splits; None where images are held out of the training split."""

    training: str
    validation: str | None
    test: str | None


def splits_of(source: DataSource, options: DataOptions) -> Splits:
    """The splits of a source that a run uses."""
    stored = source.files
    _require_classes(source)
    if source.info.domains or not stored:
        return Splits("train", None, "test")
    training = WHOLE if set(stored) == {WHOLE} else "train"
    validation = "validation" if source.kind in FILES and "validation" in stored else None
    # Without either, that there are none is said where they are needed: a search chooses by validation images alone.
    return Splits(training, validation, "test" if "test" in stored or options.test is None else None)


def require_test_images(source: DataSource, options: DataOptions) -> None:
    """Refuse a source of which no test images are stored or held out."""
    stored = source.files
    if stored and not source.info.domains and "test" not in stored and options.test is None:
        raise ValueError(
            f"{source.info.name} has no split 'test' at {source.location}; it has {', '.join(map(repr, stored))}; to "
            "hold test images out of it, say how many: --data.test 0.15"
        )


def is_own(source: DataSource) -> bool:
    """Whether a source is the user's, of which nothing was known."""
    return not source.info.image


def held_out(
    labels: Tensor, *, size: int | float, seed: int, stratify: bool, rule: HeldOutRows = "shuffled"
) -> tuple[Tensor, Tensor]:
    """Positions of the images that are kept, and of those that are held out."""
    if stratify:
        return hold_out_by_class(labels, size=size, seed=seed)
    held = held_out_rows(len(labels), size=size, seed=seed, rule=rule)
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[held] = False
    return torch.nonzero(kept)[:, 0], held


def held_out_rows(rows: int, *, size: int | float, seed: int, rule: HeldOutRows) -> Tensor:
    """Sorted positions of those that are held out of some rows of which nothing else is known."""
    if rule == "hashed":
        return hold_out_hashed(rows, size=size, seed=seed)
    return hold_out(rows, size=size, seed=seed)[1]


def _require_classes(source: DataSource) -> None:
    """Refuse image files of one class."""
    if source.kind not in FILES or len(source.info.classes) > 1:
        return
    if not source.info.classes and source.kind == "folder":
        images = sum(1 for _ in pictures_in(source.location, ""))
        raise ValueError(
            f"{source.location} holds no class folders, but {images:,} images: put those of each class into a folder "
            "with its name"
        )
    if not source.info.classes:
        read_table(source.location, labelled=True)  # which asks where the labels are, if a column may hold them
        raise ValueError(f"{source.location} has no labels to learn from")
    (name,) = source.info.classes
    hint = ""
    if source.kind == "folder":
        folder = Path(next(iter(source.files.values()))[0]) / name
        below = [
            each.name for each in sorted(folder.iterdir()) if each.is_dir() and any(pictures_in(folder, each.name))
        ]
        tables = [each for each in sorted(Path(source.location).iterdir()) if each.suffix.lower() in SUFFIXES]
        if len(below) > 1:
            hint = f"; if {', '.join(below[:3])} are the classes, give {folder}"
        elif tables:
            hint = f"; if {tables[0].name} tells them, give {tables[0]}"
        else:
            hint = ": put the images of each class into a folder with its name, or write a CSV file of path and label"
    raise ValueError(f"{source.location} has one class, {name!r}; at least 2 are needed{hint}")


def keep_split(path: Path, held: Mapping[str, list[int]]) -> None:
    """Save the row numbers of images held out with the run."""
    if held and not path.exists():
        write_text(path, json.dumps(held))


def require_same_split(path: Path, held: Mapping[str, list[int]]) -> None:
    """Refuse held-out images that are not those which were saved with the run."""
    if path.exists() and kept_split(path) != held:
        raise ValueError(f"{path} holds other images than the data give now; has the data set changed?")


def kept_split(path: Path) -> dict[str, list[int]]:
    """The row numbers that were saved with a run, by what they were held out for."""
    try:
        found = json.loads(read_text(path))
        names = {"held_out": "validation"}  # its name in runs of recipe version 1
        return {names.get(name, name): list(ids) for name, ids in found.items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise ValueError(f"{path} is damaged; remove it if the data set is the same as before") from None
