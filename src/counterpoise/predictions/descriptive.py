"""Columns that describe samples: found by their names, and read whatever type they have."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from counterpoise._classes import index_of
from counterpoise.predictions.from_arrow import (
    array_of,
    as_text,
    holds_text,
    integers_of,
    refuse_null,
    texts_of,
    truths_of,
)
from counterpoise.predictions.names import DESCRIPTIVE, normal_name
from counterpoise.predictions.sample import texts_in
from counterpoise.predictions.table import CATEGORIES, MISSING_SEVERITY, Array, Category, PredictionFileError

_NO_SEVERITY = MISSING_SEVERITY - 1


def descriptive_columns(sample: pa.RecordBatch, taken: Collection[str]) -> dict[str, str]:
    """The column of each thing that is known of samples, among those that are not taken for something else."""
    names = [name for name in sample.schema.names if name not in taken]
    found = {known: column_called(names, known) for known in DESCRIPTIVE}
    severity = found["severity"]
    return {
        known: name
        for known, name in found.items()
        if name is not None and (name != severity or _may_be_severities(sample, name))
    }


def column_called(names: Collection[str], known: str) -> str | None:
    """The column of a known name, or the only one that is called so but for capitals and separators."""
    found = [known] if known in names else [name for name in names if normal_name(name) == normal_name(known)]
    if len(found) > 1:
        raise PredictionFileError(f"{' and '.join(map(repr, found))} are both called {known!r}; rename one")
    return found[0] if found else None


def _may_be_severities(sample: pa.RecordBatch, name: str) -> bool:
    """Whether a column holds numbers, as far as the first rows tell: others say low and high."""
    texts = texts_in(sample.column(name))
    return not texts or any(index_of(text) is not None for text in texts)


def descriptive_of(columns: Mapping[str, Any], names: Mapping[str, str], first_row: int) -> dict[str, Any]:
    """Their values, as fields of `Predictions`."""
    found: dict[str, Any] = {
        known: category_of(columns[name], name) for known, name in names.items() if known in CATEGORIES
    }
    if (severity := names.get("severity")) is not None:
        found["severity"] = _severities(columns[severity], severity, first_row)
    if (inside := names.get("in_distribution")) is not None:
        found["in_distribution"] = _flags(columns[inside], inside, first_row)
    return found


def category_of(column: Any, name: str) -> Category:
    """A column of texts, or of numbers that stand for some."""
    if pa.types.is_null(column.type):
        return Category(np.full(len(column), -1, np.int32), ())
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        column = as_text(column)
    if not holds_text(column.type):
        raise PredictionFileError(f"column {name!r} has type {column.type}; it must hold text")
    codes, texts = texts_of(column)
    # Nothing keeps a foreign dictionary from naming a text twice. Some programs write "" for what is missing.
    index: dict[str, int] = {}
    table = [-1 if not text else index.setdefault(text, len(index)) for text in texts]
    return Category(np.array([*table, -1], np.int32)[codes], tuple(index))


def _severities(column: Any, name: str, first_row: int) -> Array:
    if holds_text(column.type) or pa.types.is_floating(column.type):
        codes, texts = texts_of(as_text(column))
        numbers = [MISSING_SEVERITY if text in (None, "", "nan") else index_of(str(text)) for text in texts]
        known = [_NO_SEVERITY if number is None else max(number, _NO_SEVERITY) for number in numbers]
        severities: Array = np.array([*known, MISSING_SEVERITY], np.int64)[codes]
    else:
        severities = integers_of(column, name, first_row, missing=MISSING_SEVERITY)
    if len(wrong := np.flatnonzero(severities < MISSING_SEVERITY)):
        row = int(wrong[0])
        raise PredictionFileError(
            f"row {first_row + row}, column {name!r} is {column[row].as_py()}; it is 0 for clean samples, else a whole "
            "number from 1"
        )
    return severities


def _flags(column: Any, name: str, first_row: int) -> Array:
    if holds_text(column.type):
        column = truths_of(column, name, first_row)
    if not pa.types.is_boolean(column.type):
        raise PredictionFileError(f"column {name!r} has type {column.type}; it must hold true or false")
    refuse_null(column, name, first_row)
    return array_of(column.cast(pa.uint8())).view(np.bool_)
