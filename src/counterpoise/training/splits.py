"""Which images of a set are trained on, validated with and tested on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from counterpoise._addresses import read_text
from counterpoise._files import write_text
from counterpoise._json import parsed
from counterpoise.data.fingerprint import fingerprint
from counterpoise.data.holding_out import hold_out, hold_out_by_class, hold_out_hashed, limited
from counterpoise.data.images import load_images
from counterpoise.data.rows import read_rows
from counterpoise.data.sources import FILES, WHOLE, DataSource, ood_split, pictures_in, resolve
from counterpoise.data.stream import sample_ids
from counterpoise.data.tables import SUFFIXES, read_table
from counterpoise.recipes.config import DataOptions, HeldOutRows, Recipe

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
    validation = "validation" if is_own(source) and "validation" in stored else None
    # Without either, that there are none is said where they are needed: a search chooses by validation images alone.
    return Splits(training, validation, "test" if "test" in stored or options.test is None else None)


def fingerprints_of(recipe: Recipe, *, root: Path | None) -> dict[str, str]:
    """Digests of the content of the splits and the OOD sets that a run reads."""
    options, source = recipe.data, resolve(recipe.data.name, root=root)
    there = None if source.info.domains else source.files or None
    used = [each for each in splits_of(source, options) if each is not None and (there is None or each in there)]
    found = {split: fingerprint(source, split, domain=options.domain) for split in used}
    for name in recipe.evaluation.ood:
        found[f"ood {name}"] = fingerprint(resolve(name, root=root), ood_split(name, root=root))
    return found


def stored_ids(options: DataOptions, split: str, *, root: Path | None, limit: int | None) -> Tensor:
    """Row numbers of a split, or of so many of them as the options choose, int64 `[n]`."""
    every = _every_id(options, split, root=root)
    return every[limited(len(every), limit, spread=options.spread)]


def _every_id(options: DataOptions, split: str, *, root: Path | None) -> Tensor:
    source = resolve(options.name, root=root)
    if source.kind == "scikit-learn":
        return load_images(options.name, split).ids
    if source.kind in FILES:
        return torch.arange(read_rows(source, split).stored)
    return sample_ids(options.name, split, root=root, domain=options.domain)


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


def held_out_of_stream(options: DataOptions, splits: Splits, *, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sorted positions of the test images and of the validation images among some rows; none of what is stored."""
    none = torch.tensor([], dtype=torch.int64)
    tested = (
        none
        if splits.test is not None or options.test is None
        else hold_out(rows, size=options.test, seed=TEST_SEED)[1]
    )
    if splits.validation is not None:
        return tested, none
    chosen = held_out_rows(rows - len(tested), size=options.validation, seed=seed, rule=options.held_out_rule)
    return tested, chosen + torch.searchsorted(tested - torch.arange(len(tested)), chosen, right=True)


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
        raise ValueError(
            f"{path} holds other images than the data give now: they have changed; restore them, or start another run"
        )


def kept_split(path: Path) -> dict[str, list[int]]:
    """The row numbers that were saved with a run, by what they were held out for."""
    try:
        found = parsed(read_text(path))
        names = {"held_out": "validation"}  # its name in runs of recipe version 1
        return {names.get(name, name): list(ids) for name, ids in found.items()}
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{path} is damaged; remove it if the data set is the same as before") from None
