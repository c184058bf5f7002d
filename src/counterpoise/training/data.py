"""The images of a run: what is trained on, held out, tested, and out of distribution (OOD)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from counterpoise.data.augment import Augmentation
from counterpoise.data.balance import class_weights
from counterpoise.data.chunks import UNLABELLED, class_places
from counterpoise.data.decode import Survey, UnreadableImageError
from counterpoise.data.holding_out import evenly, limited
from counterpoise.data.images import Images, decoded_rows, load_images, require_labels
from counterpoise.data.memory import MemoryLoader
from counterpoise.data.row_groups import class_counts, open_split, rows_of
from counterpoise.data.rows import read_rows
from counterpoise.data.sources import FILES, ood_split, resolve
from counterpoise.data.stream import StreamLoader
from counterpoise.data.transforms import OWN_SIZE, Mixing, Transforms
from counterpoise.models.weights import expected_normalisation
from counterpoise.recipes.config import DataOptions, Recipe
from counterpoise.recipes.methods import METHODS
from counterpoise.training.findings import beside_classes, findings, left_out, missing_classes, reading
from counterpoise.training.progress import say
from counterpoise.training.splits import (
    TEST_SEED,
    Splits,
    fingerprints_of,
    held_out,
    held_out_of_stream,
    is_own,
    require_test_images,
    splits_of,
    stored_ids,
)

Loader = MemoryLoader | StreamLoader


@dataclass(frozen=True)
class RunData:
    """Images for a run; all are loaded when they are needed.

    Attributes:
        training: makes the loader of one rank from `seed`, `rank` and `world`; the seed decides order and augmentation.
        example: one or more of the images, which tell the shape, classes and normalisation of all.
        load_validation: reads the validation images, once.
        validation_rows: their row numbers in the training split, or None where they are not a part of it.
        class_weights: of the training loss, float32 `[K]`; None where all samples weigh alike.
        test: the test images.
        test_rows: their row numbers in the training split, or None where they are not a part of it.
        ood: other images by name.
        notes: what was found and decided, line by line, to be shown before training.
        recipe: that the loader and the parts were made for; None where nobody made them for one.
        fingerprints: makes a digest of the content of each part, by its name.
    """

    training: Callable[[int, int, int], Loader]
    example: Images
    load_validation: Callable[[], Images]
    validation_rows: Tensor | None = None
    class_weights: Tensor | None = None
    test: Callable[[], Images] | None = None
    test_rows: Tensor | None = None
    ood: Mapping[str, Callable[[], Images]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    recipe: Recipe | None = None
    fingerprints: Callable[[], Mapping[str, str]] = dict

    @property
    def validation(self) -> Images:
        return self.load_validation()

    @property
    def held_out(self) -> dict[str, list[int]]:
        """Row numbers in the training split of what is not trained on, by its name."""
        held = {"validation": self.validation_rows, "test": self.test_rows}
        return {name: rows.tolist() for name, rows in held.items() if rows is not None}

    @property
    def validation_count(self) -> int:
        """How many there are; those of a stream are not read for it."""
        return len(self.validation if self.validation_rows is None else self.validation_rows)


def named_data(recipe: Recipe, *, root: Path | None = None) -> RunData:
    """The data sets that a recipe names."""
    options, source = recipe.data, resolve(recipe.data.name, root=root)
    splits = splits_of(source, options)
    most = recipe.evaluation.images
    test = partial(_own_images, recipe, splits.test, root=root, limit=most) if splits.test else None
    digests = partial(fingerprints_of, recipe, root=root)
    others = {name: partial(_ood_images, recipe, name, root=root, limit=most) for name in recipe.evaluation.ood}
    if options.pipeline == "stream":
        data = _streamed(recipe, splits, root=root)
        return replace(data, test=test or data.test, ood=others, fingerprints=digests)
    survey = Survey(skip=options.unreadable == "skip")
    whole = OWN_SIZE in options.augment
    images = _own_images(recipe, splits.training, root=root, limit=options.limit, survey=survey, whole=whole)
    validation = (
        _own_images(recipe, splits.validation, root=root, limit=None, survey=survey) if splits.validation else None
    )
    data = replace(from_images(recipe, images, validation=validation, test=test, ood=others), fingerprints=digests)
    if is_own(source):
        held = [rows for rows in (data.validation_rows, data.test_rows) if rows is not None]
        counts = {"training": len(images) - sum(map(len, held)), "validation": len(data.validation)}
        if data.test_rows is not None:
            counts["testing"] = len(data.test_rows)
        elif splits.test is not None and splits.test in source.files and source.kind in FILES:
            counts["testing"] = read_rows(source, splits.test).stored
        notes = findings(recipe, images, survey, normalised=data.validation, counts=counts, held_out=bool(held))
        data = replace(data, notes=(*notes, *beside_classes(source), *data.notes))
    return data


def from_images(
    recipe: Recipe,
    images: Images,
    *,
    validation: Images | None = None,
    test: Callable[[], Images] | None = None,
    ood: Mapping[str, Callable[[], Images]] | None = None,
) -> RunData:
    """Training images in memory, of which some are held out, unless there are validation and test images."""
    images = normalised_for(recipe, images)
    require_labels(images.labels, images.ids, where=[images.name] * len(images))
    options, training = recipe.data, images
    images = replace(images, whole=None)
    kept = torch.arange(len(images))
    held = tested = None
    if test is None and options.test is not None:
        kept, tested = held_out(images.labels, size=options.test, seed=TEST_SEED, stratify=options.stratify)
        test = partial(images.take, tested[limited(len(tested), recipe.evaluation.images, spread=options.spread)])
    if validation is None:
        rest, chosen = held_out(
            images.labels[kept],
            size=options.validation,
            seed=recipe.seed,
            stratify=options.stratify,
            rule=options.held_out_rule,
        )
        kept, held = kept[rest], kept[chosen]
        validation = images.take(held)
    else:
        require_labels(validation.labels, validation.ids, where=[validation.name] * len(validation))
        validation = _like_training(validation, images)
    _require_steps(recipe, len(kept))
    training = training.take(kept)
    transforms, mixing = _varied(recipe, training)
    counts = torch.bincount(training.labels, minlength=len(training.classes))
    return RunData(
        training=lambda seed, rank, world: MemoryLoader(
            training,
            batch=recipe.batch,
            seed=seed,
            augmentation=augmentation(recipe, training),
            shuffle=True,
            drop_last=True,
            rank=rank,
            world=world,
            transforms=transforms,
            workers=recipe.data.workers,
            mixing=mixing,
            balance=recipe.data.balance == "sampler",
        ),
        example=validation,
        load_validation=lambda: validation,
        validation_rows=None if held is None else images.ids[held],
        class_weights=class_weights(counts) if recipe.data.balance == "weights" else None,
        test=test,
        test_rows=None if tested is None else images.ids[tested],
        ood=ood or {},
        notes=tuple(missing_classes(recipe, training, validation)),
        recipe=recipe,
        fingerprints=lambda: {"training": training.digest, "validation": validation.digest},
    )


def _like_training(validation: Images, training: Images) -> Images:
    """Validation images with the classes of the training images, in their order, and normalised as they are."""
    require_same_kind(validation, shape=training.pixels.shape[1:], classes=training.classes)
    places = torch.from_numpy(class_places(validation.classes, training.classes, where=validation.name))
    labels = places[validation.labels]
    return replace(validation, labels=labels, classes=training.classes, mean=training.mean, std=training.std)


def _streamed(recipe: Recipe, splits: Splits, *, root: Path | None) -> RunData:
    """Training images that are read as they are needed; those held out are in memory once they are."""
    options, source = recipe.data, resolve(recipe.data.name, root=root)
    told = reading(f"{options.name}, {splits.training}", what="files")
    opened = open_split(source, splits.training, domain=options.domain, progress=told)
    total = opened.taking_part
    if options.limit is not None and options.limit < total:
        chosen = opened.numbers(evenly(total, options.limit)) if options.spread else None
        opened = opened.head(options.limit) if chosen is None else opened.only(chosen)
        total = options.limit
    tested, rows = map(opened.numbers, held_out_of_stream(options, splits, rows=total, seed=recipe.seed))
    training = opened.without(torch.cat([tested, rows]))
    _require_steps(recipe, training.taking_part)
    where = f"{source.info.name}, split {splits.training!r} at {source.location}"
    example = normalised_for(recipe, decoded_rows(rows_of(opened.head(1)), source.info, size=options.size, where=where))

    def decoded(chosen: Tensor, what: str) -> Images:
        told = reading(f"{options.name}, {what} images")
        return decoded_rows(rows_of(opened.only(chosen)), source.info, size=options.size, where=where, progress=told)

    @cache
    def validation() -> Images:
        stored = splits.validation
        found = _own_images(recipe, stored, root=root, limit=None) if stored else decoded(rows, "validation")
        require_labels(found.labels, found.ids, where=[found.name] * len(found))
        return _like_training(found, example)

    some = limited(len(tested), recipe.evaluation.images, spread=options.spread)
    transforms, mixing = _varied(recipe, example)
    return RunData(
        training=lambda seed, rank, world: StreamLoader(
            options.name,
            splits.training,
            batch=recipe.batch,
            seed=seed,
            augmentation=augmentation(recipe, example),
            shuffle=True,
            drop_last=True,
            workers=options.workers,
            window=options.window,
            size=options.size,
            labelled=True,
            mean=example.mean,
            std=example.std,
            rank=rank,
            world=world,
            transforms=transforms,
            mixing=mixing,
            opened=training,
        ),
        example=example,
        load_validation=validation,
        validation_rows=rows if splits.validation is None else None,
        class_weights=class_weights(class_counts(training)) if options.balance == "weights" else None,
        test=partial(decoded, tested[some], "test"),
        test_rows=tested if len(tested) else None,
    )


def require_made_for(recipe: Recipe, data: RunData) -> None:
    """Refuse images whose loader and parts are those of another recipe."""
    if data.recipe is None:
        return
    made, wanted = (_decided_by(each) for each in (data.recipe, recipe))
    if changed := next((name for name in wanted if made[name] != wanted[name]), None):
        raise ValueError(
            f"the images were made for a recipe whose {changed} is {made[changed]!r}, and here it is "
            f"{wanted[changed]!r}: make them with from_images(recipe, ...) for each recipe"
        )


def _decided_by(recipe: Recipe) -> dict[str, object]:
    options = {f"data.{each.name}": getattr(recipe.data, each.name) for each in fields(recipe.data)}
    return {"seed": recipe.seed, "batch": recipe.batch, "evaluation.images": recipe.evaluation.images} | options


_SKIPPING = "remove it, or leave out what cannot be read: --data.unreadable skip"


def require_evaluable(recipe: Recipe, validation: Images, *, root: Path | None) -> None:
    """Look at one image of every set that is predicted after training, so that nothing is trained in vain."""
    shape, most = validation.pixels.shape[1:], recipe.evaluation.images
    source = resolve(recipe.data.name, root=root)
    require_test_images(source, recipe.data)
    split = splits_of(source, recipe.data).test
    if split is not None:
        # Of image files, any may be damaged; a test after hours of training would be a bad time to learn of it.
        test = _own_images(recipe, split, root=root, limit=most if source.kind in FILES else 1)
        require_same_kind(test, shape=shape, classes=validation.classes)
        if not _has_labels(test) and not _has_labels(_own_images(recipe, split, root=root, limit=most)):
            raise ValueError(
                f"the test images of {test.name} have no labels, so that nothing could be measured on them"
            )
    for name in recipe.evaluation.ood:
        limit = most if resolve(name, root=root).kind in FILES else 1
        require_same_kind(_ood_images(recipe, name, root=root, limit=limit), shape=shape, classes=None)


def normalised_for(recipe: Recipe, images: Images) -> Images:
    """The images with the normalisation that the primary's weights expect, where they are not random."""
    expected = expected_normalisation(recipe.primary, channels=images.pixels.shape[1])
    return images if expected is None else replace(images, mean=expected.mean, std=expected.std)


def _has_labels(images: Images) -> bool:
    return bool((images.labels != UNLABELLED).any())


def _own_images(
    recipe: Recipe,
    split: str,
    *,
    root: Path | None,
    limit: int | None,
    survey: Survey | None = None,
    whole: bool = False,
) -> Images:
    options, ids = recipe.data, None
    if options.spread and limit is not None:
        ids = stored_ids(options, split, root=root, limit=limit)
    return _stored_images(options, split, root=root, ids=ids, limit=limit, survey=survey, whole=whole)


def _stored_images(
    options: DataOptions,
    split: str,
    *,
    root: Path | None,
    ids: Tensor | None,
    limit: int | None,
    survey: Survey | None = None,
    whole: bool = False,
) -> Images:
    """Images of a split; of a set to be streamed no copy is made, because it may be larger than a disk."""
    found = survey or Survey(skip=options.unreadable == "skip")
    try:
        images = load_images(
            options.name,
            split,
            root=root,
            domain=options.domain,
            ids=ids,
            limit=limit,
            size=options.size,
            in_place=options.pipeline == "stream",
            whole=whole,
            survey=found,
            progress=reading(f"{options.name}, {split}"),
        )
    except UnreadableImageError as error:
        raise ValueError(f"{error}; {_SKIPPING}") from None
    for line in () if survey else left_out(found):
        say(line)
    return images


def _ood_images(recipe: Recipe, name: str, *, root: Path | None, limit: int | None) -> Images:
    split = ood_split(name, root=root)
    survey = Survey(skip=recipe.data.unreadable == "skip")
    try:
        images = load_images(name, split, root=root, limit=limit, size=recipe.data.size, survey=survey)
    except UnreadableImageError as error:
        raise ValueError(f"{error}; {_SKIPPING}") from None
    for line in left_out(survey):
        say(line)
    # Sets of one name would be scored as one: near/test.parquet and far/test.parquet.
    names = [resolve(other, root=root).info.name for other in recipe.evaluation.ood]
    return images if names.count(images.name) == 1 else replace(images, name=name)


def require_same_kind(images: Images, *, shape: tuple[int, ...], classes: tuple[str, ...] | None) -> None:
    """Refuse images of another shape or, unless they are OOD (None), of classes that the model does not know."""
    found = images.pixels.shape[1:]
    if found != shape:
        remedy = f"resize them with --size {shape[2]} (of a recipe: data.size), or use another set"
        if shape[1] != shape[2]:
            remedy = f"resize them to {shape[2]} x {shape[1]} beforehand, or use another set"
        if found[0] != shape[0]:
            remedy = f"use a set whose images have {shape[0]} channel{'s' if shape[0] > 1 else ''}"
        theirs, ours = (f"{each[2]} x {each[1]} x {each[0]}" for each in (found, shape))
        raise ValueError(
            f"{images.name} has images of {theirs} (width x height x channels), the model "
            f"was trained on {ours}; {remedy}"
        )
    if classes is not None:
        class_places(images.classes, classes, where=images.name)


def _require_steps(recipe: Recipe, rows: int) -> None:
    """Refuse epochs without a step."""
    pruned = int(recipe.pruning.share * rows) if METHODS[recipe.method].prunes else 0
    if rows - pruned < recipe.batch:
        left = f"{rows} training images" + (f" but {pruned} that are pruned" if pruned else "")
        smaller = f"choose a smaller batch (--batch {max(1, (rows - pruned) // 2)}), or hold out fewer images"
        raise ValueError(f"a batch of {recipe.batch} is more than the {left}; {smaller}")


def augmentation(recipe: Recipe, images: Images) -> Augmentation | None:
    """Random crops and flips, where the recipe and the data set agree to flips; none where it names transforms."""
    if recipe.data.augment:
        return None
    return Augmentation(padding=recipe.data.padding, flip=recipe.data.flip and images.flip)


def _varied(recipe: Recipe, images: Images) -> tuple[Transforms | None, Mixing | None]:
    """What the recipe makes of training images, if not crops and flips alone."""
    options, shape = recipe.data, tuple(images.pixels.shape[1:])
    mixing = Mixing(options.mixup, options.cutmix, len(images.classes)) if options.mixes else None
    return Transforms(options.augment, shape) if options.augment else None, mixing
