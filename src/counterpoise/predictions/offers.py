"""What could be predictions or labels in a table whose names do not say it, as questions with their choices."""

import operator
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.predictions.columns import AmbiguousInputError, Choice, Columns, Layout
from counterpoise.predictions.names import (
    LABELS,
    LOGITS,
    PREDICTED,
    PROBABILITIES,
    TEXT_NAMES,
    VALUES,
    class_suffixes,
    classes_of,
    normal_name,
    pattern_of,
    some,
    span,
)
from counterpoise.predictions.sample import (
    is_floating,
    is_list,
    is_list_of_numbers,
    is_number,
    largest,
    least,
    repeats,
    sums_to,
    texts_in,
    values_of,
)
from counterpoise.predictions.table import PredictionFileError

_BOTH = 2


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
    lists = [
        name for name in names if is_list_of_numbers(sample, name) and (name in free or normal_name(name) in PREDICTED)
    ]
    numbers = [name for name in free if is_number(sample, name)]
    label: dict[str, str] = {}
    if chosen.label is None and chosen.labels is None and not any(normal_name(name) in LABELS for name in names):
        others = [name for name in free if not is_list(sample, name) and not is_floating(sample, name)]
        others = [name for name in others if repeats(sample, name)]
        if len(others) == 1 < len(free):
            label = {"label": others[0]}
            numbers = [name for name in numbers if name not in others]
    wide = _of_classes(sample, numbers)
    choices: list[tuple[Choice, str]] = []
    for columns in (*((name,) for name in lists), *wide):
        pattern = pattern_of(columns, names)
        whole = sums_to(sample, columns, 1)
        both = [
            ({"probabilities": pattern} | label, "each of the first rows sums to 1" if whole else ""),
            ({"logits": pattern} | label, ""),
        ]
        choices += both if whole else both[::-1] if least(sample, columns) >= 0 else both[1:]
    if predicted is not None:  # a number that a known name calls a prediction is none where another column is one
        numbers += [name for name in names if name != predicted and normal_name(name) in PREDICTED]
    floats = [name for name in numbers if is_floating(sample, name)]
    single = [name for name in floats if least(sample, (name,)) >= 0 and largest(sample, (name,)) <= 1]
    numbers = single or floats or [name for name in numbers if is_number(sample, name)]
    if not choices and predicted is not None:
        for name in numbers[:2]:
            choices += [({**choice, **label}, reason) for choice, reason in of_one_number(sample, name, predicted)]
    elif not choices:
        kinds = ["logits" if normal_name(name).startswith(LOGITS) else "probabilities" for name in numbers[:2]]
        choices = [({kind: name} | label, "of y = 1") for kind, name in zip(kinds, numbers, strict=False)]
    if not choices:
        wanted = "'logits' or 'probabilities', or one column 'logit_NAME' or 'probability_NAME' for each class"
        return PredictionFileError(f"the table has no predictions: it needs {wanted}; its columns are {some(names)}")
    held = span(tuple(lists) or (wide[0] if wide else tuple(numbers[:2])))
    return AmbiguousInputError(
        f"no name says what the predictions are: {held} could be, and its columns are {some(names)}", choices
    )


def of_one_number(sample: pa.RecordBatch, name: str, predicted: str) -> list[tuple[Choice, str]]:
    """What a number beside a prediction may be; less than a half is no probability of one of two classes."""
    confidence: tuple[Choice, str] = ({"confidence": name}, f"of the prediction in {predicted!r}")
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
    return []


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

    def doubt(name: str) -> tuple[bool, bool]:
        column = sample.column(name)
        return _is_predicted(sample, layout, column), pc.count_distinct(column).as_py() == 1

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
    least, most = pc.min_max(column).as_py().values()
    return least is not None and least >= 0 and (layout.kind == "confidence" or most < layout.classes)
