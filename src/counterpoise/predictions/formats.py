"""One file of predictions, in any of the formats."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from counterpoise._addresses import as_path
from counterpoise._files import FilePath
from counterpoise.predictions.arrays import open_npy, open_npz
from counterpoise.predictions.arrow import open_arrow
from counterpoise.predictions.columns import AmbiguousInputError, Columns, Reading
from counterpoise.predictions.compression import COMPRESSED, bare_suffix
from counterpoise.predictions.csv import open_csv
from counterpoise.predictions.digest import Source, checked
from counterpoise.predictions.json_files import open_json, open_json_lines
from counterpoise.predictions.layout import class_labels
from counterpoise.predictions.names import IDS, LABELS, VALUES, normal_name, some
from counterpoise.predictions.parquet import open_parquet
from counterpoise.predictions.prediction_file import PredictionFile, RawTable, prediction_file, refusing
from counterpoise.predictions.sample import texts_in
from counterpoise.predictions.table import MISSING_LABEL, Array, PredictionFileError, Predictions
from counterpoise.predictions.tensors import open_safetensors, open_torch

FORMATS: dict[str, Callable[[Source], RawTable]] = {
    ".parquet": open_parquet,
    ".csv": open_csv,
    ".tsv": open_csv,
    ".jsonl": open_json_lines,
    ".ndjson": open_json_lines,
    ".json": open_json,
    ".npz": open_npz,
    ".npy": open_npy,
    ".safetensors": open_safetensors,
    ".pt": open_torch,
    ".pth": open_torch,
    ".arrow": open_arrow,
    ".feather": open_arrow,
}
_Read = Callable[[range | None], Iterator[Predictions]]
_CURES = {
    (".bin", ".ckpt"): "write its tensors with safetensors.torch.save_file",
    (".pkl", ".pickle", ".joblib"): "write its table with pandas.DataFrame.to_parquet, or its arrays with numpy.savez",
    (".xlsx", ".xls", ".ods"): "save it as CSV UTF-8",
    (".txt", ".dat"): "rename it to .csv if it has a header line and a sample a line",
}
"""What to do with a file of another format, by suffix."""
_TEXT = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
_SINGLE = (".npy", ".pt", ".pth")
"""Formats in which predictions often stand alone, with the labels in a file beside theirs."""
_NAMED = (".json", ".pt", ".pth")
"""Formats of much else, settings and weights: of a folder's files these are read where they are named."""


def is_prediction_file(path: FilePath) -> bool:
    """Whether the suffix is that of a format."""
    suffix = bare_suffix(path)
    return suffix in FORMATS and (suffix in _TEXT or path.suffix.lower() not in COMPRESSED)


def is_shard(path: FilePath) -> bool:
    """Whether a file in a folder of predictions holds some, by its suffix."""
    return is_prediction_file(path) and bare_suffix(path) not in _NAMED


def unknown_format(path: FilePath) -> str:
    """What to say of a file whose suffix is that of no format."""
    cure = next((f"; {cure}" for suffixes, cure in _CURES.items() if path.suffix.lower() in suffixes), "")
    return f"{path}: predictions are read from {', '.join(FORMATS)}, told by the suffix{cure}"


def open_predictions(path: str | FilePath, columns: Columns | None = None) -> PredictionFile:
    """Open a file whose format is told by its suffix (`FORMATS`; text may be compressed).

    What its columns are is told by their names, or by `columns`; its rows are read in batches.

    Raises:
        AmbiguousInputError: the names leave a choice.
        PredictionFileError: the file is damaged or malformed, or larger in memory than its bytes can justify.
        FileNotFoundError: there is no such file.
    """
    return open_as(source_of(as_path(path)), Reading(columns or Columns()))


def source_of(path: FilePath, *, digest: str | None = None, size: int | None = None) -> Source:
    """A file, checked before it is read: that it is of a known format, and the one that digest and size are of."""
    if not is_prediction_file(path):
        raise PredictionFileError(unknown_format(path))
    with refusing(path, what="file"):
        return checked(path, digest=digest, size=size)


def open_as(source: Source, reading: Reading) -> PredictionFile:
    """The same, for a reading that may depend on other files."""
    path, labels, raw = source.path, reading.columns.labels, _raw(source)
    if reading.like is not None:
        return prediction_file(raw, reading)
    if labels is not None:
        table = _label_table(as_path(labels))
        texts = tuple(texts_in(table.raw.sample.column(table.name)))
        return _with_labels(prediction_file(raw, replace(reading, texts=texts)), table)
    file = prediction_file(raw, reading)
    if not file.layout.label and file.layout.correct is None and (beside := _labels_beside(path)) is not None:
        raise AmbiguousInputError(f"{path}: it has no labels", [({"labels": str(beside)}, "")])
    return file


def _raw(source: Source) -> RawTable:
    return FORMATS[bare_suffix(source.path)](source)


def _labels_beside(path: FilePath) -> FilePath | None:
    """A file in the same folder and format that is named as labels are, if this one may be a single array."""
    if path.suffix.lower() not in _SINGLE:
        return None
    return next((found for name in LABELS if (found := path.with_name(f"{name}{path.suffix}")).is_file()), None)


@dataclass(frozen=True)
class _LabelTable:
    """A file of labels, and the column that holds them."""

    raw: RawTable
    name: str


def _label_table(path: FilePath) -> _LabelTable:
    raw = _raw(source_of(path))
    names = raw.sample.schema.names
    known = [name for name in names if normal_name(name) in LABELS]
    found = known or [name for name in names if normal_name(name) not in IDS]
    if len(found) != 1:
        raise PredictionFileError(
            f"{path}: it needs one column of labels, such as 'label', and may have ids; its columns are {some(names)}"
        )
    return _LabelTable(raw, found[0])


def _with_labels(file: PredictionFile, table: _LabelTable) -> PredictionFile:
    """The file with the labels of another one: by id where both have ids, else row by row."""
    raw, path = table.raw, table.raw.source.path
    layout = replace(file.layout, label=("labels",))
    if layout.kind not in VALUES:
        raise PredictionFileError(
            f"{file.path}: it holds {layout.kind}; labels of a file of their own belong to classes"
        )
    column = raw.column(table.name)
    with refusing(path, what=raw.what):
        labels = class_labels(column, table.name, layout)
    notice = f"{file.path}: labels from {path}"
    ids = [name for name in raw.sample.schema.names if normal_name(name) in IDS]
    if layout.id is not None and len(ids) == 1:
        read = _joined(file, path, [str(each) for each in raw.column(ids[0]).to_pylist()], labels)
        notice += ", by id"
    else:
        read = _in_order(file, path, labels)
    return replace(file, layout=layout, read=read, group_rows=(), notices=(*file.notices, notice))


def _in_order(file: PredictionFile, path: FilePath, labels: Array) -> _Read:
    if file.rows not in (None, len(labels)):
        raise PredictionFileError(f"{path}: it has {len(labels):,} labels for the {file.rows:,} rows of {file.path}")

    def read(_: range | None) -> Iterator[Predictions]:
        row = 0
        for table in file.batches():
            if row + len(table) > len(labels):
                raise PredictionFileError(f"{path}: it has {len(labels):,} labels, and {file.path} has more rows")
            yield replace(table, labels=labels[row : row + len(table)])
            row += len(table)
        if row != len(labels):
            raise PredictionFileError(f"{path}: it has {len(labels):,} labels for the {row:,} rows of {file.path}")

    return read


def _joined(file: PredictionFile, path: FilePath, ids: list[str], labels: Array) -> _Read:
    """Rows whose id has no label have none; labels of other ids are of other predictions."""
    known = dict(zip(ids, labels.tolist(), strict=True))
    if len(known) != len(ids):
        repeated = Counter(ids).most_common(1)[0][0]
        raise PredictionFileError(f"{path}: the id {repeated!r} is there twice; keep one label for each")

    def read(_: range | None) -> Iterator[Predictions]:
        found = False
        for table in file.batches():
            here = [known.get(str(each), MISSING_LABEL) for each in table.ids.tolist()]
            found = found or any(label != MISSING_LABEL for label in here)
            yield replace(table, labels=np.array(here, np.int64))
        if not found:
            first = ", ".join(map(repr, ids[:3]))
            raise PredictionFileError(f"{path}: none of its ids, such as {first}, is one of {file.path}")

    return read
