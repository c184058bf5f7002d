"""What could be predictions or labels in a table whose names do not say it, as questions with their choices."""

import operator
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise._classes import LOGITS, PROBABILITIES, class_suffixes, classes_of
from counterpoise._text import some
from counterpoise.predictions.columns import AmbiguousInputError, Choice, Columns, Layout
from counterpoise.predictions.names import LABELS, PREDICTED, TEXT_NAMES, VALUES, normal_name, pattern_of, span
from counterpoise.predictions.sample import (
    has_fractions,
    is_floating,
    is_list,
    is_list_of_numbers,
    is_number,
    largest,
    least,
    repeats,
    runs_that_sum,
    sums_to,
    texts_in,
    values_of,
)
from counterpoise.predictions.table import PredictionFileError

_BOTH = 2
_FEW = 100


def unnamed(sample: pa.RecordBatch, predicted: str | None, chosen: Columns) -> PredictionFileError:
    """What to say of a table in which no name tells the predictions; a question, where something could be them."""
    names = sample.schema.names
    for name in names:
        if normal_name(name) in (*LOGITS, *PROBABILITIES) and (found := texts_in(sample.column(name))):
            return PredictionFileError(
                f"column {name!r} holds text, such as {found[0]!r:.60}; give each class a column of its own, or write "
                "lists as Parquet or JSON lines"
            )
    free = [name for name in names if name and normal_name(name) not in TEXT_NAMES and name != chosen.label]
    predicted = predicted or _perhaps_predicted(sample, chosen)
    labels = _perhaps_labels(sample, free, chosen)
    free = [name for name in free if labels != [name]]
    # What a known name calls a prediction may be a list of them all, or a number beside the column that is one.
    predictions = [name for name in names if normal_name(name) in PREDICTED]
    lists = [(name,) for name in (*free, *predictions) if is_list_of_numbers(sample, name)]
    several = [*lists, *_of_classes(sample, [name for name in free if is_number(sample, name)])]
    choices = [
        ({**choice, **_label_beside(columns[0], labels)}, reason)
        for columns in several
        for choice, reason in _of_columns(sample, columns)
    ]
    if not choices:
        # A known name may call the probability of y = 1 a prediction.
        beside = [name for name in predictions if predicted not in (None, name) or has_fractions(sample, name)]
        several = [(name,) for name in _likeliest(sample, [*free, *beside])[:2]]
        choices = [
            ({**choice, **_label_beside(name, labels)}, reason)
            for (name,) in several
            for choice, reason in _of_one(sample, name, predicted)
        ]
    if not choices:
        wanted = "'logits' or 'probabilities', or one column 'logit_NAME' or 'probability_NAME' for each class"
        return PredictionFileError(f"the table has no predictions: it needs {wanted}; its columns are {some(names)}")
    held = span([name for columns in (lists or several) for name in columns])
    return AmbiguousInputError(
        f"no name says what the predictions are: {held} could be, and its columns are {some(names)}",
        choices,
    )


def _perhaps_labels(sample: pa.RecordBatch, free: Sequence[str], chosen: Columns) -> list[str]:
    """Columns that could be the labels, where no name tells it."""
    known = any(normal_name(name) in LABELS for name in sample.schema.names)
    if known or chosen.label is not None or chosen.labels is not None or len(free) == 1:
        return []
    return [
        name for name in free if not is_list(sample, name) and not is_floating(sample, name) and repeats(sample, name)
    ]


def _label_beside(name: str, labels: Sequence[str]) -> Choice:
    """The choice of the only column that could be the labels, or the only one that begins as the predictions do."""
    found = labels if len(labels) == 1 else [label for label in labels if _begin_alike(label, name)]
    return {"label": found[0]} if len(found) == 1 else {}


def _begin_alike(one: str, other: str) -> bool:
    """Whether names such as `test_logits` and `test_labels` tell that they belong together."""
    beginnings = {normal_name(name).rpartition("_")[0] for name in (one, other)}
    return len(beginnings) == 1 and "" not in beginnings


def _of_columns(sample: pa.RecordBatch, columns: tuple[str, ...]) -> list[tuple[Choice, str]]:
    """What a column of lists or one for each class may be, the likelier first."""
    pattern = pattern_of(columns, sample.schema.names)
    logits: tuple[Choice, str] = ({"logits": pattern}, "")
    if sums_to(sample, columns, 1):
        return [({"probabilities": pattern}, "each of the first rows sums to 1"), logits]
    return [logits] if least(sample, columns) < 0 else [logits, ({"probabilities": pattern}, "")]


def _likeliest(sample: pa.RecordBatch, names: Sequence[str]) -> list[str]:
    """Columns of numbers from 0 to 1, if there are any, else of fractions, else of numbers."""
    numbers = [name for name in names if is_number(sample, name)]
    floats = [name for name in numbers if is_floating(sample, name)]
    inside = [name for name in floats if least(sample, (name,)) >= 0 and largest(sample, (name,)) <= 1]
    found = inside or floats or numbers
    return [name for name in found if pc.count_distinct(sample.column(name)).as_py() > 1] or found


def _perhaps_predicted(sample: pa.RecordBatch, chosen: Columns) -> str | None:
    """A column that is called as labels are, where another one was chosen for these: a pipeline's own answer."""
    names: list[str] = sample.schema.names
    found = [name for name in names if normal_name(name) in LABELS and chosen.label not in (None, name)]
    return found[0] if len(found) == 1 and not is_list(sample, found[0]) else None


def _of_one(sample: pa.RecordBatch, name: str, predicted: str | None) -> list[tuple[Choice, str]]:
    if least(sample, (name,)) < 0 or normal_name(name).startswith(LOGITS):
        return [({"logits": name}, "of y = 1")]
    if predicted not in (None, name):
        return of_one_number(sample, name, str(predicted))
    if class_suffixes((name,)) == ("0",):
        return [({"probabilities": name, "class_names": "1,0"}, "of y = 0")]
    return [({"probabilities": name}, "of y = 1")]


def of_one_number(sample: pa.RecordBatch, name: str, predicted: str) -> list[tuple[Choice, str]]:
    """What a number beside a prediction may be; less than a half is no probability of one of two classes."""
    column = {} if normal_name(predicted) in PREDICTED else {"prediction": predicted}
    confidence: tuple[Choice, str] = ({"confidence": name, **column}, f"of the prediction in {predicted!r}")
    positive: tuple[Choice, str] = ({"probabilities": name}, "of y = 1")
    if pc.count_distinct(sample.column(predicted)).as_py() > _BOTH:
        return [confidence]
    return [positive, confidence] if least(sample, (name,), initial=1) < 1 / _BOTH else [confidence, positive]


def _of_classes(sample: pa.RecordBatch, numbers: Sequence[str]) -> list[tuple[str, ...]]:
    """Columns that may be one for each class: numbered ones, those that sum to 1, or those that begin with one word."""
    for beginning in (r"(.*?)[0-9]+", r"(\W*[^\W_]+[\W_]+).+"):
        groups: dict[str, list[str]] = {}
        for name in numbers:
            if begun := re.fullmatch(beginning, name):
                groups.setdefault(begun[1], []).append(name)
        wide = [tuple(found) for found in groups.values() if len(found) > 1]
        whole = [found for found in wide if sums_to(sample, found, 1)]
        floats = tuple(name for name in numbers if is_floating(sample, name))
        if not whole and len(floats) > 1 and sums_to(sample, floats, 1):
            return [floats]
        if wide:
            return whole or wide
    return runs_that_sum(sample, floats)[:_BOTH] if 1 < len(floats) <= _FEW else []


def perhaps_labels(sample: pa.RecordBatch, layout: Layout, ignored: Sequence[str]) -> tuple[str, ...]:
    """Columns of indices of classes, or of texts that all are classes, or predicted ones, or as few as classes are.

    Those that are the predictions come last, and before them those in which all are the same.
    """
    classes, predictions = set(layout.class_names or ()), list[object]()
    if layout.prediction is not None:
        classes |= set(texts_in(sample.column(layout.prediction)))
        predictions = sample.column(layout.prediction).to_pylist()

    def fits(column: pa.Array) -> bool:
        if predictions and not any(map(operator.eq, predictions, column.to_pylist())):
            return False  # such as the second of the largest
        if texts := texts_in(column):
            known = {*classes_of(layout.values, texts)} if classes == {*class_suffixes(layout.values)} else classes
            return set(texts) <= known if known else len(texts) <= layout.classes and len(texts) < len(column)
        return pa.types.is_integer(column.type) and _are_indices(column, layout)

    def doubt(name: str) -> tuple[bool, bool, bool]:
        column = sample.column(name)
        return (
            not _begin_alike(name, layout.values[0]),
            _is_predicted(sample, layout, column),
            pc.count_distinct(column).as_py() == 1,
        )

    return tuple(sorted((name for name in ignored if fits(sample.column(name))), key=doubt))


def _is_predicted(sample: pa.RecordBatch, layout: Layout, column: pa.Array) -> bool:
    """Whether a column is another one for each class of largest probability."""
    if layout.kind not in VALUES or layout.is_binary or layout.members is not None:
        return False
    values = values_of(sample, layout.values)
    if values is None:
        return False
    pairs = set(zip(values.argmax(-1).tolist(), column.to_pylist(), strict=True))
    return len(pairs) == len({place for place, _ in pairs}) == len({each for _, each in pairs})


def _are_indices(column: pa.Array, layout: Layout) -> bool:
    """Whether integers are indices of classes; of a confidence nobody knows how many there are."""
    lowest, highest = pc.min_max(column).as_py().values()
    return lowest is not None and lowest >= 0 and (layout.kind == "confidence" or highest < layout.classes)
