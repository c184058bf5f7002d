"""Which columns of a table hold what: by the names that people give them, by choice, never by a guess.

Names decide between logits and probabilities, or an option does. Where neither tells, `AmbiguousInputError` offers the
choices that would.
"""

import fnmatch
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.predictions.table import CATEGORIES, Kind, PredictionFileError

LABELS = (
    "label", "labels", "target", "targets", "y_true", "y", "y_test", "true_label", "true_labels", "true_class",
    "ground_truth", "gt", "truth",
)  # fmt: skip
PREDICTED = ("prediction", "predictions", "pred", "preds", "y_pred", "predicted", "predicted_label", "predicted_class")
CONFIDENCES = ("confidence", "confidences", "conf", "max_probability", "max_prob", "max_softmax", "msp")
CORRECT = ("correct", "is_correct")
IDS = ("id", "ids", "sample_id", "image_id", "uid")
MODEL = "model"
_LOGITS = ("logit", "logits", "y_logits", "log_probability", "log_probabilities", "log_prob", "log_probs", "logprob",
           "logprobs", "log_proba", "log_softmax")  # fmt: skip
_PROBABILITIES = (
    "probability", "probabilities", "prob", "probs", "proba", "probas", "y_prob", "y_probs", "y_proba",
    "y_pred_proba", "predict_proba", "pred_proba", "pred_prob", "pred_probs", "softmax",
)  # fmt: skip
# Softmax of log-probabilities gives the probabilities back, so they are logits.
VALUES: dict[Kind, tuple[str, ...]] = {"logits": _LOGITS, "probabilities": _PROBABILITIES}
_POSITIVE = ("1", "pos", "positive", "true", "yes")
"""What follows the prefix in the name of a binary model's only column: the probability is that of y = 1."""
DESCRIPTIVE = (*CATEGORIES, "severity", "in_distribution")
TEXT_NAMES = (*LABELS, *PREDICTED, *CORRECT, *IDS, *DESCRIPTIVE, MODEL)
"""Columns that are not predictions, whose cells may be text."""
_SUM_TOLERANCE = 0.05
_MOST_NAMES = 1000
_DECIMALS = range(2, 7)
_ARITHMETIC = 1e-7
"""How far float32 may be from a decimal number, or a sum of some from 1."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a file are, where their names do not tell. A comma separates alternatives.

    Attributes:
        label: the column of labels.
        probabilities: columns of probabilities: names, or patterns such as `p*`.
        logits: columns of logits, likewise.
        confidence: the column of the predicted class's probability, where nothing else is known.
        prediction: the column of the predicted class.
        correct: the column that says whether the prediction was right.
        id: the column of sample ids.
        labels: a file of labels, one for each row.
        class_names: of the outputs in order, where labels are text.
        percent: whether probabilities are percentages.
        one_hot: whether labels are rows of K with a single 1.
        multilabel: whether each class is a yes-or-no question of its own.
    """

    label: str | None = None
    probabilities: str | None = None
    logits: str | None = None
    confidence: str | None = None
    prediction: str | None = None
    correct: str | None = None
    id: str | None = None
    labels: str | Path | None = None
    class_names: str | None = None
    percent: bool = False
    one_hot: bool = False
    multilabel: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("probabilities", "logits", "confidence") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} exclude each other: choose one")
        if self.label is not None and self.labels is not None:
            raise ValueError("label names a column and labels a file: choose one")
        if self.one_hot and self.multilabel:
            raise ValueError("one_hot and multilabel exclude each other: choose one")

    def names(self) -> tuple[str, ...] | None:
        """The class names as a tuple."""
        return None if self.class_names is None else tuple(name.strip() for name in self.class_names.split(","))


Choice = Mapping[str, str | bool]
"""Fields of `Columns` and their values."""


class AmbiguousInputError(PredictionFileError):
    """What can be read in more than one way, and the choices that say how: fields of `Columns`, or other arguments."""

    def __init__(self, problem: str, choices: Sequence[tuple[Choice, str]]) -> None:
        self.problem, self.choices = problem, tuple(choices)
        super().__init__(f"{problem}. Choose {', or '.join(self._as_python())}" if choices else problem)

    def at(self, path: Path) -> "AmbiguousInputError":
        """The same with the name of the file."""
        return AmbiguousInputError(f"{path}: {self.problem}", self.choices)

    def as_commands(self, arguments: Sequence[str]) -> str:
        """The question with complete commands: the arguments that were given, and what was missing."""
        lines = []
        for choice, reason in self.choices:
            command = shlex.join(["counterpoise", "evaluate", *arguments, *_options(choice)])
            lines.append(f"  {command}" + (f"    # {reason}" if reason else ""))
        return "\n".join([f"{self.problem}. Run", *lines]) if lines else self.problem

    def _as_python(self) -> Iterator[str]:
        for choice, reason in self.choices:
            arguments = ", ".join(f"{name}={value!r}" for name, value in choice.items())
            yield arguments + (f" ({reason})" if reason else "")


def _options(choice: Choice) -> Iterator[str]:
    for name, value in choice.items():
        yield f"--{name.replace('_', '-')}"
        if isinstance(value, str):
            yield value


@dataclass(frozen=True)
class Layout:
    """Where everything is in a table.

    Attributes:
        kind: what the values are.
        values: one column of lists, or one column for each class in their order; a single column of numbers is the
            positive class of a binary model, or a confidence.
        width: values a row.
        members: M of an ensemble, or None.
        label: the column of labels, none, or one for each label of a multilabel table.
        class_names: of the outputs in order, where known.
        prediction: the column of the predicted class, of a table of confidences.
        correct: the column that says whether it was right, likewise.
        id: the column of ids.
        model: the column that tells several models apart.
        is_binary: whether one value stands for two classes.
        one_hot: whether labels are rows with a single 1.
        scale: that values are multiplied by.
        sigmoid: whether the values of a multilabel table are logits.
        decimals: that probabilities were rounded to, where rows show it by not summing to 1.
        ignored: columns that mean nothing here.
    """

    kind: Kind
    values: tuple[str, ...]
    width: int
    members: int | None = None
    label: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None
    prediction: str | None = None
    correct: str | None = None
    id: str | None = None
    model: str | None = None
    is_binary: bool = False
    one_hot: bool = False
    scale: float = 1.0
    sigmoid: bool = False
    decimals: int | None = None
    ignored: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """K."""
        return 2 if self.is_binary else self.width // (self.members or 1)

    @property
    def read(self) -> tuple[str, ...]:
        """Every column that is read but for the descriptive ones."""
        named = (self.prediction, self.correct, self.id, self.model)
        return (*self.values, *self.label, *(name for name in named if name is not None))

    def described(self) -> str:
        """What was taken for what, in a line."""
        parts = [f"{self.kind} from {_span(self.values)}"]
        if self.is_binary:
            parts[0] += f", taken as {'P(y = 1)' if self.kind == 'probabilities' else 'the logit of y = 1'}"
        parts += [f"{what} from {_span(names)}" for what, names in self._others() if names]
        if self.decimals is not None:
            least = 0.5 * 10.0**-self.decimals
            parts.append(f"rounded to {self.decimals} decimals, so rows are normalised, and 0 is less than {least:g}")
        if self.ignored:
            parts.append(f"ignored: {_some(self.ignored)}")
        return "; ".join(parts)

    def _others(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield "labels", self.label
        for what, name in (("predictions", self.prediction), ("correctness", self.correct), ("ids", self.id)):
            yield what, () if name is None else (name,)
        yield "models", () if self.model is None else (self.model,)


@dataclass(frozen=True)
class Reading:
    """How a file is to be read.

    Attributes:
        columns: what was chosen.
        like: the layout of the model's own file, for a file of OOD samples, whose labels mean nothing.
        only: of a file of several models, the one whose rows are read.
    """

    columns: Columns = Columns()
    like: Layout | None = None
    only: str | None = None


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
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise PredictionFileError(f"the column {repeated!r} appears more than once")
    chosen = reading.columns
    layout = _with_values(sample, reading, members or {})
    named = chosen.names() or layout.class_names or class_names
    layout = replace(
        layout,
        class_names=named if layout.kind in VALUES or layout.kind == "multilabel" else None,
        id=_one_of(names, IDS, chosen.id, option="id"),
        model=MODEL if MODEL in names else None,
        scale=0.01 if chosen.percent else 1.0,
    )
    if reading.like is None and not layout.label and layout.correct is None:
        label = _one_of(names, LABELS, chosen.label, option="label")
        layout = replace(layout, label=() if label is None else (label,))
    if len(layout.label) == 1 and layout.kind in VALUES:
        layout = _with_labels(sample, layout, chosen)
    if not chosen.percent:
        _require_no_percentages(sample, layout)
        layout = replace(layout, decimals=_decimals(sample, layout))
    if layout.class_names is not None and len(layout.class_names) != layout.classes:
        raise PredictionFileError(
            f"there are {len(layout.class_names)} class names for {layout.classes} classes: {_some(layout.class_names)}"
        )
    used = {*layout.read, *DESCRIPTIVE}
    return replace(layout, ignored=tuple(name for name in names if name not in used and name))


def _with_values(sample: pa.RecordBatch, reading: Reading, members: Mapping[str, int]) -> Layout:
    chosen, names = reading.columns, sample.schema.names
    if chosen.confidence is not None:
        column = _one_of(names, (), chosen.confidence, option="confidence")
        assert column is not None  # noqa: S101
        return _top_label(sample, column, chosen)
    for kind, pattern in (("logits", chosen.logits), ("probabilities", chosen.probabilities)):
        if pattern is not None and (reading.like is None or _is_found(names, pattern)):
            return _laid_out(sample, kind, _matching(names, pattern, option=kind), members, chosen)  # type: ignore[arg-type]
    groups = list(_named_groups(sample))
    if len(groups) > 1:
        choices = [({str(kind): _pattern(columns, names)}, "") for kind, columns in groups]
        raise AmbiguousInputError(
            f"it holds {' and '.join(f'{kind} ({_span(found)})' for kind, found in groups)}", choices
        )
    confidence = _one_of(names, CONFIDENCES, None, option="confidence")
    predicted = _one_of(names, PREDICTED, chosen.prediction, option="prediction")
    if groups:
        (kind, columns) = groups[0]
        if kind == "probabilities" and len(columns) == 1 and _is_number(sample, columns[0]) and predicted is not None:
            raise AmbiguousInputError(
                f"column {columns[0]!r} may be the probability of y = 1 or that of the prediction in {predicted!r}",
                [({"confidence": columns[0]}, "of the prediction"), ({"probabilities": columns[0]}, "of y = 1")],
            )
        return _laid_out(sample, kind, columns, members, chosen)
    if confidence is not None:
        return _top_label(sample, confidence, chosen)
    bare = _bare_columns(sample, chosen)
    if bare:
        return _laid_out(sample, "probabilities", bare, members, chosen)
    if reading.like is not None and len(lists := [name for name in names if _is_list(sample, name)]) == 1:
        return _laid_out(sample, reading.like.kind, (lists[0],), members, chosen)
    raise _unnamed(sample, predicted, chosen)


def _laid_out(
    sample: pa.RecordBatch, kind: Kind, columns: tuple[str, ...], members: Mapping[str, int], chosen: Columns
) -> Layout:
    names = sample.schema.names
    if len(columns) == 1 and not _is_number(sample, columns[0]):
        if not _is_list(sample, columns[0]):
            raise PredictionFileError(
                f"column {columns[0]!r} has type {sample.schema.field(columns[0]).type}; it must hold numbers or lists "
                "of them"
            )
        width = _list_width(sample, columns[0])
        within = members.get(columns[0])
        return Layout(kind, columns, width, members=within, is_binary=width == 1 and within is None)
    for name in columns:
        if not _is_number(sample, name):
            raise PredictionFileError(f"column {name!r} holds {sample.schema.field(name).type}, not numbers")
    columns, class_names = _in_order(columns)
    labels = _label_columns(names, columns)
    if chosen.multilabel and not labels:
        wanted = ", ".join(f"'label_{name}'" for name in (class_names or columns)[:2])
        raise PredictionFileError(f"a multilabel table needs a column of labels for each class: {wanted}, ...")
    if labels and (chosen.multilabel or not set(names).intersection(LABELS)):
        names_of = class_names or _suffixes(columns)
        return _multilabel(Layout(kind, columns, len(columns), label=labels, class_names=names_of))
    return Layout(kind, columns, len(columns), class_names=class_names, is_binary=len(columns) == 1)


def _require_no_percentages(sample: pa.RecordBatch, layout: Layout) -> None:
    if layout.kind == "probabilities" and not layout.is_binary and _sums_to(sample, layout.values, 100):
        raise AmbiguousInputError(
            f"each of the first rows of {_span(layout.values)} sums to 100, not 1", [({"percent": True}, "")]
        )


def _decimals(sample: pa.RecordBatch, layout: Layout) -> int | None:
    """What probabilities were rounded to. A forest of 100 trees gives hundredths too, but its rows sum to 1."""
    if layout.kind != "probabilities" or layout.is_binary or layout.members is not None:
        return None
    values = _values_of(sample, layout.values)
    if values is None or not _sums_to(sample, layout.values, 1) or (abs(values.sum(-1) - 1) < _ARITHMETIC).all():
        return None
    found = (places for places in _DECIMALS if (abs(values - values.round(places)) < _ARITHMETIC).all())
    return next(found, None)


def _multilabel(layout: Layout) -> Layout:
    return replace(layout, kind="multilabel", sigmoid=layout.kind == "logits", is_binary=False)


def _top_label(sample: pa.RecordBatch, confidence: str, chosen: Columns) -> Layout:
    names = sample.schema.names
    if not _is_number(sample, confidence):
        raise PredictionFileError(f"column {confidence!r} holds {sample.schema.field(confidence).type}, not numbers")
    correct = _one_of(names, CORRECT, chosen.correct, option="correct")
    prediction = _one_of(names, PREDICTED, chosen.prediction, option="prediction")
    if correct is None and prediction is None:
        raise PredictionFileError(
            f"beside the confidence in {confidence!r} it needs a column of predicted classes or of correctness: name "
            f"it with --prediction or --correct; its columns are {_some(names)}"
        )
    return Layout("confidence", (confidence,), 1, correct=correct, prediction=None if correct else prediction)


def _with_labels(sample: pa.RecordBatch, layout: Layout, chosen: Columns) -> Layout:
    """Labels as indices, as texts whose order is known, or as rows of K; anything else is asked about."""
    (name,) = layout.label
    column = sample.column(name)
    if _is_list(sample, name):
        width = _list_width(sample, name)
        if width == 1:
            return layout
        if width != layout.classes:
            raise PredictionFileError(f"column {name!r} has {width} labels a row for {layout.classes} classes")
        if chosen.multilabel:
            return _multilabel(layout)
        if not chosen.one_hot:
            single = "each of the first rows has a single 1" if _single_ones(column) else ""
            readings: list[tuple[Choice, str]] = [({"one_hot": True}, single), ({"multilabel": True}, "")]
            raise AmbiguousInputError(
                f"column {name!r} has {width} labels a row: a single 1 for the class, or a yes or no for each class",
                readings if single else readings[::-1],
            )
        return replace(layout, one_hot=True)
    texts = _texts(column)
    if layout.class_names is not None or not texts or all(_reads_as_index(text) for text in texts):
        return layout
    categories = _categories(sample, name)
    if categories is not None and len(categories) == layout.classes:
        return replace(layout, class_names=categories)
    found = sorted(set(texts))[:_MOST_NAMES]
    choices: list[tuple[Choice, str]] = []
    if layout.is_binary and len(found) == 2:
        choices = [({"class_names": ",".join(order)}, f"y = 1 is {order[1]!r}") for order in (found, found[::-1])]
    elif len(found) == layout.classes:
        choices = [({"class_names": ",".join(found)}, "if the outputs are in alphabetical order; else in theirs")]
    raise AmbiguousInputError(
        f"the labels in {name!r} are text ({_some(found)}), and nothing says which of the {layout.classes} outputs is "
        "which class",
        choices,
    )


def _named_groups(sample: pa.RecordBatch) -> Iterator[tuple[Kind, tuple[str, ...]]]:
    """Columns that their names say hold logits or probabilities: one of lists or numbers, or one for each class."""
    names = {
        name: normal_name(name) for name in sample.schema.names if _is_number(sample, name) or _is_list(sample, name)
    }
    for kind, known in VALUES.items():
        for name, normal in names.items():
            # A single number of the "prediction" may be P(y = 1), or the probability of what was predicted.
            if normal in known and not (_is_number(sample, name) and "pred" in normal):
                yield kind, (name,)
        wide: dict[str, list[str]] = {}
        for name, normal in names.items():
            parted = re.fullmatch(rf"({'|'.join(known)})(?:_(.+)|([0-9]+))", normal)
            if parted is not None and normal not in known and _is_number(sample, name):
                wide.setdefault(parted[1], []).append(name)
        if kind == "probabilities":
            wide["p"] = [name for name, normal in names.items() if re.fullmatch(r"p_?[0-9]+", normal)]
        for prefix, found in wide.items():
            if len(found) > 1 or any(normal_name(name).removeprefix(prefix).lstrip("_") in _POSITIVE for name in found):
                yield kind, tuple(found)


def _bare_columns(sample: pa.RecordBatch, chosen: Columns) -> tuple[str, ...]:
    """Columns named 0, 1, ... or as the labels are, whose rows sum to 1: probabilities, which every row is held to."""
    numbers = [name for name in sample.schema.names if _is_number(sample, name)]
    digits = tuple(name for name in numbers if name.isdecimal())
    if len(digits) > 1 and sorted(map(int, digits)) == list(range(len(digits))):
        return digits
    label = _one_of(sample.schema.names, LABELS, chosen.label, option="label")
    texts = set() if label is None else set(_texts(sample.column(label)))
    floats = tuple(name for name in numbers if pa.types.is_floating(sample.schema.field(name).type))
    found = tuple(name for name in floats if normal_name(name) not in TEXT_NAMES)
    if len(found) > 1 and texts and texts <= set(found) and _sums_to(sample, found, 1):
        return found
    return ()


def _unnamed(sample: pa.RecordBatch, predicted: str | None, chosen: Columns) -> PredictionFileError:
    """What to say of a table in which no name tells the predictions; a question, where something could be them."""
    names = sample.schema.names
    for name in names:
        if normal_name(name) in (*_LOGITS, *_PROBABILITIES) and (found := _texts(sample.column(name))):
            return PredictionFileError(
                f"column {name!r} holds text, such as {found[0]!r:.60}; give each class a column of its own, or write "
                "lists as Parquet or JSON lines"
            )
    free = [name for name in names if name and normal_name(name) not in TEXT_NAMES and name != chosen.label]
    lists = [name for name in free if _is_list(sample, name)]
    numbers = [name for name in free if _is_number(sample, name)]
    label: dict[str, str] = {}
    if chosen.label is None and chosen.labels is None and not any(normal_name(name) in LABELS for name in names):
        others = [
            name for name in free if name not in lists and not pa.types.is_floating(sample.schema.field(name).type)
        ]
        if len(others) == 1 < len(free):
            label = {"label": others[0]}
            numbers = [name for name in numbers if name not in others]
    groups: dict[str, list[str]] = {}
    for name in numbers:
        groups.setdefault(re.sub(r"[0-9]+$", "", name), []).append(name)
    wide = [tuple(found) for found in groups.values() if len(found) > 1]
    if not wide and len(numbers) > 1 and _sums_to(sample, tuple(numbers), 1):
        wide = [tuple(numbers)]
    choices: list[tuple[Choice, str]] = []
    for columns in (*((name,) for name in lists), *wide):
        pattern = _pattern(columns, names)
        whole = _sums_to(sample, columns, 1)
        both = [
            ({"probabilities": pattern} | label, "each of the first rows sums to 1" if whole else ""),
            ({"logits": pattern} | label, ""),
        ]
        choices += both if whole else both[::-1]
    if not choices and predicted is not None:
        choices = [({"confidence": name} | label, f"of the prediction in {predicted!r}") for name in numbers[:2]]
    elif not choices:
        kinds = ["logits" if normal_name(name).startswith(_LOGITS) else "probabilities" for name in numbers[:2]]
        choices = [({kind: name} | label, "of y = 1") for kind, name in zip(kinds, numbers, strict=False)]
    if not choices:
        wanted = "'logits' or 'probabilities', or one column 'logit_NAME' or 'probability_NAME' for each class"
        return PredictionFileError(f"the table has no predictions: it needs {wanted}; its columns are {_some(names)}")
    held = f"{_span(tuple(lists) or (wide[0] if wide else tuple(numbers[:2])))}"
    return AmbiguousInputError(
        f"no name says what the predictions are: {held} could be, and its columns are {_some(names)}", choices
    )


def _label_columns(names: Sequence[str], values: tuple[str, ...]) -> tuple[str, ...]:
    """Of a multilabel table, the column of labels for each column of probabilities, or none."""
    if len(values) < 2:
        return ()
    for prefix in LABELS:
        wanted = tuple(f"{prefix}_{suffix}" for suffix in _suffixes(values))
        if set(wanted) <= set(names):
            return wanted
    return ()


def _in_order(columns: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Columns that are numbered from 0 in that order; of others, the names of their classes.

    A class must not be named by a number: a label 1 could be the class of that name, or the second one.
    """
    if len(columns) == 1:
        return columns, None
    suffixes = _suffixes(columns)
    numbered = {int(suffix): column for column, suffix in zip(columns, suffixes, strict=True) if is_index(suffix)}
    if not numbered:
        return columns, suffixes
    if sorted(numbered) != list(range(len(columns))):
        raise PredictionFileError(
            f"the columns {_some(columns)} are not numbered from 0 to {len(columns) - 1}; number them so, or give "
            "every class a name that is no number"
        )
    return tuple(numbered[index] for index in range(len(columns))), None


def _suffixes(columns: tuple[str, ...]) -> tuple[str, ...]:
    """What follows the prefix that all columns share, which is a known one or ends at a number or an underscore."""
    for known in (*_PROBABILITIES, *_LOGITS, "p"):
        for end in ("_", " ", "-", ""):
            prefix = f"{known}{end}"
            if all(_starts(name, prefix) for name in columns):
                rest = tuple(name[len(prefix) :] for name in columns)
                if all(rest) and (end or all(is_index(each) for each in rest)):
                    return rest
    shared = re.match(r"^(.*?)[0-9]+$", columns[0])
    if shared and all(re.fullmatch(re.escape(shared[1]) + r"[0-9]+", name) for name in columns):
        return tuple(name[len(shared[1]) :] for name in columns)
    return columns


def _starts(name: str, prefix: str) -> bool:
    return name[: len(prefix)].casefold() == prefix


def _one_of(names: Sequence[str], known: Sequence[str], chosen: str | None, *, option: str) -> str | None:
    """The column that was chosen, or the only one of a known name."""
    if chosen is not None:
        found = [name for name in _alternatives(names, chosen) if name in names]
        if not found:
            raise PredictionFileError(f"it has no column {chosen!r} (--{option}); its columns are {_some(names)}")
        return found[0]
    found = [name for name in names if normal_name(name) in known]
    if len(found) > 1:
        raise AmbiguousInputError(
            f"{' and '.join(map(repr, found))} could each be the column of {option}s",
            [({option: name}, "") for name in found],
        )
    return found[0] if found else None


def _alternatives(names: Sequence[str], chosen: str) -> list[str]:
    return [chosen] if chosen in names else [each.strip() for each in chosen.split(",")]


def _matching(names: Sequence[str], pattern: str, *, option: str) -> tuple[str, ...]:
    """The columns of a pattern such as `p*`, or of several with commas between them."""
    if pattern in names:
        return (pattern,)
    found = [name for each in pattern.split(",") for name in names if fnmatch.fnmatchcase(name, each.strip())]
    if not found:
        raise PredictionFileError(f"no column is named {pattern!r} (--{option}); its columns are {_some(names)}")
    return tuple(dict.fromkeys(found))


def _is_found(names: Sequence[str], pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, each.strip()) for name in names for each in (pattern, *pattern.split(",")))


def _pattern(columns: tuple[str, ...], names: Sequence[str]) -> str:
    """The shortest pattern that stands for these columns and no other."""
    shared = re.sub(r"[0-9]+$", "", columns[0])
    for pattern in (f"{shared}*", f"{shared}[0-9]*"):
        if len(columns) > 1 and tuple(name for name in names if fnmatch.fnmatchcase(name, pattern)) == columns:
            return pattern
    return ",".join(columns)


def normal_name(name: str) -> str:
    """A column's name as known ones are written."""
    return re.sub(r"[ \-.]+", "_", name.strip().casefold())


def is_index(text: str) -> bool:
    """Whether text is a whole number."""
    return re.fullmatch(r"-?[0-9]{1,18}", text) is not None


def _reads_as_index(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,18}(\.0*)?|[Tt]rue|TRUE|[Ff]alse|FALSE", text.strip()) is not None


def _is_number(sample: pa.RecordBatch, name: str) -> bool:
    kind = sample.schema.field(name).type
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_list(sample: pa.RecordBatch, name: str) -> bool:
    kind = sample.schema.field(name).type
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _list_width(sample: pa.RecordBatch, name: str) -> int:
    column = sample.column(name)
    width = column.type.list_size if pa.types.is_fixed_size_list(column.type) else None
    if width is None:
        first = column[0] if len(column) else None
        width = len(first) if first is not None and first.is_valid else 0
    if not width:
        raise PredictionFileError(f"row 0, column {name!r} is empty; every row needs a value for each class")
    return int(width)


def _texts(column: Any) -> list[str]:
    """The distinct texts of a column of text; none of any other column."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        return []
    decoded = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return [text for text in pc.unique(decoded).to_pylist() if text]


def _categories(sample: pa.RecordBatch, name: str) -> tuple[str, ...] | None:
    """The categories of a pandas column, whose order is meant; that of other dictionaries is how they were met."""
    column = sample.column(name)
    if not pa.types.is_dictionary(column.type) or b"pandas" not in (sample.schema.metadata or {}):
        return None
    return tuple(map(str, column.dictionary.to_pylist()))


def _values_of(sample: pa.RecordBatch, columns: tuple[str, ...]) -> np.ndarray[Any, Any] | None:
    if len(columns) == 1 and _is_list(sample, columns[0]):
        rows = sample.column(columns[0]).to_pylist()
        return np.array(rows, float) if rows and len({len(row or ()) for row in rows}) == 1 else None
    return np.column_stack([sample.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False) for name in columns])


def _sums_to(sample: pa.RecordBatch, columns: tuple[str, ...], total: float) -> bool:
    try:
        values = _values_of(sample, columns)
    except (TypeError, ValueError, pa.ArrowInvalid):
        return False
    if values is None or not values.size:
        return False
    return bool(((values >= 0).all(-1) & (abs(values.sum(-1) - total) <= _SUM_TOLERANCE * total)).all())


def _single_ones(column: Any) -> bool:
    rows = np.array(column.to_pylist(), float)
    return bool((((rows == 0) | (rows == 1)).all(-1) & (rows.sum(-1) == 1)).all())


def _span(names: Sequence[str]) -> str:
    return repr(names[0]) if len(names) == 1 else f"{names[0]!r} to {names[-1]!r}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
