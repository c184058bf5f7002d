"""Scikit-learn's digits, as rows like those of any set; their split is our own and fixed."""

import numpy as np
import torch

from counterpoise._extras import require
from counterpoise.data.chunks import Chunk, Rows
from counterpoise.data.holding_out import hold_out
from counterpoise.data.sets import ImageSet

_TEST = 360
_SEED = 0


def digit_rows(info: ImageSet, split: str) -> Rows:
    """The rows of a split; their numbers are those of the whole."""
    bunch = require("sklearn.datasets", extra="train", purpose="the digits data set").load_digits()
    stored = len(bunch.target)
    train, test = hold_out(stored, size=_TEST, seed=_SEED)
    splits = {"train": train, "test": test, "all": torch.arange(stored)}
    if split not in splits:
        raise ValueError(f"digits has the splits {', '.join(map(repr, splits))}, not {split!r}")
    ids = splits[split].numpy()
    pixels = np.round(bunch.images[ids] * (255 / 16)).astype(np.uint8)
    encoded = [b"P5 %d %d 255\n" % image.shape[::-1] + image.tobytes() for image in pixels]
    chunk = Chunk(encoded, bunch.target[ids].astype(np.int64), ids, [info.name] * len(ids))
    return Rows(stored, len(ids), info.classes, iter([chunk]))
