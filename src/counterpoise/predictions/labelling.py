"""Which classes labels are: by index, by a name whose output is known, or by a single 1; else it is asked."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise._classes import SIGNS, class_suffixes, classes_of, index_of, is_index, numbering, places_of, stripped
from counterpoise._text import some
from counterpoise.predictions.columns import AmbiguousInputError, Choice, Columns, Layout
from counterpoise.predictions.from_arrow import without
from counterpoise.predictions.names import (
    MISSING,
    VALUES,
    ends_with,
    is_found,
    is_log_probability,
    is_of_labels,
    joined,
    listed,
    natural,
    reads_as_index,
    span,
)
from counterpoise.predictions.sample import (
    are_single_ones,
    categories_of,
    is_floating,
    is_list,
    list_width,
    single_ones,
    sums_to,
    texts_in,
)
from counterpoise.predictions.table import Kind, PredictionFileError

_MOST_NAMES = 1000


def without_missing(
    sample: pa.RecordBatch, chosen: Columns, class_names: tuple[str, ...] | None
) -> tuple[pa.RecordBatch, tuple[str, ...]]:
    """The first rows without the texts that stand for no label, and these: those that no name calls a class."""
    names: list[str] = sample.schema.names
    classes = [*(chosen.names() or ()), *(class_names or ()), *names]
    for name in names:
        classes += categories_of(sample, name) or ()
    missing = tuple(word for word in MISSING if not any(ends_with(name, word) for name in classes))
    labels = [
        name for name in names if is_of_labels(name) or (chosen.label is not None and is_found([name], chosen.label))
    ]
    for name in labels:
        place = sample.schema.get_field_index(name)
        sample = sample.set_column(place, name, without(sample.column(place), missing))
    return sample, missing


def with_labels(sample: pa.RecordBatch, layout: Layout, chosen: Columns) -> Layout:
    """Labels as indices, as texts whose order is known, or as rows of K; anything else is asked about."""
    if len(layout.label) > 1:
        return _with_label_columns(sample, layout, chosen)
    (name,) = layout.label
    column = sample.column(name)
    _require_known_order(column, layout)
    if is_list(sample, name):
        width = list_width(sample, name)
        if width == 1:
            return layout
        if width != layout.classes:
            raise PredictionFileError(f"column {name!r} has {width} labels a row for {layout.classes} classes")
        if chosen.multilabel:
            return multilabel(layout)
        if not chosen.one_hot:
            raise _rows_of_labels(f"column {name!r} has {width} labels a row", {}, is_single=single_ones(column))
        return replace(layout, one_hot=True)
    texts = [text for text in texts_in(column) if text.strip() != name]  # a header line again is found by its values
    layout = _with_classes(layout, texts)
    if layout.class_names is not None or not texts or all(reads_as_index(text) for text in texts):
        return layout
    categories = categories_of(sample, name) or ()
    found = sorted({*texts, *categories})[:_MOST_NAMES]  # a category may be called as missing values are
    counted = sorted(found, key=natural)
    choices: list[tuple[Choice, str]] = []
    if layout.is_binary and len(found) == 2:
        found.sort(key=lambda name: ends_with(layout.values[0], name))  # the class that the column is called after
        choices = [({"class_names": joined(order)}, f"y = 1 is {order[1]!r}") for order in (found, found[::-1])]
    elif len(found) == layout.classes:
        choices = [({"class_names": joined(found)}, "if the outputs are in alphabetical order; else in theirs")]
        if counted != found:
            choices.insert(0, ({"class_names": joined(counted)}, "if the outputs are in the order of these numbers"))
    if sorted(categories) == found != list(categories):
        choices.insert(0, ({"class_names": joined(categories)}, "if the outputs are in the order of the categories"))
    raise AmbiguousInputError(
        f"the labels in {name!r} are text ({some(found)}), and nothing says which of the {layout.classes} outputs is "
        "which class",
        choices,
    )


def is_stated(layout: Layout, chosen: Columns, *, by_file: bool) -> bool:
    """Whether somebody said which number each class has: by names that are numbers, or by an order that is given."""
    names = layout.class_names
    if names is None or chosen.class_names is not None:
        return True
    if (numbers := numbering(names)) is not None:
        return numbers == tuple(range(len(names)))
    return by_file or listed(chosen.probabilities or chosen.logits or "") == layout.values


def _require_known_order(column: pa.Array, layout: Layout) -> None:
    """Ask which class has which number where labels are numbers and the names of classes leave it open."""
    names = layout.class_names
    if names is None or layout.stated or column.null_count == len(column):
        return
    texts = texts_in(column)
    if pa.types.is_binary(column.type) or any(not reads_as_index(text) for text in texts):
        return
    numbers = numbering(names)
    if numbers is not None:
        named = layout.values if len(layout.values) > 1 and names == tuple(map(str, numbers)) else names
        raise AmbiguousInputError(
            f"labels are numbers, and the classes {some(names)} are not numbered from 0 to {len(names) - 1}",
            _readings(column, named, numbers),
        )
    orders = [*dict.fromkeys((tuple(sorted(names)), names))]
    choices = [(order, f"if label 0 is {order[0]!r}, 1 is {order[1]!r}") for order in orders]
    if -1 in {index_of(str(label)) for label in pc.unique(column).to_pylist()} and len(names) in SIGNS:
        choices.insert(0, (SIGNS[len(names)], "if the labels are these numbers, in the order of the columns"))
    raise AmbiguousInputError(
        f"labels are numbers, and nothing says which number each of the classes {some(names)} has",
        [({"class_names": joined(order)}, reason) for order, reason in choices],
    )


def _readings(column: pa.Array, names: tuple[str, ...], numbers: tuple[int, ...]) -> list[tuple[Choice, str]]:
    """Labels as the numbers of classes, and as their places; the likelier first."""
    found = {index_of(str(label)) for label in pc.unique(column).to_pylist()} - {None}
    by_number: tuple[Choice, str] = ({"class_names": joined(map(str, numbers))}, "if the labels are these numbers")
    if all(map(is_index, names)):
        return [by_number]
    named = [name for _, name in sorted(zip(numbers, names, strict=True))]
    by_place: tuple[Choice, str] = ({"class_names": joined(named)}, f"if label 0 is {named[0]!r}, 1 is {named[1]!r}")
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


def of_classes(labels: tuple[str, ...], layout: Layout) -> tuple[str, ...]:
    """Columns of labels, one for each class, in the order of the classes: by name, else as they are given."""
    if len(labels) != layout.classes or layout.is_binary:
        raise PredictionFileError(f"--label names {len(labels)} columns, {some(labels)}, for {layout.classes} classes")
    classes = layout.class_names or class_suffixes(layout.values)
    places = places_of(classes_of(labels, classes), classes)
    return labels if places is None else tuple(labels[place] for place in places)


def _with_label_columns(sample: pa.RecordBatch, layout: Layout, chosen: Columns) -> Layout:
    """A column of 0 and 1 for each class: one of them is 1, or each is a question of its own."""
    labels = layout.label
    if chosen.one_hot:
        return replace(layout, one_hot=True)
    if not chosen.multilabel and not all(_are_answers(sample.column(name)) for name in labels):
        raise AmbiguousInputError(
            f"{span(labels)} hold no yes or no for each class; perhaps {span(layout.values)} are the largest alone",
            [({"confidence": layout.values[0], "prediction": labels[0]}, "if the first is the largest of all")],
        )
    may_be_single = layout.kind == "logits" or sums_to(sample, layout.values, 1)
    if not chosen.multilabel and may_be_single and are_single_ones(sample, labels):
        raise _rows_of_labels(f"{span(labels)} are labels for each class", {}, is_single=True)
    return multilabel(layout)


def _are_answers(column: pa.Array) -> bool:
    """Whether a column of labels is a yes or no, where it is known."""
    if pa.types.is_integer(column.type):
        return all(answer in (-1, 0, 1, None) for answer in pc.unique(column).to_pylist())
    return all(reads_as_index(text) for text in texts_in(column))


def _rows_of_labels(found: str, choice: Choice, *, is_single: bool) -> AmbiguousInputError:
    single = "each of the first rows has a single 1" if is_single else ""
    readings: list[tuple[Choice, str]] = [({**choice, "one_hot": True}, single), ({**choice, "multilabel": True}, "")]
    return AmbiguousInputError(
        f"{found}: a single 1 for the class, or a yes or no for each class", readings if is_single else readings[::-1]
    )


def require_rows_of_labels(sample: pa.RecordBatch, layout: Layout, chosen: Columns) -> None:
    """Refuse to read rows of labels where there are none; ask where columns called as the classes hold them."""
    names: list[str] = sample.schema.names
    if not layout.label and layout.kind in VALUES and len(layout.values) > 1:
        classes = layout.class_names or class_suffixes(layout.values)
        beside = [name for name in names if name in classes and name not in layout.values]
        labels = tuple(name for name in beside if _are_answers(sample.column(name)) and not is_floating(sample, name))
        if (places := places_of(labels, classes)) is not None:
            labels = tuple(labels[place] for place in places)
            raise _rows_of_labels(
                f"{span(labels)} could be labels for each class",
                {"label": joined(labels)},
                is_single=are_single_ones(sample, labels),
            )
    if chosen.multilabel and layout.kind != "multilabel":
        wanted = ", ".join(f"'label_{name}'" for name in (layout.class_names or class_suffixes(layout.values))[:2])
        raise PredictionFileError(
            f"a multilabel table needs a column of labels for each class: {wanted}, ..., or a list of them; name them "
            "with --label"
        )
    if chosen.one_hot and not layout.one_hot:
        held = f"{span(layout.label)} holds one label a row" if layout.label else "no labels are known"
        raise PredictionFileError(
            f"--one-hot is about rows of labels, and {held}: leave it out, or name them with --label"
        )


def multilabel(layout: Layout) -> Layout:
    """The same, each of whose classes is a yes or no."""
    if layout.kind == "logits" and is_log_probability(layout.values[0]):
        raise PredictionFileError(
            f"{span(layout.values)} are log-probabilities, which are no logits of a yes or no; write their exponentials"
        )
    names = layout.class_names or (class_suffixes(layout.values) if len(layout.values) > 1 else None)
    kind: Kind = "multilabel"
    return replace(layout, kind=kind, sigmoid=layout.kind == "logits", is_binary=False, class_names=names)
