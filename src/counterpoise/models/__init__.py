"""Backbones by name."""

from counterpoise.models.backbone import Backbone, build_model, list_models

__all__ = ["Backbone", "build_model", "list_models"]
