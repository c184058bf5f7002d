"""One file of predictions, in any of the formats."""

from collections.abc import Callable
from dataclasses import replace

from counterpoise._addresses import as_path
from counterpoise._files import FilePath
from counterpoise.predictions.arrays import open_npy, open_npz
from counterpoise.predictions.arrow import open_arrow
from counterpoise.predictions.columns import AmbiguousInputError, Columns, Reading
from counterpoise.predictions.compression import COMPRESSED, bare_suffix
from counterpoise.predictions.csv import open_csv
from counterpoise.predictions.digest import Source, checked
from counterpoise.predictions.json_files import open_json, open_json_lines
from counterpoise.predictions.labels_beside import with_labels
from counterpoise.predictions.names import LABELS
from counterpoise.predictions.parquet import open_parquet
from counterpoise.predictions.prediction_file import PredictionFile, RawTable, named_table, prediction_file, refusing
from counterpoise.predictions.table import PredictionFileError
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
    with refusing(path, what=raw.what):
        raw = named_table(raw, reading.columns)
    if reading.like is not None:
        return prediction_file(raw, reading)
    if labels is not None:
        raw, columns, notice = with_labels(raw, _raw(source_of(as_path(labels))), reading.columns)
        file = prediction_file(raw, replace(reading, columns=columns))
        return replace(file, notices=(*file.notices, f"{path}: {notice}"))
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
