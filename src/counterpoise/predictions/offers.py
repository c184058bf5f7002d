"""What could be predictions or labels in a table whose names do not say it, as questions with their choices."""

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
    normal_name,
    pattern_of,
    some,
    span,
)
from counterpoise.predictions.sample import is_floating, is_list, is_number, repeats, sums_to, texts_in
from counterpoise.predictions.table import PredictionFileError


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
    lists = [name for name in names if is_list(sample, name) and (name in free or normal_name(name) in PREDICTED)]
    numbers = [name for name in free if is_number(sample, name)]
    label: dict[str, str] = {}
    if chosen.label is None and chosen.labels is None and not any(normal_name(name) in LABELS for name in names):
        others = [name for name in free if name not in lists and not is_floating(sample, name)]
        others = [name for name in others if repeats(sample, name)]
        if len(others) == 1 < len(free):
            label = {"label": others[0]}
            numbers = [name for name in numbers if name not in others]
    groups: dict[str, list[str]] = {}
    for name in numbers:
        groups.setdefault(re.sub(r"[0-9]+$", "", name), []).append(name)
    wide = [tuple(found) for found in groups.values() if len(found) > 1]
    if not wide and len(numbers) > 1 and sums_to(sample, tuple(numbers), 1):
        wide = [tuple(numbers)]
    choices: list[tuple[Choice, str]] = []
    for columns in (*((name,) for name in lists), *wide):
        pattern = pattern_of(columns, names)
        whole = sums_to(sample, columns, 1)
        both = [
            ({"probabilities": pattern} | label, "each of the first rows sums to 1" if whole else ""),
            ({"logits": pattern} | label, ""),
        ]
        choices += both if whole else both[::-1]
    numbers = [name for name in numbers if is_floating(sample, name)] or numbers
    if not choices and predicted is not None:
        choices = [({"confidence": name} | label, f"of the prediction in {predicted!r}") for name in numbers[:2]]
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


def perhaps_labels(sample: pa.RecordBatch, layout: Layout, ignored: Sequence[str]) -> tuple[str, ...]:
    """Columns of indices of classes, or of texts that all are classes, or predicted ones."""
    classes = set(layout.class_names or ())
    if layout.prediction is not None:
        classes |= set(texts_in(sample.column(layout.prediction)))

    def fits(column: pa.Array) -> bool:
        if texts := texts_in(column):
            return set(texts) <= classes
        return pa.types.is_integer(column.type) and _are_indices(column, layout)

    return tuple(name for name in ignored if fits(sample.column(name)))


def _are_indices(column: pa.Array, layout: Layout) -> bool:
    """Whether integers are indices of classes; of a confidence nobody knows how many there are."""
    least, most = pc.min_max(column).as_py().values()
    return least is not None and least >= 0 and (layout.kind == "confidence" or most < layout.classes)
