"""Paths, checked before the work that they are for, and before torch is imported for it."""

import os
from collections.abc import Iterable
from pathlib import Path

from counterpoise._addresses import Address
from counterpoise._files import FilePath


def require_prediction_files(paths: Iterable[FilePath]) -> None:
    """Refuse files that are not there, or are of another format; of a store only the format is known yet."""
    from counterpoise.predictions.formats import is_prediction_file, unknown_format

    for path in paths:
        if isinstance(path, Path) and not path.exists():
            raise FileNotFoundError(f"{path}: there is no such file; a folder or a glob in quotes stands for its files")
        if not is_prediction_file(path):
            raise ValueError(unknown_format(path))


def require_file_path(path: FilePath, *, option: str) -> None:
    """Refuse a folder, and a file in a folder that does not exist or cannot be written to; a store is not asked yet."""
    if isinstance(path, Address):
        return
    if path.is_dir():
        raise ValueError(f"{option} {path} is a folder: name a file in it")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}")
    _require_writable(path.absolute().parent, path, option=option)


def require_folder_path(path: Path, *, option: str) -> None:
    """Refuse what is a file, or lies below one; folders that do not exist can be made."""
    absolute = path.absolute()
    nearest = next(place for place in (absolute, *absolute.parents) if place.exists())
    if not nearest.is_dir():
        raise ValueError(f"{option} {path}: {nearest} is a file, name a folder")
    _require_writable(nearest, path, option=option)


def _require_writable(folder: Path, path: Path, *, option: str) -> None:
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{option} {path}: the folder {folder} cannot be written to")
