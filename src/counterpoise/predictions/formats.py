"""One file of predictions, in any of the formats."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from counterpoise.predictions.arrays import open_npy, open_npz, open_safetensors
from counterpoise.predictions.arrow import open_arrow
from counterpoise.predictions.columns import LABELS, VALUES, AmbiguousInputError, Columns, Reading
from counterpoise.predictions.compression import COMPRESSED, bare_suffix
from counterpoise.predictions.csv import open_csv
from counterpoise.predictions.json_lines import open_json_lines
from counterpoise.predictions.layout import class_labels
from counterpoise.predictions.parquet import open_parquet
from counterpoise.predictions.prediction_file import PredictionFile, RawTable, prediction_file, refusing
from counterpoise.predictions.table import PredictionFileError, Predictions

FORMATS: dict[str, Callable[[Path], RawTable]] = {
    ".parquet": open_parquet,
    ".csv": open_csv,
    ".tsv": open_csv,
    ".jsonl": open_json_lines,
    ".ndjson": open_json_lines,
    ".npz": open_npz,
    ".npy": open_npy,
    ".safetensors": open_safetensors,
    ".arrow": open_arrow,
    ".feather": open_arrow,
}
_TEXT = (".csv", ".tsv", ".jsonl", ".ndjson")


def is_prediction_file(path: Path) -> bool:
    """Whether the suffix is that of a format."""
    suffix = bare_suffix(path)
    return suffix in FORMATS and (suffix in _TEXT or path.suffix.lower() not in COMPRESSED)


def open_predictions(path: str | Path, columns: Columns | None = None) -> PredictionFile:
    """Open a file whose format is told by its suffix (`FORMATS`; text may be compressed).

    What its columns are is told by their names, or by `columns`; its rows are read in batches.

    Raises:
        AmbiguousInputError: the names leave a choice.
        PredictionFileError: the file is damaged or malformed, or larger in memory than its bytes can justify.
        FileNotFoundError: there is no such file.
    """
    return open_as(Path(path), Reading(columns or Columns()))


def open_as(path: Path, reading: Reading) -> PredictionFile:
    """The same, for a reading that may depend on other files."""
    file = prediction_file(_raw(path), reading)
    labels = reading.columns.labels
    if reading.like is not None:
        return file
    if labels is not None:
        return _with_labels(file, Path(labels))
    if not file.layout.label and file.layout.correct is None and (beside := _labels_beside(path)) is not None:
        raise AmbiguousInputError(f"{path}: it has no labels", [({"labels": str(beside)}, "")])
    return file


def _raw(path: Path) -> RawTable:
    if not is_prediction_file(path):
        raise PredictionFileError(f"{path}: predictions are read from {', '.join(FORMATS)}, told by the suffix")
    return FORMATS[bare_suffix(path)](path)


def _labels_beside(path: Path) -> Path | None:
    """A file in the same folder and format that is named as labels are, if this one is a single array."""
    if path.suffix.lower() != ".npy":
        return None
    return next((found for name in LABELS if (found := path.with_name(f"{name}.npy")).is_file()), None)


def _with_labels(file: PredictionFile, path: Path) -> PredictionFile:
    """The file with the labels of another one, row by row."""
    layout = replace(file.layout, label=("labels",))
    if layout.kind not in VALUES:
        raise PredictionFileError(
            f"{file.path}: it holds {layout.kind}; labels of a file of their own belong to classes"
        )
    raw = _raw(path)
    names = raw.sample.schema.names
    found = names if len(names) == 1 else [name for name in names if name in LABELS]
    if len(found) != 1:
        raise PredictionFileError(f"{path}: it needs one column of labels; its columns are {', '.join(names)}")
    column = raw.column(found[0])
    with refusing(path, what=raw.what):
        labels = class_labels(column, found[0], layout)
    if file.rows not in (None, len(labels)):
        raise PredictionFileError(f"{path}: it has {len(labels):,} labels for the {file.rows:,} rows of {file.path}")

    def read() -> Iterator[Predictions]:
        row = 0
        for table in file.read():
            if row + len(table) > len(labels):
                raise PredictionFileError(f"{path}: it has {len(labels):,} labels, and {file.path} has more rows")
            yield replace(table, labels=labels[row : row + len(table)])
            row += len(table)
        if row != len(labels):
            raise PredictionFileError(f"{path}: it has {len(labels):,} labels for the {row:,} rows of {file.path}")

    notice = f"{file.path}: labels from {path}"
    return replace(file, layout=layout, read=read, notices=(*file.notices, notice))
