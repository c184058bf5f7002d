"""What the columns of a table are called, and what was chosen where their names do not tell."""

import csv
import fnmatch
import io
import itertools
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from counterpoise._files import FilePath
from counterpoise.predictions.table import CATEGORIES, Kind, PredictionFileError

LABELS = (
    "label", "labels", "target", "targets", "y_true", "y", "y_test", "true", "true_label", "true_labels", "true_class",
    "ground_truth", "gt", "truth", "gold", "gold_label", "actual", "actual_label", "actual_class", "expected",
)  # fmt: skip
PREDICTED = (
    "prediction", "predictions", "pred", "preds", "y_pred", "y_hat", "predicted", "predicted_label", "predicted_class",
    "pred_label", "pred_class", "top1", "top_1",
)  # fmt: skip
CONFIDENCES = (
    "confidence", "confidences", "conf", "max_probability", "max_prob", "max_softmax", "msp", "top1_prob", "top_1_prob",
    "top1_probability", "top1_confidence", "top1_score",
)  # fmt: skip
CORRECT = ("correct", "is_correct")
IDS = ("id", "ids", "sample_id", "image_id", "uid")
MODEL = "model"
CLASS_NAMES = "class_names"
"""What is no column: the names of the outputs in order."""
SPACES = " \t"
"""What may stand around the names of columns and of classes."""
SEPARATORS = ("_", " ", "-", ".", "/", ":", "[")
"""What may stand between a known name and a class; after the last, `]` follows."""
LOGITS = ("logit", "logits", "y_logits", "log_probability", "log_probabilities", "log_prob", "log_probs", "logprob",
           "logprobs", "log_proba", "log_softmax")  # fmt: skip
PROBABILITIES = (
    "probability", "probabilities", "prob", "probs", "proba", "probas", "y_prob", "y_probs", "y_proba",
    "y_pred_proba", "predict_proba", "pred_proba", "pred_prob", "pred_probs", "softmax",
)  # fmt: skip
# Softmax of log-probabilities gives the probabilities back, so they are logits.
VALUES: dict[Kind, tuple[str, ...]] = {"logits": LOGITS, "probabilities": PROBABILITIES}
TRUTH = {"true": 1, "false": 0}
"""Labels of two classes that are no numbers."""
_LARGEST_EXACT = 2.0**53
POSITIVE = ("1", "pos", "positive", "true", "yes")
"""What follows the prefix in the name of a binary model's only column: the probability is that of y = 1."""
DESCRIPTIVE = (*CATEGORIES, "severity", "in_distribution")
GROUPED = ("domain", "corruption", "severity")
"""Columns that samples are grouped by wherever they are."""
TEXT_NAMES = (*LABELS, *PREDICTED, *CORRECT, *IDS, *DESCRIPTIVE, MODEL)
"""Columns that are not predictions, whose cells may be text."""


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
        class_names: of the outputs in order, where labels are text, or numbers that are not indices from 0.
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
    labels: str | FilePath | None = None
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
        return None if self.class_names is None else listed(self.class_names)


Choice = Mapping[str, str | bool]
"""Fields of `Columns` and their values."""


class AmbiguousInputError(PredictionFileError):
    """What can be read in more than one way, and the choices that say how: fields of `Columns`, or other arguments."""

    def __init__(self, problem: str, choices: Sequence[tuple[Choice, str]]) -> None:
        self.problem, self.choices = problem, tuple(choices)
        super().__init__(f"{problem}. Choose {', or '.join(self._as_python())}" if choices else problem)

    def at(self, path: FilePath) -> "AmbiguousInputError":
        """The same with the name of the file."""
        return AmbiguousInputError(f"{path}: {self.problem}", self.choices)

    def as_commands(self, arguments: Sequence[str], *, command: str = "evaluate") -> str:
        """The question with complete commands: the arguments that were given, and what was missing."""
        lines = []
        for choice, reason in self.choices:
            words = shlex.join(["counterpoise", command, *arguments, *_options(choice)])
            lines.append(f"  {words}" + (f"    # {reason}" if reason else ""))
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
        named_by_number: whether labels are numbers among these names, and not indices.
        prediction: the column of the predicted class, of a table of confidences.
        correct: the column that says whether it was right, likewise.
        id: the column of ids.
        model: the column that tells several models apart.
        is_binary: whether one value stands for two classes.
        one_hot: whether labels are rows with a single 1.
        scale: that values are multiplied by.
        sigmoid: whether the values of a multilabel table are logits.
        decimals: that probabilities were rounded to, where rows show it by not summing to 1.
        by: columns that samples are grouped by, beside those of known names.
        ignored: columns that mean nothing here.
        perhaps_labels: of these, where no column is known to hold labels, the ones whose values could be labels.
    """

    kind: Kind
    values: tuple[str, ...]
    width: int
    members: int | None = None
    label: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None
    named_by_number: bool = False
    prediction: str | None = None
    correct: str | None = None
    id: str | None = None
    model: str | None = None
    is_binary: bool = False
    one_hot: bool = False
    scale: float = 1.0
    sigmoid: bool = False
    decimals: int | None = None
    by: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    perhaps_labels: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """K."""
        return 2 if self.is_binary else self.width // (self.members or 1)

    @property
    def read(self) -> tuple[str, ...]:
        """Every column that is read but for the descriptive ones."""
        named = (self.prediction, self.correct, self.id, self.model)
        return (*self.values, *self.label, *(name for name in named if name is not None), *self.by)

    def described(self) -> str:
        """What was taken for what, in a line."""
        parts = [f"{self.kind} from {span(self.values)}"]
        if self.is_binary:
            parts[0] += f", taken as {'P(y = 1)' if self.kind == 'probabilities' else 'the logit of y = 1'}"
        parts += [f"{what} from {span(names)}" for what, names in self._others() if names]
        if self.decimals is not None:
            least = 0.5 * 10.0**-self.decimals
            parts.append(f"rounded to {self.decimals} decimals, so rows are normalised, and 0 is less than {least:g}")
        if self.ignored:
            parts.append(f"ignored: {some(self.ignored)}")
        return "; ".join(parts)

    def _others(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield "labels", self.label
        for what, name in (("predictions", self.prediction), ("correctness", self.correct), ("ids", self.id)):
            yield what, () if name is None else (name,)
        yield "models", () if self.model is None else (self.model,)
        yield from (("groups", (name,)) for name in self.by)


@dataclass(frozen=True)
class Reading:
    """How a file is to be read.

    Attributes:
        columns: what was chosen.
        like: the layout of the model's own file, for a file of OOD samples, whose labels mean nothing.
        only: of a file of several models, the one whose rows are read.
        by: columns that samples are grouped by.
        texts: the distinct labels in a file of their own, where they are text.
    """

    columns: Columns = Columns()
    like: Layout | None = None
    only: str | None = None
    by: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def classes_within(columns: tuple[str, ...], labels: Collection[str]) -> tuple[str, ...]:
    """The part of each column's name that is a class by these labels, between what all names begin and end with.

    >>> classes_within(("P(y=cat)", "P(y=dog)"), {"dog"})
    ('cat', 'dog')
    """
    starts, ends = (_boundaries(names) for names in (columns, [name[::-1] for name in columns]))
    for start, end in itertools.product(starts, ends):
        names = tuple(name[start : len(name) - end] for name in columns)
        if all(names) and set(labels) <= set(names):
            return names
    return columns


def _boundaries(names: Sequence[str]) -> list[int]:
    """Lengths of the beginnings that all names share and that end in no letter or digit, 0 first."""
    shared = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return [0, *(place for place, letters in enumerate(shared, 1) if not letters[0].isalnum())]


def label_columns(names: Sequence[str], values: tuple[str, ...]) -> tuple[str, ...]:
    """Of a multilabel table, the column of labels for each column of probabilities, or none."""
    if len(values) < 2:
        return ()
    for prefix in LABELS:
        wanted = tuple(f"{prefix}_{suffix}" for suffix in class_suffixes(values))
        if set(wanted) <= set(names):
            return wanted
    return ()


def in_order(
    columns: tuple[str, ...], chosen: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Columns that are numbered from 0 in that order; of others, the names of their classes.

    Whether a class is named by a number is asked about: a label 1 could be the class of that name, or the second one.
    """
    if len(columns) == 1:
        return columns, None
    suffixes = class_suffixes(columns)
    numbered = {int(suffix): column for column, suffix in zip(columns, suffixes, strict=True) if is_index(suffix)}
    if not numbered:
        return columns, suffixes
    if sorted(numbered) != list(range(len(columns))):
        if chosen is not None:
            return columns, chosen
        problem = f"the columns {some(columns)} are not numbered from 0 to {len(columns) - 1}"
        if len(numbered) < len(columns):
            raise PredictionFileError(f"{problem}; number them so, or give every class a name that is no number")
        raise AmbiguousInputError(problem, [({"class_names": joined(suffixes)}, "if the labels are these numbers")])
    return tuple(numbered[index] for index in range(len(columns))), None


def class_suffixes(columns: tuple[str, ...]) -> tuple[str, ...]:
    """What follows the prefix that all columns share, which is a known one or ends at a number or an underscore."""
    columns = stripped(columns)
    for known in (*PROBABILITIES, *LOGITS, "p"):
        for end in (*SEPARATORS, ""):
            prefix = f"{known}{end}"
            if all(_starts(name, prefix) for name in columns):
                rest = tuple(name[len(prefix) :].removesuffix("]" if end == "[" else "") for name in columns)
                if all(rest) and (end or all(is_index(each) for each in rest)):
                    return rest
    shared = re.match(r"^(.*?)[0-9]+$", columns[0])
    if shared and all(re.fullmatch(re.escape(shared[1]) + r"[0-9]+", name) for name in columns):
        return tuple(name[len(shared[1]) :] for name in columns)
    return columns


def _starts(name: str, prefix: str) -> bool:
    return name[: len(prefix)].casefold() == prefix


def one_of(names: Sequence[str], known: Sequence[str], chosen: str | None, *, option: str) -> str | None:
    """The column that was chosen, or the only one of a known name."""
    if chosen is not None:
        found = [name for name in _alternatives(names, chosen) if name in names]
        if not found:
            raise PredictionFileError(f"it has no column {chosen!r} (--{option}); its columns are {some(names)}")
        return found[0]
    found = [name for name in names if normal_name(name) in known]
    if len(found) > 1:
        raise AmbiguousInputError(
            f"{' and '.join(map(repr, found))} could each be the column of {option}s",
            [({option: name}, "") for name in found],
        )
    return found[0] if found else None


def _alternatives(names: Sequence[str], chosen: str) -> tuple[str, ...]:
    return (chosen,) if chosen in names else listed(chosen)


def matching(names: Sequence[str], pattern: str, *, option: str) -> tuple[str, ...]:
    """The columns of a pattern such as `p*`, or of several with commas between them."""
    if pattern in names:
        return (pattern,)
    found = [name for each in listed(pattern) for name in names if _fits(name, each)]
    if not found:
        raise PredictionFileError(f"no column is named {pattern!r} (--{option}); its columns are {some(names)}")
    return tuple(dict.fromkeys(found))


def is_found(names: Sequence[str], pattern: str) -> bool:
    """Whether a pattern stands for any column."""
    return any(_fits(name, each) for name in names for each in (pattern, *listed(pattern)))


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def pattern_of(columns: tuple[str, ...], names: Sequence[str]) -> str:
    """The shortest pattern that stands for these columns and no other."""
    shared, begun = re.sub(r"[0-9]+$", "", columns[0]), columns[0][: _boundaries(columns)[-1]]
    for pattern in (f"{shared}*", f"{shared}[0-9]*", f"{begun}*"):
        if len(columns) > 1 and tuple(name for name in names if fnmatch.fnmatchcase(name, pattern)) == columns:
            return pattern
    return joined(columns)


def listed(text: str) -> tuple[str, ...]:
    """Names with commas between them; one that has a comma stands in quotes, as in CSV."""
    return stripped(next(csv.reader([text], skipinitialspace=True), []))


def joined(names: Iterable[str]) -> str:
    """The text of which `listed` makes the names.

    >>> joined(["cat", "fox, red"])
    'cat,"fox, red"'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()


def stripped(names: Iterable[str]) -> tuple[str, ...]:
    """Names without spaces and tabs around them."""
    return tuple(name.strip(SPACES) for name in names)


def normal_name(name: str) -> str:
    """A column's name as known ones are written.

    >>> normal_name("Y-True "), normal_name("logits[3]"), normal_name("logits/3")
    ('y_true', 'logits_3', 'logits_3')
    """
    return re.sub(rf"[{re.escape(''.join(SEPARATORS))}]+", "_", re.sub(r"\]$", "", name.strip().casefold()))


def is_index(text: str) -> bool:
    """Whether text is a whole number."""
    return re.fullmatch(r"-?[0-9]{1,18}", text) is not None


def reads_as_index(text: str) -> bool:
    """Whether a label is the index of a class as text: a whole number, or true or false."""
    return index_of(text) is not None or text.strip().lower() in TRUTH


def index_of(text: str) -> int | None:
    """The whole number that a text is, however it is written.

    >>> index_of("3"), index_of("3.0"), index_of("3.000e+00"), index_of("3.5"), index_of("three")
    (3, 3, 3, None, None)
    """
    if is_index(text.strip()):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,15}([.][0-9]*)?([eE][+-]?[0-9]{1,2})?", text.strip()) is None:
        return None
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < _LARGEST_EXACT else None


def span(names: Sequence[str]) -> str:
    """The first and the last name."""
    return repr(names[0]) if len(names) == 1 else f"{names[0]!r} to {names[-1]!r}"


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
