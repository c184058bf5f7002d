"""Which columns of a table hold what: by the names that people give them, by choice, never by a guess.

Names decide between logits and probabilities, or an option does. Where neither tells, `AmbiguousInputError` offers the
choices that would.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from counterpoise._classes import POSITIVE, class_suffixes, in_order, is_index
from counterpoise._text import some
from counterpoise.predictions.columns import (
    AmbiguousInputError,
    Columns,
    Layout,
    Reading,
    matching,
    one_of,
)
from counterpoise.predictions.descriptive import column_called, descriptive_columns
from counterpoise.predictions.labelling import (
    is_stated,
    multilabel,
    of_classes,
    require_rows_of_labels,
    with_labels,
    without_missing,
)
from counterpoise.predictions.names import (
    CONFIDENCES,
    CORRECT,
    IDS,
    LABELS,
    MODEL,
    PREDICTED,
    STATISTICS,
    TEXT_NAMES,
    VALUES,
    is_found,
    is_log_probability,
    joined,
    label_columns,
    listed,
    normal_name,
    pattern_of,
    span,
)
from counterpoise.predictions.offers import of_one_number, perhaps_labels, unnamed
from counterpoise.predictions.sample import (
    is_floating,
    is_list,
    is_list_of_numbers,
    is_list_of_texts,
    is_number,
    largest,
    list_width,
    runs_that_sum,
    seems_number,
    sums_to,
    texts_in,
    values_of,
)
from counterpoise.predictions.table import Kind, PredictionFileError

_BOTH = 2


def find_layout(
    sample: pa.RecordBatch,
    reading: Reading = Reading(),  # noqa: B008 - frozen
    *,
    members: Mapping[str, int] | None = None,
    class_names: tuple[str, ...] | None = None,
) -> Layout:
    """Find what the columns are by their names, from the first rows of a table.

    Args:
        sample: the first rows.
        reading: what was chosen.
        members: M of the columns of lists that hold M predictions each.
        class_names: where the file names them.

    >>> find_layout(pa.record_batch({"y_true": [1], "p1": [0.8], "p0": [0.2], "comment": ["-"]})).described()
    "probabilities from 'p0' to 'p1'; labels from 'y_true'; ignored: 'comment'"

    Raises:
        AmbiguousInputError: the names leave a choice.
        PredictionFileError: there are no predictions.
    """
    names = sample.schema.names
    if len({*names}) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise PredictionFileError(f"the column {repeated!r} appears more than once")
    chosen = reading.columns
    sample, missing = without_missing(sample, chosen, class_names)
    layout = _with_values(sample, reading, members or {})
    beside = _classes_beside(sample, layout)
    if class_names is None and beside is not None:
        class_names = beside[1]
    named = _class_names(chosen.names(), layout.class_names, class_names)
    layout = replace(
        layout,
        missing=missing,
        beside=beside,
        class_names=chosen.names() if layout.kind == "confidence" else named,
        id=one_of(names, IDS, chosen.id, option="id"),
        model=column_called(names, MODEL),
        named_by_number=_are_numbers(chosen.names() or ("",)),
        scale=0.01 if chosen.percent else 1.0,
    )
    layout = replace(layout, stated=is_stated(layout, chosen, by_file=named is not None and named == class_names))
    if reading.like is not None:
        layout = replace(multilabel(layout) if reading.like.kind == "multilabel" else layout, label=())
    elif not layout.label and layout.correct is None:
        layout = replace(layout, label=_labels(sample, layout, chosen))
    if layout.label and layout.kind in VALUES:
        layout = with_labels(sample, layout, chosen)
    if reading.like is None:
        require_rows_of_labels(sample, layout, chosen)
        _require_effect(names, layout, chosen)
    _require_unit(sample, layout, percent=chosen.percent)
    if layout.kind != "confidence" and len(layout.class_names or range(layout.classes)) != layout.classes:
        raise PredictionFileError(
            f"there are {len(layout.class_names or ())} class names for {layout.classes} classes: "
            f"{some(layout.class_names or ())}"
        )
    layout = replace(layout, descriptive=descriptive_columns(sample, layout.read))
    used = {*layout.read}
    ignored = tuple(name for name in names if name not in used and name)
    perhaps = () if layout.label or layout.correct else perhaps_labels(sample, layout, ignored)
    return replace(layout, ignored=ignored, perhaps_labels=perhaps)


def _classes_beside(sample: pa.RecordBatch, layout: Layout) -> tuple[str, tuple[str, ...]] | None:
    """A column of lists that names the outputs, and the names; rejected where each row has an order of its own."""
    if len(layout.values) > 1 or not is_list(sample, layout.values[0]) or layout.members is not None:
        return None
    values = values_of(sample, layout.values)
    # Of two classes, 0 and 1 may be labels unless the largest value stands first in each row.
    is_sorted = values is not None and bool((np.diff(values) <= 0).all())
    for name in sample.schema.names:
        if name in layout.values or not is_list(sample, name):
            continue
        rows = sample.column(name).to_pylist()
        first = rows[0] or []
        distinct = len(first) == len({*map(str, first)}) == layout.width > 1 and None not in first
        if not distinct or any(row is None or sorted(map(str, row)) != sorted(map(str, first)) for row in rows):
            continue
        if not is_list_of_texts(sample, name) and layout.width == _BOTH and not is_sorted:
            continue
        if any(row != first for row in rows):
            raise PredictionFileError(
                f"column {name!r} names the outputs of {layout.values[0]!r} in another order in each row; write them "
                "in one order, or as objects such as {'cat': 0.9, 'dog': 0.1}"
            )
        return name, tuple(map(str, first))
    return None


def _class_names(
    chosen: tuple[str, ...] | None, found: tuple[str, ...] | None, given: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """Those that were chosen, else those in the names of columns, else those that the file gives."""
    if chosen is not None and found is None and given is not None and chosen != given and {*chosen} == {*given}:
        raise PredictionFileError(
            f"the file says that its outputs are {some(given)}, and --class-names says {some(chosen)}: leave it "
            "out, or write the file with the right names"
        )
    return chosen or found or given


def _with_values(sample: pa.RecordBatch, reading: Reading, members: Mapping[str, int]) -> Layout:
    chosen, names = reading.columns, sample.schema.names
    if chosen.confidence is not None:
        column = one_of(names, (), chosen.confidence, option="confidence")
        assert column is not None  # noqa: S101
        return _top_label(sample, column, chosen)
    for kind, pattern in (("logits", chosen.logits), ("probabilities", chosen.probabilities)):
        if pattern is not None and (reading.like is None or is_found(names, pattern)):
            return _laid_out(sample, kind, matching(names, pattern, option=kind), members, chosen)  # type: ignore[arg-type]
    groups = sorted(_named_groups(sample), key=lambda group: is_number(sample, group[1][0]) and len(group[1]) == 1)
    if len(groups) > 1:
        choices = [({str(kind): pattern_of(columns, names)}, "") for kind, columns in groups]
        raise AmbiguousInputError(
            f"it holds {' and '.join(f'{kind} ({span(found)})' for kind, found in groups)}", choices
        )
    predicted = one_of(names, PREDICTED, chosen.prediction, option="prediction")
    if groups:
        (kind, columns) = groups[0]
        if kind == "probabilities" and len(columns) == 1 and is_number(sample, columns[0]) and predicted is not None:
            if bare := _bare_columns(sample, reading):
                return _laid_out(sample, "probabilities", bare, members, chosen)
            problem = f"column {columns[0]!r} may be the probability of y = 1 or that of the prediction"
            raise AmbiguousInputError(problem, of_one_number(sample, columns[0], predicted))
        return _laid_out(sample, kind, columns, members, chosen)
    if bare := _bare_columns(sample, reading):
        return _laid_out(sample, "probabilities", bare, members, chosen)
    if (confidence := one_of(names, CONFIDENCES, None, option="confidence")) is not None:
        return _top_label(sample, confidence, chosen)
    if reading.like is not None and len(lists := [name for name in names if is_list(sample, name)]) == 1:
        return _laid_out(sample, reading.like.kind, (lists[0],), members, chosen)
    raise unnamed(sample, predicted, chosen)


def _laid_out(
    sample: pa.RecordBatch, kind: Kind, columns: tuple[str, ...], members: Mapping[str, int], chosen: Columns
) -> Layout:
    names = sample.schema.names
    single = len(columns) == 1 and (is_number(sample, columns[0]) or list_width(sample, columns[0]) == 1)
    if single and kind == "logits" and is_log_probability(columns[0]):
        raise PredictionFileError(
            f"column {columns[0]!r} holds one log-probability a row, which is no logit: write its exponential as "
            "'probability' if it is of y = 1, or as 'confidence' if it is of the prediction"
        )
    if len(columns) == 1 and not is_number(sample, columns[0]):
        if not is_list(sample, columns[0]):
            raise PredictionFileError(
                f"column {columns[0]!r} has type {sample.schema.field(columns[0]).type}; it must hold numbers or lists "
                "of them"
            )
        if not is_list_of_numbers(sample, columns[0]):
            raise PredictionFileError(
                f"column {columns[0]!r} has type {sample.schema.field(columns[0]).type}, not lists of numbers; give "
                "each class a column of its own, or write the table as JSON lines, where labels with scores are read"
            )
        width = list_width(sample, columns[0])
        within = members.get(columns[0])
        if within is not None and width == within:
            raise PredictionFileError(
                f"column {columns[0]!r} has shape [n, {within}, 1]: one class for each of {within} members; write "
                "[n, classes], or [n, members, classes]"
            )
        return Layout(kind, columns, width, members=within, is_binary=width == 1 and within is None)
    for name in columns:
        if texts := texts_in(sample.column(name)):
            raise PredictionFileError(
                f"column {name!r} holds text, such as {texts[0]!r:.60}; write numbers such as 1234.5"
            )
        if not is_number(sample, name):
            raise PredictionFileError(f"column {name!r} holds {sample.schema.field(name).type}, not numbers")
    _require_classes_alone(kind, columns, chosen)
    try:
        columns, class_names = in_order(columns, chosen.names())
    except ValueError as error:
        raise PredictionFileError(str(error)) from None
    known = chosen.label is not None or any(normal_name(name) in LABELS for name in names)
    labels = () if known and not (chosen.multilabel or chosen.one_hot) else label_columns(names, columns)
    return Layout(
        kind,
        columns,
        len(columns),
        label=labels if chosen.label is None else (),
        class_names=class_names,
        is_binary=len(columns) == 1,
    )


def _are_numbers(names: tuple[str, ...]) -> bool:
    """Whether all names are whole numbers, of which no two are one: 7 and 007 are texts."""
    return all(map(is_index, names)) and len(set(map(int, names))) == len(names)


def _require_classes_alone(kind: Kind, columns: tuple[str, ...], chosen: Columns) -> None:
    """Ask whether columns such as `logit_scale` are classes, unless they or the classes are named."""
    suffixes = class_suffixes(columns)
    odd = [suffix for suffix in suffixes if normal_name(suffix) in STATISTICS]
    given = chosen.logits if kind == "logits" else chosen.probabilities
    if not odd or len(odd) == len(columns) or chosen.class_names is not None or listed(given or "") == columns:
        return
    others = [column for column, suffix in zip(columns, suffixes, strict=True) if suffix not in odd]
    raise AmbiguousInputError(
        f"{span(columns)} are of the classes {some(suffixes)}, and {odd[0]!r} may not be one",
        [
            ({str(kind): joined(others)}, f"if {odd[0]!r} is not a class"),
            ({"class_names": joined(suffixes)}, f"if {odd[0]!r} is a class, and this is the order of their numbers"),
        ],
    )


def _require_effect(names: Sequence[str], layout: Layout, chosen: Columns) -> None:
    """Refuse choices that would change nothing, or what they are not about."""
    for option, column in (("prediction", chosen.prediction), ("correct", chosen.correct)):
        one_of(names, (), column, option=option)
    if chosen.correct is not None and layout.correct is None:
        raise PredictionFileError(
            f"--correct is about the confidence of a prediction, and {span(layout.values)} are {layout.kind}: leave it "
            "out, or name the confidence with --confidence"
        )
    if chosen.percent and (layout.kind == "logits" or layout.sigmoid):
        raise PredictionFileError(
            f"--percent is about probabilities, and {span(layout.values)} are logits: leave it out"
        )


def _require_unit(sample: pa.RecordBatch, layout: Layout, *, percent: bool) -> None:
    """Refuse probabilities that are percentages and are not said to be, or the other way round."""
    other = 1 if percent else 100
    if layout.kind == "confidence" or (layout.kind == "probabilities" and layout.is_binary):
        most = largest(sample, layout.values)
        if not percent and layout.kind == "confidence" and 1 < most <= 10:
            raise PredictionFileError(
                f"{span(layout.values)} goes up to {most:g}, not 1; divide it by its largest value"
            )
        if not percent and 1 < most <= 100:
            raise AmbiguousInputError(f"{span(layout.values)} goes up to {most:g}, not 1", [({"percent": True}, "")])
        return
    if layout.kind != "probabilities" or not sums_to(sample, layout.values, other):
        return
    found = f"each of the first rows of {span(layout.values)} sums to {other}"
    if percent:
        raise PredictionFileError(f"{found}: leave out --percent")
    raise AmbiguousInputError(f"{found}, not 1", [({"percent": True}, "")])


def _top_label(sample: pa.RecordBatch, confidence: str, chosen: Columns) -> Layout:
    names = sample.schema.names
    if not is_number(sample, confidence):
        raise PredictionFileError(f"column {confidence!r} holds {sample.schema.field(confidence).type}, not numbers")
    correct = one_of([name for name in names if name != chosen.label], CORRECT, chosen.correct, option="correct")
    prediction = one_of(names, PREDICTED, chosen.prediction, option="prediction")
    if correct is None and prediction is None:
        raise PredictionFileError(
            f"beside the confidence in {confidence!r} it needs a column of predicted classes or of correctness: name "
            f"it with --prediction or --correct; its columns are {some(names)}"
        )
    return Layout("confidence", (confidence,), 1, correct=correct, prediction=None if correct else prediction)


def _labels(sample: pa.RecordBatch, layout: Layout, chosen: Columns) -> tuple[str, ...]:
    """The column of labels, or those that were chosen for the classes, in their order."""
    if chosen.label is not None and (chosen.one_hot or chosen.multilabel):
        found = matching(sample.schema.names, chosen.label, option="label")
        if len(found) > 1:
            return of_classes(found, layout)
    label = one_of(_perhaps_of_labels(sample), LABELS, chosen.label, option="label")
    return () if label is None else (label,)


def _perhaps_of_labels(sample: pa.RecordBatch) -> list[str]:
    """All columns but lists of texts, which name the outputs."""
    names: list[str] = sample.schema.names
    return [name for name in names if not is_list_of_texts(sample, name)]


def _named_groups(sample: pa.RecordBatch) -> Iterator[tuple[Kind, tuple[str, ...]]]:
    """Columns that their names say hold logits or probabilities: one of lists or numbers, or one for each class."""
    names = {
        name: normal_name(name)
        for name in sample.schema.names
        if is_number(sample, name) or is_list(sample, name) or seems_number(sample, name)
    }
    for kind, known in VALUES.items():
        for name, normal in names.items():
            # A single number of the "prediction" may be P(y = 1), or the probability of what was predicted.
            is_known = normal in known and (is_number(sample, name) or is_list(sample, name))
            if is_known and not (is_number(sample, name) and "pred" in normal):
                yield kind, (name,)
        wide: dict[str, list[str]] = {}
        for name, normal in names.items():
            parted = re.fullmatch(rf"({'|'.join(known)})(?:_(.+)|([0-9]+))", normal)
            if parted is not None and normal not in known and not is_list(sample, name):
                wide.setdefault(parted[1], []).append(name)
        if kind == "probabilities":
            wide["p"] = [name for name, normal in names.items() if re.fullmatch(r"p_?[0-9]+", normal)]
        for prefix, found in wide.items():
            if len(found) > 1 or any(normal_name(name).removeprefix(prefix).lstrip("_") in POSITIVE for name in found):
                yield kind, tuple(found)


def _bare_columns(sample: pa.RecordBatch, reading: Reading) -> tuple[str, ...]:
    """Columns named 0, 1, ... or as the labels are, whose rows sum to 1: probabilities, which every row is held to."""
    numbers = [name for name in sample.schema.names if is_number(sample, name)]
    digits = tuple(name for name in numbers if name.isdecimal())
    if len(digits) > 1 and sorted(map(int, digits)) == list(range(len(digits))):
        return digits
    label = one_of(_perhaps_of_labels(sample), LABELS, reading.columns.label, option="label")
    texts = set() if label is None else set(texts_in(sample.column(label)))
    found = tuple(name for name in numbers if is_floating(sample, name) and normal_name(name) not in TEXT_NAMES)
    if len(found) < 2 or not texts or not texts <= set(found):
        return ()
    if sums_to(sample, found, 1):
        return found
    runs = runs_that_sum(sample, found, texts)  # where a loss or a weight stands beside them
    return runs[0] if len(runs) == 1 else ()
