"""The images that a run is asked to predict: those of any set, read as the run read its own."""

from pathlib import Path

import torch

from counterpoise.data.chunks import Progress
from counterpoise.data.decode import Survey, UnreadableImageError
from counterpoise.data.images import Images, load_images
from counterpoise.data.sources import resolve
from counterpoise.recipes.config import Unreadable
from counterpoise.training.findings import beside_classes, left_out
from counterpoise.training.networks import Say
from counterpoise.training.own_data import OwnData
from counterpoise.training.shard_predictions import SKIPPING


def load_inputs(
    own: OwnData,
    data: str,
    split: str,
    *,
    root: Path | None = None,
    domain: str | None = None,
    size: int | None = None,
    unreadable: Unreadable | None = None,
    progress: Progress | None = None,
    say: Say = lambda _: None,
) -> Images:
    """Images in memory.

    Args:
        own: what the run was trained on.
        data: as `counterpoise.data.resolve` takes it.
        split: of it; of the run's own data also what it held out of the training split, `test` or `validation`.
        root: folder of the local data sets.
        domain: of it, for sets of domains.
        size: resize the shorter side to it and crop the centre; by default as the run did.
        unreadable: what is done with images that cannot be decoded; by default what the run did.
        progress: called with the rows read and the rows there are.
        say: told what was left out, and of images that the run was trained on.
    """
    options, source = own.options, resolve(data, root=root)
    is_own = domain is None and own.is_of(data, source, split, say=say)
    held = own.held_rows(source, split) if is_own else None
    survey = Survey(skip=(unreadable or options.unreadable) == "skip")
    try:
        images = load_images(
            data,
            split if held is None else own.training_split(source),
            root=root,
            domain=domain,
            ids=held,
            size=size or options.size,
            survey=survey,
            progress=progress,
        )
    except UnreadableImageError as error:
        raise ValueError(f"{error}; {SKIPPING}") from None
    for line in (*left_out(survey), *beside_classes(source)):
        say(line)
    if is_own and held is None:
        trained = torch.isin(images.ids, own.trained_rows(data, source, split, root=root)).sum()
        if trained:
            say(own.note(int(trained)))
    return images
