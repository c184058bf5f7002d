"""What the columns of a table are: what was chosen, and what was found where names tell."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from counterpoise._files import FilePath
from counterpoise._text import some
from counterpoise.predictions.names import fits, listed, normal_name, span
from counterpoise.predictions.table import Kind, PredictionFileError


@dataclass(frozen=True)
class Columns:
    """What the columns of a file are, where their names do not tell. A comma separates alternatives.

    Attributes:
        label: the column of labels; of rows of K, perhaps K columns.
        probabilities: columns of probabilities: names, or patterns such as `p*`.
        logits: columns of logits, likewise.
        confidence: the column of the predicted class's probability, where nothing else is known.
        prediction: the column of the predicted class.
        correct: the column that says whether the prediction was right.
        id: the column of sample ids.
        labels: a file of labels: by ids, where both files have them, else one for each row in their order.
        row_by_row: whether these are in the order of the rows, whatever ids there are.
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
    row_by_row: bool = False
    class_names: str | None = None
    percent: bool = False
    one_hot: bool = False
    multilabel: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("probabilities", "logits", "confidence") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} exclude each other: choose one")
        names = self.names() or ()
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"class_names has {repeated!r} twice; give each output a name of its own")
        if self.label is not None and self.labels is not None:
            raise ValueError("label names a column and labels a file: choose one")
        if self.row_by_row and self.labels is None:
            raise ValueError("row_by_row is about a file of labels: name it with labels")
        if self.row_by_row and self.id is not None:
            raise ValueError("row_by_row and id exclude each other: choose one")
        if self.one_hot and self.multilabel:
            raise ValueError("one_hot and multilabel exclude each other: choose one")

    def names(self) -> tuple[str, ...] | None:
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
            words = shlex.join(["counterpoise", *command.split(), *arguments, *_options(choice)])
            lines.append(f"  {words}" + (f"    # {reason}" if reason else ""))
        end = "" if self.problem.endswith("?") else "."
        return "\n".join([f"{self.problem}{end} Run", *lines]) if lines else self.problem

    def _as_python(self) -> Iterator[str]:
        for choice, reason in self.choices:
            arguments = ", ".join(f"{name}={value!r}" for name, value in choice.items())
            yield arguments + (f" ({reason})" if reason else "")


def _options(choice: Choice) -> Iterator[str]:
    for name, value in choice.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, str) and value.startswith("-"):
            yield f"{option}={value}"  # which would be taken for an option
        else:
            yield from (option, value) if isinstance(value, str) else (option,)


@dataclass(frozen=True)
class Layout:
    """Where everything is in a table.

    Attributes:
        kind: what the values are.
        values: one column of lists, or one column for each class in their order; a single column of numbers is the
            positive class of a binary model, or a confidence.
        width: values a row.
        members: M of an ensemble, or None.
        label: the column of labels, none, or one for each class, as a multilabel table has them and perhaps one-hot.
        missing: texts that stand for no label.
        beside: a column whose lists name the outputs in each row, and the names.
        class_names: of the outputs in order, where known.
        named_by_number: whether labels are numbers among these names, and not indices.
        stated: whether somebody said which number each class has; if not, labels that are numbers are rejected.
        prediction: the column of the predicted class, of a table of confidences.
        correct: the column that says whether it was right, likewise.
        id: the column of ids.
        model: the column that tells several models apart.
        is_binary: whether one value stands for two classes.
        one_hot: whether labels are rows with a single 1.
        scale: that values are multiplied by.
        sigmoid: whether the values of a multilabel table are logits.
        descriptive: of what is known of samples, such as their domain, the column that says it.
        by: columns that samples are grouped by, beside those of known names.
        ignored: columns that mean nothing here.
        perhaps_labels: of these, where no column is known to hold labels, the ones whose values could be labels.
    """

    kind: Kind
    values: tuple[str, ...]
    width: int
    members: int | None = None
    label: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    beside: tuple[str, tuple[str, ...]] | None = None
    class_names: tuple[str, ...] | None = None
    named_by_number: bool = False
    stated: bool = True
    prediction: str | None = None
    correct: str | None = None
    id: str | None = None
    model: str | None = None
    is_binary: bool = False
    one_hot: bool = False
    scale: float = 1.0
    sigmoid: bool = False
    descriptive: Mapping[str, str] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    perhaps_labels: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        return 2 if self.is_binary else self.width // (self.members or 1)

    @property
    def read(self) -> tuple[str, ...]:
        """Every column that is read."""
        beside = None if self.beside is None else self.beside[0]
        named = (self.prediction, self.correct, self.id, self.model, beside, *self.descriptive.values())
        return (*self.values, *self.label, *(name for name in named if name is not None), *self.by)

    def described(self) -> str:
        """What was taken for what, in a line."""
        parts = [f"{self.kind} from {span(self.values)}"]
        if self.is_binary:
            positive = f"y = {1 if self.class_names is None else self.class_names[1]}"
            parts[0] += f", taken as {f'P({positive})' if self.kind == 'probabilities' else f'the logit of {positive}'}"
        parts += [f"{what} from {span(names)}" for what, names in self._others() if names]
        if self.ignored:
            parts.append(f"ignored: {some(self.ignored)}")
        return "; ".join(parts)

    def _others(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield "labels", self.label
        for what, name in (("predictions", self.prediction), ("correctness", self.correct), ("ids", self.id)):
            yield what, () if name is None else (name,)
        yield "models", () if self.model is None else (self.model,)
        yield from ((known, (name,)) for known, name in self.descriptive.items() if known != name)
        yield from (("groups", (name,)) for name in self.by)


@dataclass(frozen=True)
class Reading:
    """How a file is to be read.

    Attributes:
        columns: what was chosen.
        like: the layout of the model's own file, for a file of OOD samples, whose labels mean nothing.
        only: of a file of several models, the one whose rows are read.
        by: columns that samples are grouped by.
    """

    columns: Columns = Columns()
    like: Layout | None = None
    only: str | None = None
    by: tuple[str, ...] = ()


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
    found = [name for each in listed(pattern) for name in names if fits(name, each)]
    if not found:
        raise PredictionFileError(f"no column is named {pattern!r} (--{option}); its columns are {some(names)}")
    return tuple(dict.fromkeys(found))
