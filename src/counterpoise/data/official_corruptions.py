"""The published files of CIFAR-10-C and CIFAR-100-C."""

import tokenize
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from counterpoise._choices import SEVERITIES, require_corruption


def official_corrupted(folder: str | Path, corruption: str, severity: int) -> tuple[Tensor, Tensor]:
    """Images `[n, 3, height, width]` as bytes and labels `[n]`, n = 10,000 in the published files.

    `<corruption>.npy` holds all images at severity 1, then at 2, and so on, `[5 n, height, width, 3]`; `labels.npy` a
    label for each. Only the rows that are asked for are read.
    """
    require_corruption(corruption, severity)
    images_file, labels_file = Path(folder) / f"{corruption}.npy", Path(folder) / "labels.npy"
    images, labels = _mapped(images_file), _mapped(labels_file)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or len(images) % len(SEVERITIES):
        raise ValueError(
            f"{images_file} must hold uint8 of shape [{len(SEVERITIES)} n, height, width, 3], one part for each "
            f"severity, but holds {images.dtype} {list(images.shape)}; is it a file of CIFAR-10-C or CIFAR-100-C?"
        )
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{labels_file} must hold integers of shape [{len(images)}], a label for each image of {images_file.name}, "
            f"but holds {labels.dtype} {list(labels.shape)}"
        )
    count = len(images) // len(SEVERITIES)
    rows = slice((severity - 1) * count, severity * count)
    pixels = torch.from_numpy(np.array(images[rows])).permute(0, 3, 1, 2).contiguous()
    return pixels, torch.from_numpy(labels[rows].astype(np.int64))


def _mapped(file: Path) -> np.ndarray:
    if not file.is_file():
        raise ValueError(f"{file} is missing; unpack CIFAR-10-C or CIFAR-100-C there")
    try:
        # Unlike `numpy.load`, it opens nothing but plain arrays of numbers, and no pickle in any case.
        return np.lib.format.open_memmap(file, mode="r")
    except (ValueError, EOFError, tokenize.TokenError) as error:
        raise ValueError(f"{file} is not a whole .npy file of numbers: {error}") from None
