"""A checked `Predictions` from a batch of named columns, whatever format they were read from."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from counterpoise._text import some
from counterpoise.predictions.columns import Layout, Reading
from counterpoise.predictions.descriptive import category_of, descriptive_of
from counterpoise.predictions.from_arrow import (
    array_of,
    as_numbers,
    as_text,
    filled,
    holds_text,
    integers_of,
    is_given,
    refuse_null,
    texts_of,
    truths_of,
    without,
)
from counterpoise.predictions.names import SPACES, TRUTH, index_of, span, stripped
from counterpoise.predictions.table import (
    MISSING_LABEL,
    RIGHT,
    WRONG,
    Array,
    Header,
    PredictionFileError,
    Predictions,
)

_LARGEST = np.iinfo(np.int64).max
_FEW = 20


def tables(
    batches: Iterable[pa.RecordBatch], *, layout: Layout, header: Header, reading: Reading, first_row: int = 0
) -> Iterator[Predictions]:
    """The batches of a file from a row on as tables; of a file of several models, the rows of one."""
    row, taken = first_row, 0
    for batch in batches:
        table = predictions_of(batch, layout=layout, header=header, first_row=row)
        row += batch.num_rows
        if reading.only is not None and layout.model is not None:
            names = models_named(batch.column(layout.model), layout.model, row - batch.num_rows)
            table = table.take(array_of(pc.fill_null(pc.equal(names, reading.only), False).cast(pa.uint8())) == 1)
            if layout.id is None:  # by its place among the rows of this model
                table = replace(table, ids=np.arange(taken, taken + len(table), dtype=np.int64))
            taken += len(table)
        if len(table):
            yield table


def _text_of(column: Any) -> Any:
    """A column as text; a dictionary of texts as it is, because its texts may be long."""
    return column if holds_text(column.type) else as_text(column)


def models_named(column: Any, name: str, first_row: int = 0) -> Any:
    """The name of each row's model; refused where one has none and others do."""
    names = as_text(column)
    is_named = pc.fill_null(pc.not_equal(names, ""), False)
    if pc.any(is_named).as_py() and (row := pc.index(is_named, False).as_py()) >= 0:
        raise PredictionFileError(
            f"row {first_row + row}, column {name!r} names no model, and other rows do; name the model of every row, "
            "or leave out the rows without one"
        )
    return names


def models_of(column: Any, name: str) -> list[str]:
    """The distinct names in a column of models."""
    return [model for model in pc.unique(models_named(column, name)).to_pylist() if model]


def predictions_of(batch: pa.RecordBatch, *, layout: Layout, header: Header, first_row: int) -> Predictions:
    """A checked table from the columns of one batch, whose first row is row `first_row` of the file."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    rows = batch.num_rows
    return Predictions(
        kind=layout.kind,
        values=_values(columns, layout, first_row),
        labels=_label_array(columns, layout, rows, first_row),
        ids=_ids(None if layout.id is None else columns[layout.id], layout.id, rows, first_row),
        **descriptive_of(columns, layout.descriptive, first_row),
        groups={name: category_of(_text_of(columns[name]), name) for name in layout.by},
        header=header,
        numbered=False,
    )


def class_labels(column: Any, name: str, layout: Layout, first_row: int = 0) -> Array:
    """A column of labels as indices of classes."""
    if layout.one_hot:
        return _one_hot(column, name, first_row, layout.classes)
    if not holds_text(column.type) and pa.types.is_nested(column.type):
        column = column.flatten()  # one label in each list
    if layout.named_by_number and layout.class_names is not None:
        return _numbered_labels(column, name, layout.class_names, first_row)
    return _labels(column, name, layout.classes, layout.class_names, first_row)


def _values(columns: dict[str, Any], layout: Layout, first_row: int) -> Array:
    values = _raw_values(columns, layout, first_row)
    if layout.scale != 1:
        values = values * values.dtype.type(layout.scale)
    if layout.is_binary:
        return np.concatenate([1 - values if layout.kind == "probabilities" else np.zeros_like(values), values], -1)
    if layout.sigmoid:
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-values))
    return values if layout.members is None else values.reshape(len(values), layout.members, layout.classes)


def _raw_values(columns: dict[str, Any], layout: Layout, first_row: int) -> Array:
    name, width = layout.values[0], layout.width
    lists = columns[name]
    fixed = pa.types.is_fixed_size_list(lists.type)
    if not fixed and not pa.types.is_list(lists.type) and not pa.types.is_large_list(lists.type):
        return np.column_stack([_floats(columns[each], each, first_row) for each in layout.values])
    refuse_null(lists, name, first_row)
    lengths = np.full(len(lists), lists.type.list_size) if fixed else array_of(pc.list_value_length(lists))
    wrong = np.flatnonzero(lengths != width)
    if len(wrong):
        row = int(wrong[0])
        raise PredictionFileError(
            f"row {first_row + row}, column {name!r} has {lengths[row]} values, the rows before it have {width}"
        )
    return _floats(lists.flatten(), name, first_row, width=width).reshape(len(lists), width)


def _label_array(columns: dict[str, Any], layout: Layout, rows: int, first_row: int) -> Array:
    columns = columns | {name: without(columns[name], layout.missing) for name in layout.label}
    if layout.kind == "confidence":
        return _hits(columns, layout, rows, first_row)
    if layout.kind == "multilabel":
        return _multilabels(columns, layout, rows, first_row)
    if not layout.label:
        return np.full(rows, MISSING_LABEL, np.int64)
    if layout.one_hot and len(layout.label) > 1:
        return _single_ones(columns, layout, first_row)
    (name,) = layout.label
    return class_labels(columns[name], name, layout, first_row)


def _hits(columns: dict[str, Any], layout: Layout, rows: int, first_row: int) -> Array:
    """Whether predictions were right, as labels of a table of confidences."""
    if layout.correct is not None:
        right = truths_of(columns[layout.correct], layout.correct, first_row)
    elif layout.label and layout.prediction is not None:
        label, prediction = columns[layout.label[0]], columns[layout.prediction]
        try:
            right = pc.equal(as_numbers(label), as_numbers(prediction))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            right = pc.equal(*_alike(label, prediction))
    else:
        return np.full(rows, MISSING_LABEL, np.int64)
    found = np.where(filled(right.cast(pa.int64()), 0) == 1, RIGHT, WRONG)
    return np.where(is_given(right), found, MISSING_LABEL)


def _alike(*columns: Any) -> list[Any]:
    """Texts as they are compared: without spaces around them, in small letters unless these tell two classes apart."""
    plain = [pc.utf8_trim(as_text(column), SPACES) for column in columns]
    lower = [pc.utf8_lower(each) for each in plain]
    counts = [[pc.count_distinct(each).as_py() for each in texts] for texts in (plain, lower)]
    return lower if counts[0] == counts[1] else plain


def _multilabels(columns: dict[str, Any], layout: Layout, rows: int, first_row: int) -> Array:
    """Labels `[n, L]`: each column, or each place of a list, is a binary label."""
    if not layout.label:
        return np.full((rows, layout.classes), MISSING_LABEL, np.int64)
    if len(layout.label) > 1:
        return np.column_stack([_labels(columns[name], name, 2, None, first_row) for name in layout.label])
    (name,) = layout.label
    return _labels(columns[name].flatten(), name, 2, None, first_row, width=layout.classes).reshape(rows, -1)


def _floats(column: Any, name: str, first_row: int, *, width: int = 1) -> Array:
    if not pa.types.is_floating(column.type):
        raise PredictionFileError(f"column {name!r} holds {column.type}; store it as floating point numbers")
    refuse_null(column, name, first_row, width=width)
    return array_of(column)


def _labels(
    column: Any, name: str, classes: int, names: tuple[str, ...] | None, first_row: int, *, width: int = 1
) -> Array:
    """Labels as indices; `width` of them make a row of the file."""
    kind = column.type
    if holds_text(kind):
        return _text_labels(column, name, classes, names, first_row, width=width)
    if pa.types.is_boolean(kind):
        if {each.casefold() for each in names or ()} == {*TRUTH}:
            return _text_labels(column.cast(pa.string()), name, classes, names, first_row, width=width)
        column = column.cast(pa.int8())
    elif pa.types.is_floating(kind):
        column = _whole(column, name, first_row, width=width)
    labels = integers_of(column, name, first_row, missing=MISSING_LABEL)
    wrong = np.flatnonzero((labels < MISSING_LABEL) | (labels >= classes))
    _refuse_signs(labels, is_given(column), name, classes, first_row)
    if len(wrong):
        from_one = labels[labels != MISSING_LABEL].min() == 1 and labels.max() == classes
        raise _wrong_label(first_row + int(wrong[0]) // width, name, labels[wrong[0]], classes, from_one=bool(from_one))
    return labels


def _whole(column: Any, name: str, first_row: int, *, width: int = 1) -> Any:
    """Floating point labels as the integers that they are; NaN, which pandas writes for what is missing, as null."""
    column = pc.if_else(pc.is_nan(column), None, column)
    wrong = pc.index(pc.not_equal(pc.round(column), column), True).as_py()
    if wrong >= 0:
        raise PredictionFileError(
            f"row {first_row + wrong // width}, column {name!r} is {column[wrong]}, not a whole number; labels are "
            "indices of classes, or their names"
        )
    return column.cast(pa.int64())


def _one_hot(column: Any, name: str, first_row: int, classes: int) -> Array:
    """Indices of rows with a single 1."""
    rows = array_of(column.flatten().cast(pa.float64())).reshape(len(column), classes)
    wrong = np.flatnonzero(~(((rows == 0) | (rows == 1)).all(-1) & (rows.sum(-1) == 1)))
    if len(wrong):
        raise PredictionFileError(f"row {first_row + int(wrong[0])}, column {name!r} is not a row with a single 1")
    found: Array = rows.argmax(-1)
    return found


def _single_ones(columns: dict[str, Any], layout: Layout, first_row: int) -> Array:
    """Indices of rows of columns, one for each class, with a single 1; a row without any value has no label."""
    rows = np.column_stack([_labels(columns[name], name, 2, None, first_row) for name in layout.label])
    missing = (rows == MISSING_LABEL).all(-1)
    if len(wrong := np.flatnonzero(~missing & ((rows < 0).any(-1) | (rows.sum(-1) != 1)))):
        raise PredictionFileError(
            f"row {first_row + int(wrong[0])}, columns {span(layout.label)} are not a row with a single 1"
        )
    return np.where(missing, MISSING_LABEL, rows.argmax(-1))


def _numbered_labels(column: Any, name: str, names: tuple[str, ...], first_row: int) -> Array:
    """Numbers among the names of classes, as text or not."""
    codes, texts = texts_of(as_text(column))
    index: dict[int | None, int] = {int(each): number for number, each in enumerate(names)}
    unknown = len(names)
    numbers = [index.get(index_of(text), unknown) if text else MISSING_LABEL for text in texts]
    labels = np.array([*numbers, MISSING_LABEL], np.int64)[codes]
    wrong = np.flatnonzero(labels == unknown)
    if len(wrong):
        label = repr(texts[codes[wrong[0]]])
        raise _wrong_label(first_row + int(wrong[0]), name, label, unknown, from_one=False, names=names)
    return labels


def _text_labels(
    column: Any, name: str, classes: int, names: tuple[str, ...] | None, first_row: int, *, width: int
) -> Array:
    """Names of classes, or their indices as text, as CSV has them."""
    codes, texts = texts_of(column)
    index = {each: number for number, each in enumerate(stripped(names or ()))}
    folded = {each.casefold(): number for each, number in index.items()}
    # Numbers among names that are not their places: 1, 2, 3+, or 0, 1, 10, 2. A label is a name then, and no place.
    numbered = {index_of(each): number for each, number in index.items()}
    are_names = any(whole not in (None, number) for whole, number in numbered.items())
    if len(folded) < len(index):
        folded = {}  # classes that differ in capitals alone

    def number(text: str | None) -> int:
        if not text:
            return MISSING_LABEL
        plain = text.strip(SPACES)
        if plain in index:
            return index[plain]
        if (whole := index_of(text)) is not None:
            return numbered.get(whole, classes if whole != MISSING_LABEL else whole) if are_names else whole
        return index.get(plain, folded.get(plain.casefold(), TRUTH.get(plain.lower(), classes)))

    numbers = [number(text) for text in texts]
    inside = [MISSING_LABEL <= number < classes for number in numbers]
    wrong = np.flatnonzero(~np.array([*inside, True])[codes])
    if len(wrong):
        given = [each for text, each in zip(texts, numbers, strict=True) if text]
        from_one = min(given) == 1 and max(given) == classes and names is None
        label = repr(texts[codes[wrong[0]]])
        raise _wrong_label(first_row + int(wrong[0]) // width, name, label, classes, from_one=from_one, names=names)
    labels = np.array([*numbers, MISSING_LABEL], np.int64)[codes]
    _refuse_signs(labels, np.array([*map(bool, texts), False])[codes], name, classes, first_row)
    return labels


def _refuse_signs(labels: Array, given: NDArray[np.bool_], name: str, classes: int, first_row: int) -> None:
    """Refuse labels that are -1 and 1: half of them would be taken for missing."""
    found = np.unique(labels[given]).tolist()
    if 2 < classes <= _FEW and found == [*range(MISSING_LABEL, classes - 1)]:
        row, numbers = first_row + int(np.argmax(given & (labels == MISSING_LABEL))), ",".join(map(str, found))
        raise PredictionFileError(
            f"row {row}, column {name!r} is -1, which stands for a missing label, and labels are {numbers}: if these "
            f"are the {classes} classes, add --class-names={numbers}; if not, leave missing labels empty"
        )
    if classes == 2 and found == [MISSING_LABEL, 1]:
        row = first_row + int(np.argmax(given & (labels == MISSING_LABEL)))
        raise PredictionFileError(
            f"row {row}, column {name!r} is -1, which stands for a missing label, and no label is 0; write 0 and 1"
        )


def _wrong_label(
    row: int, name: str, label: object, classes: int, *, from_one: bool, names: tuple[str, ...] | None = None
) -> PredictionFileError:
    cure = "leave the label of a sample without a class empty"
    if from_one:
        cure = "labels seem to count from 1: subtract 1"
        if classes <= _FEW:
            cure += f", or add --class-names {','.join(map(str, range(1, classes + 1)))}"
    elif names is not None:
        cure += f", or name the classes, which are taken to be {some(names)}, in order with --class-names"
    return PredictionFileError(
        f"row {row}, column {name!r} is {label}, neither an index in [0, {classes}) nor the name of a class; {cure}"
    )


def _ids(column: Any, name: str | None, rows: int, first_row: int) -> Array:
    if column is None or name is None:
        return np.arange(first_row, first_row + rows, dtype=np.int64)
    refuse_null(column, name, first_row)
    if not holds_text(column.type):
        return integers_of(column, name, first_row, missing=0)
    codes, texts = texts_of(column)
    if None in texts:
        raise PredictionFileError(f"column {name!r} has missing ids; fill them in")
    return np.array(texts, dtype=object)[codes]
