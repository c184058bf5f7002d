"""Which classes labels are: by index, by a name whose output is known, or by a single 1; else it is asked."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.predictions.columns import AmbiguousInputError, Choice, Columns, Layout
from counterpoise.predictions.names import (
    POSITIVE,
    TRUTH,
    class_suffixes,
    classes_of,
    index_of,
    is_index,
    joined,
    listed,
    natural,
    numbers_of,
    reads_as_index,
    some,
    stripped,
)
from counterpoise.predictions.sample import (
    categories_of,
    is_list,
    is_unordered,
    list_width,
    single_ones,
    texts_in,
)
from counterpoise.predictions.table import PredictionFileError

_MOST_NAMES = 1000


def with_labels(sample: pa.RecordBatch, layout: Layout, chosen: Columns) -> Layout:
    """Labels as indices, as texts whose order is known, or as rows of K; anything else is asked about."""
    (name,) = layout.label
    column = sample.column(name)
    _require_known_order(sample, column, layout, chosen)
    if is_list(sample, name):
        width = list_width(sample, name)
        if width == 1:
            return layout
        if width != layout.classes:
            raise PredictionFileError(f"column {name!r} has {width} labels a row for {layout.classes} classes")
        if chosen.multilabel:
            return multilabel(layout)
        if not chosen.one_hot:
            single = "each of the first rows has a single 1" if single_ones(column) else ""
            readings: list[tuple[Choice, str]] = [({"one_hot": True}, single), ({"multilabel": True}, "")]
            raise AmbiguousInputError(
                f"column {name!r} has {width} labels a row: a single 1 for the class, or a yes or no for each class",
                readings if single else readings[::-1],
            )
        return replace(layout, one_hot=True)
    texts = texts_in(column)
    layout = _with_classes(layout, texts)
    _require_plain_order(column, layout, chosen)
    if layout.class_names is not None or not texts or all(reads_as_index(text) for text in texts):
        return layout
    categories = categories_of(sample, name)
    if categories is not None and len(categories) == layout.classes:
        return replace(layout, class_names=categories)
    found = sorted(set(texts))[:_MOST_NAMES]
    counted = sorted(found, key=natural)
    choices: list[tuple[Choice, str]] = []
    if layout.is_binary and len(found) == 2:
        choices = [({"class_names": joined(order)}, f"y = 1 is {order[1]!r}") for order in (found, found[::-1])]
    elif len(found) == layout.classes:
        choices = [({"class_names": joined(found)}, "if the outputs are in alphabetical order; else in theirs")]
        if counted != found:
            choices.insert(0, ({"class_names": joined(counted)}, "if the outputs are in the order of these numbers"))
    raise AmbiguousInputError(
        f"the labels in {name!r} are text ({some(found)}), and nothing says which of the {layout.classes} outputs is "
        "which class",
        choices,
    )


def _require_plain_order(column: pa.Array, layout: Layout, chosen: Columns) -> None:
    """Ask what y = 1 is where labels are no names and the first of two classes is called the positive one."""
    names = tuple(name.casefold() for name in layout.class_names or ())
    if len(names) != 2 or names[0] not in POSITIVE or chosen.probabilities or chosen.logits or chosen.class_names:
        return
    if any(not reads_as_index(text) for text in texts_in(column)) or {*names} == {*TRUTH}:
        return
    orders = (layout.values[::-1], layout.values)
    raise AmbiguousInputError(
        f"labels are 0 and 1, and the first of the columns {some(layout.values)} is that of {names[0]!r}",
        [({layout.kind: joined(order)}, f"y = 1 is that of {order[1]!r}") for order in orders],
    )


def _require_known_order(sample: pa.RecordBatch, column: pa.Array, layout: Layout, chosen: Columns) -> None:
    """Ask which class has which number where labels are numbers and the names of classes leave it open."""
    names, texts = layout.class_names, texts_in(column)
    if names is None or chosen.class_names or column.null_count == len(column):
        return
    if any(not reads_as_index(text) for text in texts):
        return
    numbers = _numbers(names)
    if numbers is not None and sorted(numbers) != list(range(len(names))):
        raise AmbiguousInputError(
            f"labels are numbers, and the classes {some(names)} are not numbered from 0 to {len(names) - 1}",
            _readings(column, layout.values if names == tuple(map(str, numbers)) else names, numbers),
        )
    given = chosen.probabilities or chosen.logits
    if numbers is None and is_unordered(sample, layout.values) and (given is None or listed(given) != layout.values):
        raise AmbiguousInputError(
            f"labels are numbers, and nothing says which number each of the classes {some(names)} has: their scores "
            "come in no order",
            [({"class_names": joined(names)}, "if this is the order of the numbers; else in theirs")],
        )


def _numbers(names: tuple[str, ...]) -> tuple[int, ...] | None:
    return tuple(map(int, names)) if all(map(is_index, names)) else numbers_of(names)


def _readings(column: pa.Array, names: tuple[str, ...], numbers: tuple[int, ...]) -> list[tuple[Choice, str]]:
    """Labels as the numbers of classes, and as their places; the likelier first."""
    found = {index_of(str(label)) for label in pc.unique(column).to_pylist()} - {None}
    by_number: tuple[Choice, str] = ({"class_names": joined(map(str, numbers))}, "if the labels are these numbers")
    if all(map(is_index, names)):
        return [by_number]
    by_place: tuple[Choice, str] = ({"class_names": joined(names)}, f"if label 0 is {names[0]!r}, 1 is {names[1]!r}")
    return [by_number, by_place] if found <= {*numbers} else [by_place, by_number]


def _with_classes(layout: Layout, texts: Sequence[str]) -> Layout:
    """With the classes that these labels are found to be within the names of the columns, where these name them."""
    if len(layout.values) == 1 or layout.class_names not in (None, class_suffixes(layout.values)):
        return layout
    labels = {*stripped(texts)}
    names = classes_of(layout.values, labels)
    if layout.class_names is None and (not labels <= {*names} or all(map(reads_as_index, labels))):
        return layout
    return replace(layout, class_names=names)


def multilabel(layout: Layout) -> Layout:
    """The same, each of whose classes is a yes or no."""
    return replace(layout, kind="multilabel", sigmoid=layout.kind == "logits", is_binary=False)
