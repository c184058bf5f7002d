"""Data sets by name or path, splits, augmentation.

What needs torch is loaded when it is used, and so is what decodes images or reaches the hub.
"""

from typing import TYPE_CHECKING

from counterpoise._lazy import lazily
from counterpoise.data.sets import SETS, ImageSet
from counterpoise.data.sources import DataSource, resolve

if TYPE_CHECKING:
    from counterpoise.data.augment import Augmentation, normalised
    from counterpoise.data.holding_out import hold_out, hold_out_hashed
    from counterpoise.data.images import Images, load_images
    from counterpoise.data.memory import Batch, MemoryLoader
    from counterpoise.data.official_corruptions import official_corrupted
    from counterpoise.data.stream import StreamLoader, sample_ids
    from counterpoise.data.tars import index_shards
    from counterpoise.data.transforms import Mixing, Transforms
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "augment": "Augmentation normalised",
            "holding_out": "hold_out hold_out_hashed",
            "images": "Images load_images",
            "memory": "Batch MemoryLoader",
            "official_corruptions": "official_corrupted",
            "stream": "StreamLoader sample_ids",
            "tars": "index_shards",
            "transforms": "Mixing Transforms",
        },
    )

__all__ = [
    "SETS",
    "Augmentation",
    "Batch",
    "DataSource",
    "ImageSet",
    "Images",
    "MemoryLoader",
    "Mixing",
    "StreamLoader",
    "Transforms",
    "hold_out",
    "hold_out_hashed",
    "index_shards",
    "load_images",
    "normalised",
    "official_corrupted",
    "resolve",
    "sample_ids",
]
