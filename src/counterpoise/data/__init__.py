"""Data sets by name or path, splits, augmentation, corruptions.

Importing this loads torch and numpy; what decodes images or reaches the hub is loaded when it is used.
"""

from counterpoise.data.augment import Augmentation, normalised
from counterpoise.data.images import Images, hold_out, load_images
from counterpoise.data.memory import Batch, MemoryLoader
from counterpoise.data.sets import SETS, ImageSet
from counterpoise.data.sources import DataSource, resolve
from counterpoise.data.stream import StreamLoader, sample_ids

__all__ = [
    "SETS",
    "Augmentation",
    "Batch",
    "DataSource",
    "ImageSet",
    "Images",
    "MemoryLoader",
    "StreamLoader",
    "hold_out",
    "load_images",
    "normalised",
    "resolve",
    "sample_ids",
]
