"""The images that a run is asked to predict: those of any set, read as the run read its own."""

from pathlib import Path

from counterpoise.data.chunks import Progress
from counterpoise.data.decode import Survey, UnreadableImageError
from counterpoise.data.images import Images, load_images
from counterpoise.recipes.config import Recipe, Unreadable
from counterpoise.training.findings import left_out
from counterpoise.training.networks import Say
from counterpoise.training.shard_predictions import SKIPPING


def load_inputs(
    recipe: Recipe,
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
        recipe: of the run.
        data: as `counterpoise.data.resolve` takes it.
        split: of it.
        root: folder of the local data sets.
        domain: of it, for sets of domains.
        size: resize the shorter side to it and crop the centre; by default as the run did.
        unreadable: what is done with images that cannot be decoded; by default what the run did.
        progress: called with the rows read and the rows there are.
        say: told what was left out.
    """
    survey = Survey(skip=(unreadable or recipe.data.unreadable) == "skip")
    try:
        images = load_images(
            data,
            split,
            root=root,
            domain=domain,
            size=size or recipe.data.size,
            survey=survey,
            progress=progress,
        )
    except UnreadableImageError as error:
        raise ValueError(f"{error}; {SKIPPING}") from None
    for line in left_out(survey):
        say(line)
    return images
