"""What was found in somebody's own images and what was decided, in a few lines before training."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from counterpoise._text import printable
from counterpoise.data.decode import Survey
from counterpoise.data.images import Images
from counterpoise.data.sets import IMAGENET_MEAN, IMAGENET_STD
from counterpoise.data.sources import DataSource, loose_pictures
from counterpoise.recipes.config import Recipe
from counterpoise.recipes.methods import METHODS
from counterpoise.training.progress import say

_PAUSE = 5.0
_MOST = 5


def reading(name: str, *, what: str = "images") -> Callable[[int, int], None]:
    """Says now and then how many images, or what else there is, are read."""
    last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PAUSE:
            last = time.monotonic()
            say(f"reading {printable(name)}: {done:,} of {total:,} {what}")

    return progress


def missing_classes(recipe: Recipe, training: Images, validation: Images) -> Iterator[str]:
    """A warning for each class that is not trained on, and one for those without validation images."""
    counts = torch.bincount(training.labels, minlength=len(training.classes))
    remedy = ""
    if recipe.data.limit is not None and not recipe.data.spread:
        remedy = f" among the first {recipe.data.limit}; --data.spread takes them from the whole set"
    untrained = _named(training.classes, counts == 0)
    for name in untrained[:_MOST]:
        yield f"warning: there are no training images of {name}{remedy}"
    if len(untrained) > _MOST:
        yield f"warning: nor of {len(untrained) - _MOST} more classes"
    unseen = _named(validation.classes, torch.bincount(validation.labels, minlength=len(validation.classes)) == 0)
    if unseen:
        what = "class" if len(unseen) == 1 else "classes"
        yield f"warning: {len(unseen)} {what} without validation images: {_some(unseen)}"


def left_out(survey: Survey) -> Iterator[str]:
    """A warning of images that cannot be read, if there are any."""
    if survey.unreadable:
        several = len(survey.unreadable) > 1
        what = (
            f"{len(survey.unreadable):,} images cannot be read and are" if several else "1 image cannot be read and is"
        )
        yield f"warning: {what} left out: {_some(survey.unreadable)}"


def beside_classes(source: DataSource) -> Iterator[str]:
    """A warning of images that lie beside class folders, if there are any."""
    if source.kind == "folder" and source.info.classes:
        folders = dict.fromkeys(folder for stored in source.files.values() for folder in stored)
        if loose := [str(path) for folder in folders for path in loose_pictures(folder)]:
            what = f"{len(loose):,} images lie" if len(loose) > 1 else "1 image lies"
            yield f"warning: {what} beside the class folders, of no class, and left out: {_some(loose)}"


def findings(
    recipe: Recipe,
    images: Images,
    survey: Survey,
    *,
    normalised: Images,
    counts: Mapping[str, int],
    held_out: bool,
) -> Iterator[str]:
    """Images and classes, sizes, splits, normalisation, network: a line each.

    Args:
        recipe: of the run.
        images: all of the training split.
        survey: of all images that were read.
        normalised: some of them as they are normalised.
        counts: how many images are for what.
        held_out: whether some of the training split are not for training.
    """
    sizes = torch.bincount(images.labels, minlength=len(images.classes)).tolist()
    least, most = (f"{size:,} ({printable(images.classes[sizes.index(size)])})" for size in (min(sizes), max(sizes)))
    span = f"{least} to {most}" if min(sizes) < max(sizes) else f"{sizes[0]:,}"
    yield f"{printable(images.name)}: {len(images):,} images, {len(sizes):,} classes of {span}"
    yield from left_out(survey)
    height, width = images.pixels.shape[2:]
    yield f"sizes: {_sizes(survey.sizes)}" + ("" if recipe.data.size is None else f"; all become {width} x {height}")
    how = "as they are stored"
    if held_out:
        how = "each class in proportion" if recipe.data.stratify else "by chance"
    yield f"split: {', '.join(f'{count:,} for {what}' for what, count in counts.items())}, {how}"
    yield f"normalisation: {_normalisation(normalised, images)}"
    networks = f"{recipe.primary.name}, {recipe.primary.weights} weights"
    if METHODS[recipe.method].models > 1:
        same = recipe.auxiliary == recipe.primary
        other = "the same" if same else f"{recipe.auxiliary.name}, {recipe.auxiliary.weights} weights"
        networks += f"; auxiliary: {other}"
    yield f"network: {networks}; method: {recipe.method}"


def _normalisation(used: Images, stored: Images) -> str:
    mean, std = (", ".join(f"{value:.3f}" for value in values) for values in (used.mean, used.std))
    if (used.mean, used.std) == (IMAGENET_MEAN, IMAGENET_STD):
        origin = "ImageNet's"
    else:
        origin = "as the weights expect" if used.mean != stored.mean else printable(stored.name)
    return f"mean {mean}, standard deviation {std} ({origin})"


def _sizes(sizes: Sequence[tuple[int, int]]) -> str:
    """The smallest, the median and the largest by their pixels.

    >>> _sizes([(4, 3), (8, 6), (2, 2)]), _sizes([(4, 3), (4, 3)])
    ('2 x 2 to 8 x 6, median 4 x 3', 'all 4 x 3')
    """
    ordered = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    chosen = (ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1])
    least, middle, most = (f"{width} x {height}" for width, height in chosen)
    return f"all {least}" if ordered[0] == ordered[-1] else f"{least} to {most}, median {middle}"


def _named(classes: Sequence[str], which: Tensor) -> list[str]:
    return [printable(repr(classes[index])) for index in torch.nonzero(which).flatten().tolist()]


def _some(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return ", ".join(map(printable, texts[:_MOST])) + more
