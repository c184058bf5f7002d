"""Predictions from arrays of NumPy: archives, and single arrays.

Nothing is unpickled, and the sizes that a file declares are not trusted.
"""

import math
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from counterpoise._blocks import rows_at_a_time
from counterpoise.predictions.columns import Layout
from counterpoise.predictions.compression import check_expansion
from counterpoise.predictions.digest import Source
from counterpoise.predictions.names import CLASS_NAMES, KNOWN
from counterpoise.predictions.prediction_file import RawTable, refusing
from counterpoise.predictions.table import Array, PredictionFileError, native

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0, (3, 0): npy.read_array_header_2_0}
_SAMPLE_ROWS = 1000


def open_npz(source: Source) -> RawTable:
    """Read an archive of NumPy, each of whose arrays is a column; this takes the memory of its arrays."""
    with refusing(source.path, what="NumPy archive"), source.reopened() as file:
        arrays = _read_archive(file, size=source.size)
        return of_arrays(source, arrays, what="NumPy archive")


def open_npy(source: Source) -> RawTable:
    """Read a single array of NumPy; the name of the file is that of the array."""
    with refusing(source.path, what="NumPy array"), source.reopened() as file:
        name = source.path.stem
        arrays = {name: _read_array(file, name, stored=source.size)}
        return of_arrays(source, arrays, what="NumPy array")


def of_arrays(source: Source, arrays: Mapping[str, Array], *, what: str) -> RawTable:
    """A table of which each array is a column; those of another number of rows make others."""
    names = arrays.get(CLASS_NAMES)
    class_names = None if names is None else _texts(names, CLASS_NAMES)
    tables = _columns({name: array for name, array in arrays.items() if name != CLASS_NAMES})
    first, *others = (_table(source, columns, what=what, class_names=class_names) for columns in tables)
    return replace(first, others=tuple(others))


def _table(source: Source, columns: Mapping[str, Array], *, what: str, class_names: tuple[str, ...] | None) -> RawTable:
    table = pa.record_batch([*(_as_column(array) for array in columns.values())], names=[*columns])

    def batches(wanted: Sequence[str], _layout: Layout | None) -> Iterator[pa.RecordBatch]:
        chosen = table.select([name for name in columns if name in wanted])
        step = rows_at_a_time(max(1, chosen.nbytes // table.num_rows))
        return (chosen.slice(row, step) for row in range(0, table.num_rows, step))

    return RawTable(
        source=source,
        what=what,
        sample=table.slice(0, min(_SAMPLE_ROWS, rows_at_a_time(max(1, table.nbytes // table.num_rows)))),
        rows=table.num_rows,
        batches=batches,
        members={name: array.shape[1] for name, array in columns.items() if array.ndim == 3},
        class_names=class_names,
    )


def _columns(arrays: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The arrays with a value for each row, by the number of rows; what most have, or the longest, first."""
    usable = {name: array for name, array in arrays.items() if array.ndim in (1, 2, 3)}
    lengths = Counter(len(array) for array in usable.values())
    if not lengths:
        raise PredictionFileError(f"it has no array of predictions, [n, K]; it has {', '.join(arrays) or 'none'}")
    order = sorted(lengths, key=lambda length: (lengths[length], length), reverse=True)
    if not order[0]:
        raise PredictionFileError("its arrays are empty")
    for name, array in usable.items():
        if min(array.shape) == 0:
            raise PredictionFileError(f"array {name!r} has shape {list(array.shape)}, of which none may be 0")
    return [{name: array for name, array in usable.items() if len(array) == rows} for rows in order]


def _as_column(array: Array) -> pa.Array:
    if array.dtype.kind == "U":
        return pa.array(_texts(array, "text"))
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    return flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, math.prod(array.shape[1:]))


def _texts(array: Array, name: str) -> tuple[str, ...]:
    if array.dtype.kind != "U" or array.ndim != 1:
        raise PredictionFileError(f"array {name!r} must be [n] of text, got {list(array.shape)} of {array.dtype}")
    texts = tuple(array.tolist())
    "".join(texts).encode()  # half a surrogate pair would fail later, when somebody writes or prints it
    return texts


def _read_archive(file: pa.NativeFile, *, size: int) -> dict[str, Array]:
    """Its arrays of numbers, booleans and text; what is of another type is passed over, unless its name is known."""
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise PredictionFileError("two of its arrays have one name; which is meant, nobody can tell")
        arrays = {}
        for name, entry in entries.items():
            try:
                arrays[name] = _read_entry(archive, entry, name, size=size)
            except ValueError:
                if name in KNOWN:
                    raise
    return arrays


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str, *, size: int) -> Array:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Python unpacks the other methods without a limit; NumPy writes neither of them.
        raise PredictionFileError(f"array {name!r} is compressed by method {entry.compress_type}; use numpy.savez")
    check_expansion(declared=entry.file_size, stored=min(entry.compress_size, size), what=f"array {name!r}")
    with archive.open(entry) as stream:
        return _read_array(stream, name, stored=entry.file_size)


def _read_array(stream: IO[bytes], name: str, *, stored: int) -> Array:
    """One array, after its declared shape and the bytes that there are agree."""
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise PredictionFileError(f"array {name!r} has version {version} of NumPy's format; save it anew")
    shape, fortran, dtype = _HEADERS[version](stream)
    if dtype.hasobject or dtype.kind not in "fiubU" or (dtype.kind == "f" and dtype.itemsize > 8):
        raise PredictionFileError(
            f"array {name!r} has dtype {dtype}; only numbers, booleans and text are read: convert it before saving"
        )
    declared, stored = math.prod(shape) * dtype.itemsize, stored - stream.tell()
    if declared != stored or min(shape, default=0) < 0:
        raise PredictionFileError(
            f"array {name!r} declares the shape {list(shape)} of {dtype}, {declared:,} bytes, and holds {stored:,}"
        )
    # Read by number: without one, an entry that is longer than the directory says is unpacked to its end.
    data = stream.read(declared)
    if len(data) != declared:
        raise PredictionFileError(f"array {name!r} ends after {len(data):,} of {declared:,} bytes")
    return native(np.frombuffer(data, dtype=dtype)).reshape(shape, order="F" if fortran else "C")
