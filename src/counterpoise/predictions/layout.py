"""A checked `Predictions` from a batch of named columns, whatever format they were read from."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from counterpoise._choices import LOGARITHM_FACTORS, SUM_TOLERANCE
from counterpoise._classes import SIGNS, TRUTH, index_of, numbering, stripped
from counterpoise._text import some
from counterpoise.predictions.columns import AmbiguousInputError, Layout, Reading
from counterpoise.predictions.descriptive import category_of, descriptive_of
from counterpoise.predictions.from_arrow import (
    array_of,
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
from counterpoise.predictions.matching import matches
from counterpoise.predictions.names import is_log_probability, span
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
_FEW, _TWO = 20, 2
_ANSWERS = ("0", "1")


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
    if layout.beside is not None:
        _require_names(columns[layout.beside[0]], *layout.beside, first_row)
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
    return _labels(column, name, layout.classes, layout.class_names, first_row, stated=layout.stated)


def _require_names(column: Any, name: str, names: tuple[str, ...], first_row: int) -> None:
    """Hold the list of each row to the names of the outputs."""
    for row, found in enumerate(column.to_pylist(), first_row):
        if found is None or tuple(map(str, found)) != names:
            raise PredictionFileError(
                f"row {row}, column {name!r} is {found}, and the rows before it have {list(names)}; write the values "
                "of all rows in one order of classes"
            )


def _values(columns: dict[str, Any], layout: Layout, first_row: int) -> Array:
    values = _raw_values(columns, layout, first_row)
    if layout.scale != 1:
        values = values * values.dtype.type(layout.scale)
    if layout.is_binary:
        return np.concatenate([1 - values if layout.kind == "probabilities" else np.zeros_like(values), values], -1)
    if layout.sigmoid:
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-values))
    values = values if layout.members is None else values.reshape(len(values), layout.members, layout.classes)
    if layout.kind == "logits" and is_log_probability(layout.values[0]):
        _require_log_probabilities(values, layout.values[0], first_row)
    return values


def _require_log_probabilities(values: Array, name: str, first_row: int) -> None:
    """Hold rows `[n, ..., K]` of log-probabilities to probabilities that sum to 1."""

    def is_off(logarithms: Array) -> Any:
        with np.errstate(over="ignore"):
            return abs(np.exp(logarithms).sum(-1) - 1) > SUM_TOLERANCE

    wrong = np.argwhere(is_off(values.astype(np.float64)))
    if len(wrong):
        row, cure = values[tuple(wrong[0])].astype(np.float64), "call them logits if they are"
        for what, factor in LOGARITHM_FACTORS.items():
            if not is_off(factor * row):
                cure = f"they seem to be {what}: multiply them by {factor:.7g}"
        raise PredictionFileError(
            f"row {first_row + int(wrong[0][0])}, {name!r} holds log-probabilities whose exponentials sum to "
            f"{float(np.exp(row).sum()):.4g}, not 1; {cure}"
        )


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
    if layout.kind != "confidence" or layout.class_names is not None:
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
        name, prediction = layout.label[0], layout.prediction
        if layout.class_names is None:
            return matches(columns[name], columns[prediction], names=(name, prediction), first_row=first_row)
        known = replace(layout, width=len(layout.class_names))
        found, predicted = (class_labels(columns[each], each, known, first_row) for each in (name, prediction))
        missing = (found == MISSING_LABEL) | (predicted == MISSING_LABEL)
        return np.where(missing, MISSING_LABEL, np.where(found == predicted, RIGHT, WRONG))
    else:
        return np.full(rows, MISSING_LABEL, np.int64)
    hits = np.where(filled(right.cast(pa.int64()), 0) == 1, RIGHT, WRONG)
    return np.where(is_given(right), hits, MISSING_LABEL)


def _multilabels(columns: dict[str, Any], layout: Layout, rows: int, first_row: int) -> Array:
    """Labels `[n, L]`: each column, or each place of a list, is a binary label."""
    if not layout.label:
        return np.full((rows, layout.classes), MISSING_LABEL, np.int64)
    if len(layout.label) > 1:
        return np.column_stack([_labels(columns[name], name, 2, _ANSWERS, first_row) for name in layout.label])
    (name,) = layout.label
    return _labels(columns[name].flatten(), name, 2, _ANSWERS, first_row, width=layout.classes).reshape(rows, -1)


def _floats(column: Any, name: str, first_row: int, *, width: int = 1) -> Array:
    if not pa.types.is_floating(column.type):
        raise PredictionFileError(f"column {name!r} holds {column.type}; store it as floating point numbers")
    refuse_null(column, name, first_row, width=width)
    return array_of(column)


def _labels(
    column: Any,
    name: str,
    classes: int,
    names: tuple[str, ...] | None,
    first_row: int,
    *,
    width: int = 1,
    stated: bool = True,
) -> Array:
    """Labels as indices; `width` of them make a row of the file. Numbers are indices if it is `stated` of which."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.string())
    if holds_text(column.type):
        return _text_labels(column, name, classes, names, first_row, width=width, stated=stated)
    if pa.types.is_floating(kind):
        column = _whole(column, name, first_row, width=width)
    elif pa.types.is_integer(kind) and _most(kind) < classes:
        raise PredictionFileError(
            f"column {name!r} holds {kind}, whose numbers end at {_most(kind) - 1}, for {classes} classes; write int64"
        )
    labels = integers_of(column, name, first_row, missing=MISSING_LABEL)
    wrong = np.flatnonzero(
        (labels < MISSING_LABEL) | (labels >= classes) | (is_given(column) & _may_be_class(labels, classes, names))
    )
    if len(wrong):
        raise _wrong_label(first_row + int(wrong[0]) // width, name, labels[wrong[0]], classes)
    return labels


def _most(kind: Any) -> int:
    """How many classes an integer type can number from 0."""
    return int(1 << (kind.bit_width - pa.types.is_signed_integer(kind)))


def _may_be_class(labels: Array, classes: int, names: tuple[str, ...] | None) -> Any:
    """Which labels are -1 and may be a class: of two or three without a name. Else -1 is a missing label."""
    nameless = names is None or numbering(names) is not None
    return (labels == MISSING_LABEL) & (nameless and classes in SIGNS)


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
    rows = np.column_stack([_labels(columns[name], name, 2, _ANSWERS, first_row) for name in layout.label])
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
    index.setdefault(MISSING_LABEL, MISSING_LABEL)
    unknown = len(names)
    words = TRUTH if unknown == _TWO else {}
    numbers = [
        index.get(words.get(text.strip().lower(), index_of(text)), unknown) if text else MISSING_LABEL for text in texts
    ]
    labels = np.array([*numbers, MISSING_LABEL], np.int64)[codes]
    wrong = np.flatnonzero(labels == unknown)
    if len(wrong):
        label = repr(texts[codes[wrong[0]]])
        raise _wrong_label(first_row + int(wrong[0]), name, label, unknown, names=names)
    return labels


def _text_labels(
    column: Any, name: str, classes: int, names: tuple[str, ...] | None, first_row: int, *, width: int, stated: bool
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
        (plain,) = stripped([text])
        if (found := index.get(plain, folded.get(plain.casefold()))) is not None:
            return found
        if (whole := index_of(text)) is not None:
            if are_names:
                return numbered.get(whole, classes if whole != MISSING_LABEL else whole)
            return whole if stated else classes
        return TRUTH.get(plain.lower(), classes) if stated and classes == _TWO else classes

    numbers = np.array([*map(number, texts), MISSING_LABEL], np.int64)
    odd = (numbers < MISSING_LABEL) | (numbers >= classes) | _may_be_class(numbers, classes, names)
    wrong = np.flatnonzero((odd & np.array([*map(bool, texts), False]))[codes])
    if len(wrong):
        row, text = first_row + int(wrong[0]) // width, texts[codes[wrong[0]]] or ""
        if text.strip() == name:
            raise PredictionFileError(f"row {row} is the header line again; leave it out")
        raise _wrong_label(row, name, text if index_of(text) is not None else repr(text), classes, names=names)
    return numbers[codes]


def _wrong_label(
    row: int, name: str, label: object, classes: int, *, names: tuple[str, ...] | None = None
) -> PredictionFileError:
    problem = f"neither an index in [0, {classes}) nor the name of a class"
    cure = "leave the label of a sample without a class empty"
    whole = index_of(str(label))
    if whole == MISSING_LABEL and classes in SIGNS and names in (None, _ANSWERS):
        if names is None:
            orders = {"if -1 is a class": SIGNS[classes], "if -1 is a missing label": map(str, range(classes))}
            return AmbiguousInputError(
                f"row {row}, column {name!r} is -1, which may be a class or a missing label",
                [({"class_names": ",".join(order)}, reason) for reason, order in orders.items()],
            )
        problem, cure = "which may be a no or a missing label", "write 0 and 1, and leave missing labels empty"
    elif whole is not None and names is not None and MISSING_LABEL <= whole < classes:
        problem = f"and nothing says which number each of the classes {some(names)} has"
        cure = "name them in the order of their numbers with --class-names"
    elif whole == classes and names is None and classes <= _FEW:
        cure += f"; if labels count from 1, add --class-names {','.join(map(str, range(1, classes + 1)))}"
    elif names is not None:
        cure += f", or name the classes, which are taken to be {some(names)}, in order with --class-names"
    elif str(label).strip("'").lower() in TRUTH:
        cure = "write the class; true or false for a right or wrong prediction belongs to --confidence and --correct"
    return PredictionFileError(f"row {row}, column {name!r} is {label}, {problem}; {cure}")


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
