"""Backbones by name."""

from typing import TYPE_CHECKING

from counterpoise._lazy import lazily
from counterpoise.models.backbone import Backbone

if TYPE_CHECKING:
    from counterpoise.models.build import build_model, list_models
    from counterpoise.models.pairs import Normalisation, Renormalised, normalisation_of, require_same_images
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "build": "build_model list_models",
            "pairs": "Normalisation Renormalised normalisation_of require_same_images",
        },
    )

__all__ = [
    "Backbone",
    "Normalisation",
    "Renormalised",
    "build_model",
    "list_models",
    "normalisation_of",
    "require_same_images",
]
