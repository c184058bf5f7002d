"""A look at the data before the first cell: what is missing is said once, and not by every cell."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from counterpoise.data.images import load_images
from counterpoise.training.data import require_evaluable
from counterpoise_study.requests import Request


def require_data(requests: Sequence[Request], *, root: Path | None) -> None:
    """Open every data set that the settings name, and look at one image of each that is predicted."""
    seen = set()
    for setting in (setting for request in requests for setting in request.settings):
        options, evaluation = setting.recipe.data, replace(setting.recipe.evaluation, batch=1)
        looked_at = (options.name, options.domain, options.size, evaluation)
        if looked_at in seen:
            continue
        seen.add(looked_at)
        images = load_images(
            options.name,
            "train",
            root=root,
            domain=options.domain,
            limit=1,
            size=options.size,
            in_place=options.pipeline == "stream",
        )
        require_evaluable(setting.recipe, images, root=root)
