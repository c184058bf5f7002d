"""Predictions from JSON: an object a sample, whose names are those of columns, or an object of columns.

Names within objects are `a.b`.
"""

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from counterpoise._json import Nesting, parsed
from counterpoise.predictions.compression import check_expansion, largest_expansion, opened, read_bytes
from counterpoise.predictions.digest import Source
from counterpoise.predictions.from_arrow import array_of
from counterpoise.predictions.names import CLASS_NAMES, KNOWN, TEXT_NAMES, normal_name
from counterpoise.predictions.prediction_file import RawTable, refusing, table_of_batches
from counterpoise.predictions.sample import unordered
from counterpoise.predictions.table import PredictionFileError

_WHOLE = "JSON document"
_BATCH_ROWS = 10_000
_BLOCK_BYTES = 1 << 23
_SCORES = ("score", "prob", "probability", "confidence")
_NULL_LINE = re.compile(rb"(?:^|[\r\n])(?:\xef\xbb\xbf)?\s*null")


def open_json_lines(source: Source) -> RawTable:
    """Read the first block."""
    return table_of_batches(source, _batches, what="file of JSON lines")


def open_json(source: Source) -> RawTable:
    """Read a whole document: objects, one for each sample, or an object of columns.

    The objects stand in a list, which may be the only one in an object, or by their ids. A column is a list, or an
    object of values by row; or there are lists of names, `columns`, and of rows, `data`, as pandas, MLflow and W&B
    write them. A list of anything else is a column of the file's name.
    """
    with refusing(source.path, what=_WHOLE):
        columns = _columns(_document(source), source.path.stem)
        names = columns.pop(CLASS_NAMES, None)
        class_names = None if names is None else tuple(map(str, names))
        # Of several numbers of rows what most columns have comes first, or else the larger.
        lengths = Counter(len(column) for column in columns.values() if column)
        order = sorted(lengths, key=lambda rows: (lengths[rows], rows), reverse=True)
        tables = [{name: column for name, column in columns.items() if len(column) == rows} for rows in order]
        found = [_flattened(batch, rows=_BATCH_ROWS) for batch in map(_record_batch, tables) if batch is not None]
        if not found:
            raise PredictionFileError("it holds no list of samples, and no object of columns")
    first, *others = (_table(source, batches, class_names) for batches in found)
    return replace(first, others=tuple(others))


def _table(source: Source, batches: list[pa.RecordBatch], class_names: tuple[str, ...] | None) -> RawTable:
    raw = table_of_batches(source, lambda _: iter(batches), what=_WHOLE)
    return replace(raw, class_names=class_names, rows=sum(map(len, batches)))


def _record_batch(columns: dict[str, list[Any]]) -> pa.RecordBatch | None:
    """Columns of one length; None where none of them is one of Arrow's."""
    arrays = {}
    for name, column in columns.items():
        try:
            arrays[name] = pa.array(column)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            if normal_name(name) in KNOWN:
                raise
    return pa.record_batch(arrays) if arrays else None


def _document(source: Source) -> Any:
    with opened(source) as handle:
        data = read_bytes(handle, largest_expansion(source.size) + 1)
    check_expansion(declared=len(data), stored=source.size, what="it")
    return parsed(data.removeprefix(codecs.BOM_UTF8), object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, whose names are distinct: of two values of one name, nothing says which is meant."""
    return dict(zip(_distinct([name for name, _ in pairs]), (value for _, value in pairs), strict=True))


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        repeated = Counter(names).most_common(1)[0][0]
        raise PredictionFileError(f"the name {repeated!r} appears more than once in one object; keep one value of it")
    return names


def _columns(document: Any, name: str) -> dict[str, list[Any]]:
    if isinstance(document, list):
        return _by_name(document) if _are_rows(document) else {name: document}
    if not isinstance(document, dict):
        return {}
    columns = {key: value for key, value in document.items() if isinstance(value, list)}
    if {"columns", "data"} <= columns.keys() <= {"columns", "data", "index"}:
        return _by_place(columns["columns"], columns["data"])
    named = {key: columns.pop(key) for key in (CLASS_NAMES,) if key in columns}
    if len(columns) == 1 and _are_rows(only := next(iter(columns.values()))):
        return _by_name(only) | named
    columns |= named
    objects = {key: value for key, value in document.items() if isinstance(value, dict)}
    if not objects:
        return columns
    index = next(iter(objects.values())).keys()
    if tables := {key: value for key, value in objects.items() if _is_table(value)}:
        return columns | {
            f"{key}.{name}": each for key, table in tables.items() for name, each in _lists(table).items()
        }
    if not columns and any(normal_name(key) in KNOWN for key in index):
        return {"id": [*objects]} | _by_name([*objects.values()])
    # Keys are names of rows, and may stand in another order in each column.
    alike = {key: value for key, value in objects.items() if value.keys() == index}
    return columns | {key: [value[row] for row in index] for key, value in alike.items()}


def _is_table(found: dict[str, Any]) -> bool:
    """Whether an object holds columns, and is no sample: a list of labels, or of lists."""
    return any(normal_name(key) in TEXT_NAMES or isinstance(value[0], list) for key, value in _lists(found).items())


def _lists(found: dict[str, Any]) -> dict[str, list[Any]]:
    return {key: value for key, value in found.items() if isinstance(value, list) and value}


def _are_rows(found: list[Any]) -> bool:
    return bool(found) and all(isinstance(row, dict) for row in found)


def _by_place(names: list[Any], rows: list[Any]) -> dict[str, list[Any]]:
    names = _distinct([*map(str, names)])
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(names):
            raise PredictionFileError(f"row {number} of 'data' has no value for each of the {len(names)} 'columns'")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _by_name(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(key for row in rows for key in row)
    return {key: [row.get(key) for row in rows] for key in names}


def _batches(source: Source) -> Iterator[pa.RecordBatch]:
    with opened(source) as handle, pa.PythonFile(_Survivable(handle), mode="r") as checked:
        options = pa_json.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
        with pa_json.open_json(checked, read_options=options) as batches:
            for batch in batches:
                batch.validate(full=True)  # Arrow's offsets of lists that begin with null lead out of the values
                if batch.num_rows:
                    yield from _flattened(batch)


def _flattened(batch: pa.RecordBatch, *, rows: int | None = None) -> list[pa.RecordBatch]:
    """The same with a column for each name within objects; nothing where no column is left."""
    table = pa.Table.from_batches([batch])
    for field in table.schema:
        if pa.types.is_list(field.type) and (score := _score_in(field.type.value_type)) is not None:
            table = _with_scores(table, field.name, score)
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=rows)
    return batches


def _score_in(kind: pa.DataType) -> str | None:
    """Of objects such as `{"label": CLASS, "score": NUMBER}`, what the number is called there."""
    names = {field.name for field in kind} if pa.types.is_struct(kind) else set()
    return next((score for score in _SCORES if names == {"label", score}), None)


def _with_scores(table: pa.Table, name: str, score: str) -> pa.Table:
    """With a column `name.CLASS` for each class of lists of `{"label": CLASS, "score": NUMBER}` in any order."""
    column = table.column(name).combine_chunks()
    flat, rows = column.flatten(), array_of(pc.list_parent_indices(column))
    labels = flat.field("label").cast(pa.string()).dictionary_encode()
    if labels.null_count or flat.field(score).null_count:
        raise PredictionFileError(f"an object in column {name!r} has no label or no {score}; write both")
    classes = labels.dictionary.to_pylist()
    scores, given = np.zeros((len(column), len(classes))), np.zeros((len(column), len(classes)), int)
    places = rows, array_of(labels.indices)
    scores[places] = array_of(flat.field(score).cast(pa.float64()))
    np.add.at(given, places, 1)
    wrong = np.argwhere(given != 1)
    if len(wrong):
        row, place = wrong[0].tolist()
        raise PredictionFileError(
            f"row {row}, column {name!r} has {given[row, place]} scores of {classes[place]!r}; every row needs one of "
            "each class, as with top_k=None"
        )
    table = table.drop_columns([name])
    for place in np.argsort(classes).tolist():
        table = table.append_column(unordered(f"{name}.{classes[place]}"), [scores[:, place]])
    return table


class _Survivable:
    """The bytes of a file, rejected where Arrow would end the process: a line that is null, or nested too deep."""

    def __init__(self, handle: pa.NativeFile) -> None:
        self._handle, self._line, self._nesting, self.closed = handle, b"", Nesting(), False

    def read(self, size: int) -> bytes:
        data = read_bytes(self._handle, size)
        self._nesting.check(data)
        seen = self._line + data
        # The search for a word is a hundred times faster than the pattern, and most files have none.
        if b"null" in seen and _NULL_LINE.search(seen):
            raise PredictionFileError("a line of it is null; a line is an object, such as {...}: remove that line")
        # What has begun the last line, as far as that could still become null.
        begun = seen[max(seen.rfind(b"\n"), seen.rfind(b"\r")) + 1 :].lstrip()
        self._line = b"\n" + begun[:8]
        return data

    def close(self) -> None:
        self.closed = True
