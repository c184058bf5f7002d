"""Predictions from a NumPy archive, read without unpickling and without trusting the sizes that it declares."""

import math
import zipfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from counterpoise._blocks import rows_at_a_time
from counterpoise.predictions.digest import verified
from counterpoise.predictions.limits import check_expansion
from counterpoise.predictions.prediction_file import PredictionFile, notices_of, refusing
from counterpoise.predictions.table import (
    CATEGORIES,
    KINDS,
    MISSING_LABEL,
    Array,
    Category,
    Header,
    PredictionFileError,
    Predictions,
    as_ids,
    as_integers,
    native,
)

ARRAYS = ("labels", "ids", "class_names", *CATEGORIES, "severity", "in_distribution")
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0, (3, 0): npy.read_array_header_2_0}


def open_npz(path: Path) -> PredictionFile:
    """Read `logits` or `probabilities`, `[n, K]` or `[n, M, K]`, with `labels` (-1 for none) and the columns `ARRAYS`.

    An archive of NumPy cannot be read in parts: this takes the memory of its arrays.
    """
    with refusing(path, what="NumPy archive"), verified(path) as (source, file):
        table, ignored, has_ids = _read_table(file, size=source.size)

    def read() -> Iterator[Predictions]:
        step = rows_at_a_time(table.values[0].nbytes)
        for start in range(0, len(table), step):
            yield table.rows(start, start + step)

    return PredictionFile(
        path=path,
        kind=table.kind,
        classes=table.classes,
        members=table.members,
        rows=len(table),
        header=table.header,
        has_ids=has_ids,
        digest=source.digest,
        notices=notices_of(source, ignored),
        read=read,
    )


def _read_table(file: BufferedReader, *, size: int) -> tuple[Predictions, list[str], bool]:
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise PredictionFileError("two of its arrays have one name; which is meant, nobody can tell")
        kinds = [kind for kind in KINDS if kind in entries]
        if len(kinds) != 1:
            raise PredictionFileError(f"it needs one array 'logits' or 'probabilities'; it has {', '.join(entries)}")
        names = [name for name in entries if name in (*kinds, *ARRAYS)]
        arrays = {name: _read_array(archive, entries[name], name, archive_size=size) for name in names}
    values = arrays[kinds[0]]
    if values.ndim not in (2, 3) or not values.size:
        raise PredictionFileError(
            f"array {kinds[0]!r} has shape {list(values.shape)}; it must be [n, K] or [n, members, K], none of them 0"
        )
    rows = len(values)
    table = Predictions(
        kind=kinds[0],
        values=values,
        labels=as_integers(arrays["labels"], "array 'labels'") if "labels" in arrays else _unlabelled(rows),
        ids=as_ids(arrays["ids"]) if "ids" in arrays else np.arange(rows, dtype=np.int64),
        **{name: Category.of(_texts(arrays, name), rows) for name in CATEGORIES if name in arrays},
        severity=as_integers(arrays["severity"], "severity") if "severity" in arrays else None,
        in_distribution=arrays.get("in_distribution"),
        header=Header(class_names=tuple(_texts(arrays, "class_names")) if "class_names" in arrays else None),
    )
    return table, [name for name in entries if name not in names], "ids" in arrays


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str, *, archive_size: int) -> Array:
    """One array, after its declared shape, the size in the archive's directory and the archive itself agree."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Python unpacks the other methods without a limit; NumPy writes neither of them.
        raise PredictionFileError(f"array {name!r} is compressed by method {entry.compress_type}; use numpy.savez")
    check_expansion(declared=entry.file_size, stored=min(entry.compress_size, archive_size), what=f"array {name!r}")
    with archive.open(entry) as stream:
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            raise PredictionFileError(f"array {name!r} has version {version} of NumPy's format; save it anew")
        shape, fortran, dtype = _HEADERS[version](stream)
        if dtype.hasobject or dtype.kind not in "fiubU":
            raise PredictionFileError(
                f"array {name!r} has dtype {dtype}; only numbers, booleans and text are read: convert it before saving"
            )
        declared, stored = math.prod(shape) * dtype.itemsize, entry.file_size - stream.tell()
        if declared != stored or min(shape, default=0) < 0:
            raise PredictionFileError(
                f"array {name!r} declares the shape {list(shape)} of {dtype}, {declared:,} bytes, and holds {stored:,}"
            )
        # Read by number: without one, an entry that is longer than the directory says is unpacked to its end.
        data = stream.read(declared)
        if len(data) != declared:
            raise PredictionFileError(f"array {name!r} ends after {len(data):,} of {declared:,} bytes")
    return native(np.frombuffer(data, dtype=dtype)).reshape(shape, order="F" if fortran else "C")


def _unlabelled(rows: int) -> NDArray[np.int64]:
    return np.full(rows, MISSING_LABEL, np.int64)


def _texts(arrays: dict[str, Array], name: str) -> Any:
    array = arrays[name]
    if array.dtype.kind != "U" or array.ndim != 1:
        raise PredictionFileError(f"array {name!r} must be [n] of text, got {list(array.shape)} of {array.dtype}")
    texts = array.tolist()
    "".join(texts).encode()  # half a surrogate pair would fail later, when somebody writes or prints it
    return texts
