"""Backbones by name."""

from counterpoise.models.backbone import Backbone, build_model, list_models
from counterpoise.models.pairs import Normalisation, Renormalised, normalisation_of, require_same_images

__all__ = [
    "Backbone",
    "Normalisation",
    "Renormalised",
    "build_model",
    "list_models",
    "normalisation_of",
    "require_same_images",
]
