"""`Predictions`: what a classifier said about some samples, with what is known of the samples, in memory."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Kind = Literal["logits", "probabilities", "confidence", "multilabel"]
KINDS: tuple[Kind, ...] = ("logits", "probabilities")
"""Kinds that hold a value for each class of one classification; own files hold these."""

RIGHT, WRONG = 0, 1
"""The labels of the kind `confidence`: the predicted class is its only one."""

VALUE_DTYPES = ("float16", "float32", "float64")
MISSING_LABEL = -1
"""In memory, the label of a sample that has none; on disk it is null."""
MISSING_SEVERITY = -1
"""The severity of a sample where it is not stated, in memory and in own files."""

CATEGORIES = ("split", "data_set", "domain", "corruption")
"""Text columns that describe a sample; each may be absent, or missing in single rows."""

Array = NDArray[Any]

_SHAPES: dict[Kind, str] = {"confidence": "[n, 1]", "multilabel": "[n, L]"}
_COLUMN_KINDS = {"ids": "iOU", "in_distribution": "b"}
_LARGEST = np.iinfo(np.int64).max


class PredictionFileError(ValueError):
    """A file of predictions that cannot be trusted or understood; it names the file, the place and the cure."""


@dataclass(frozen=True)
class Header:
    """Where predictions come from. Every field may be left empty.

    Attributes:
        class_names: one for each class.
        model: the network, such as `resnet34`.
        method: how it was trained, such as `mte-1`.
        seed: of the training run.
        config_digest: of the run's complete configuration.
        versions: of the libraries that produced the predictions.
    """

    class_names: tuple[str, ...] | None = None
    model: str = ""
    method: str = ""
    seed: int | None = None
    config_digest: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names, seed = _checked_header(self.class_names, self.seed, self.versions)
        if not _all_text(self.model, self.method, self.config_digest):
            raise ValueError("model, method and config_digest must be text")
        object.__setattr__(self, "class_names", names)
        object.__setattr__(self, "seed", seed)


def _checked_header(names: Any, seed: Any, versions: Any) -> tuple[tuple[str, ...] | None, int | None]:
    """Lists of names become tuples and NumPy's integers Python's, so that a header equals the one read back."""
    if names is not None and (not isinstance(names, list | tuple) or not _all_text(*names)):
        raise ValueError(f"class_names must be a sequence of text, got {names!r:.80}")
    if seed is not None and (not isinstance(seed, int | np.integer) or isinstance(seed, bool)):
        raise ValueError(f"seed must be an integer, got {seed!r:.80}")
    if not isinstance(versions, Mapping) or not _all_text(*versions, *versions.values()):
        raise ValueError(f"versions must map text to text, got {versions!r:.80}")
    return None if names is None else tuple(names), None if seed is None else int(seed)


def _all_text(*values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


@dataclass(frozen=True)
class Category:
    """A text column as codes `[n]` into its distinct names; the code -1 is a missing value."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: str | Iterable[str | None], rows: int) -> "Category":
        """From one text for all rows, or one for each; None and the empty text are missing.

        >>> Category.of(["fog", None, "fog"], 3)
        Category(codes=array([ 0, -1,  0], dtype=int32), names=('fog',))
        """
        if isinstance(values, str):
            return cls(np.full(rows, 0 if values else -1, np.int32), (values,) if values else ())
        codes: dict[str, int] = {}
        column = [-1 if value in (None, "") else codes.setdefault(value, len(codes)) for value in values]
        if not _all_text(*codes):
            wrong = next(value for value in codes if not _all_text(value))
            raise ValueError(f"a descriptive column holds text or None, got {wrong!r}")
        return cls(np.array(column, np.int32), tuple(map(str, codes)))

    def texts(self) -> list[str | None]:
        return [None if code < 0 else self.names[code] for code in self.codes.tolist()]


@dataclass(frozen=True)
class Predictions:
    """Predictions for n samples; `Predictions.of` makes one from tensors, arrays or lists.

    Attributes:
        kind: what `values` are: logits or probabilities of all classes, the confidence of the predicted class alone,
            or of each label of a multilabel problem the probability that it applies.
        values: `[n, K]`, or `[n, M, K]` with one prediction for each of M members of an ensemble. Of the kind
            `confidence` `[n, 1]`, of `multilabel` `[n, L]` for L labels.
        labels: `[n]` int64, `MISSING_LABEL` where there is none. Of the kind `confidence`, `RIGHT` or `WRONG`; of
            `multilabel` `[n, L]`, whether each applies, 0 or 1.
        ids: `[n]`, int64 or text; what pairs the predictions of different models.
        split: such as `test`.
        data_set: such as `cifar10`.
        domain: such as `sketch`.
        corruption: its name; missing for clean samples.
        severity: `[n]` int64 from 1, 0 for clean samples, `MISSING_SEVERITY` where it is not stated.
        in_distribution: `[n]` boolean, False for OOD samples.
        groups: other columns that samples are grouped by; own files do not hold them.
        header: where the predictions come from.
        numbered: whether ids are but the numbers of the rows.
    """

    kind: Kind
    values: Array
    labels: NDArray[np.int64]
    ids: Array
    split: Category | None = None
    data_set: Category | None = None
    domain: Category | None = None
    corruption: Category | None = None
    severity: NDArray[np.int64] | None = None
    in_distribution: NDArray[np.bool_] | None = None
    groups: Mapping[str, Category] = field(default_factory=dict)
    header: Header = field(default_factory=Header)
    numbered: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is {self.kind!r}; it must be one of {', '.join(get_args(Kind))}")
        shapes = _SHAPES.get(self.kind, "[n, K] or [n, members, K]")
        fits = self.values.ndim in ((2,) if self.kind in _SHAPES else (2, 3))
        fits = fits and (self.kind != "confidence" or self.values.shape[-1] == 1)
        if self.values.dtype.name not in VALUE_DTYPES or not fits:
            raise ValueError(
                f"{self.kind} must be {shapes} of {', '.join(VALUE_DTYPES)}, "
                f"got {list(self.values.shape)} of {self.values.dtype}"
            )
        names = ("labels", "ids", *CATEGORIES, "severity", "in_distribution")
        for name, column in (*((name, getattr(self, name)) for name in names), *self.groups.items()):
            array = column.codes if isinstance(column, Category) else column
            wanted, shape = (
                ("[n, L]", self.values.shape) if name == "labels" and self.multilabel else ("[n]", (len(self),))
            )
            if array is not None and array.shape != shape:
                raise ValueError(f"{name} must be {wanted} for {len(self)} samples, got {list(array.shape)}")
            if array is not None and array.dtype.kind not in _COLUMN_KINDS.get(name, "i"):
                raise ValueError(f"{name} must not be of {array.dtype}")
        if self.severity is not None and len(wrong := np.flatnonzero(self.severity < MISSING_SEVERITY)):
            row = int(wrong[0])
            raise ValueError(f"severity row {row} is {self.severity[row]}; it is 0 for clean samples, else at least 1")
        allowed = self.classes if self.kind in KINDS else 2
        misplaced = np.argwhere((self.labels < MISSING_LABEL) | (self.labels >= allowed))
        if len(misplaced):
            row, place = int(misplaced[0][0]), tuple(misplaced[0])
            where = f", column {place[1]}" if self.multilabel else ""
            raise ValueError(
                f"labels row {row}{where} is {self.labels[place]}, outside [0, {allowed}); "
                f"{MISSING_LABEL} stands for a sample without a class"
            )
        class_names = self.header.class_names
        if class_names is not None and self.kind != "confidence" and len(class_names) != self.classes:
            raise ValueError(f"there are {len(class_names)} class names for {self.classes} classes")

    @classmethod
    def of(
        cls,
        *,
        logits: Any = None,
        probabilities: Any = None,
        confidence: Any = None,
        multilabel: Any = None,
        labels: Any = None,
        correct: Any = None,
        ids: Any = None,
        split: str | Sequence[str | None] | None = None,
        data_set: str | Sequence[str | None] | None = None,
        domain: str | Sequence[str | None] | None = None,
        corruption: str | Sequence[str | None] | None = None,
        severity: Any = None,
        in_distribution: Any = None,
        header: Header | None = None,
    ) -> "Predictions":
        """From tensors, arrays or lists; a single value for a descriptive column stands for all rows.

        Give one of `logits`, `probabilities`, `multilabel` with `labels`, or `confidence` with `correct`.

        >>> table = Predictions.of(logits=[[2.0, 0.5], [0.1, 0.3]], labels=[0, 1], domain="photo")
        >>> len(table), table.classes, table.ids.tolist()
        (2, 2, [0, 1])
        """
        given: dict[Kind, Any] = {
            "logits": logits,
            "probabilities": probabilities,
            "confidence": confidence,
            "multilabel": multilabel,
        }
        kinds = [kind for kind, value in given.items() if value is not None]
        if len(kinds) != 1:
            raise ValueError(f"give one of {', '.join(given)}, and not {' and '.join(kinds) or 'none'}")
        if (kind := kinds[0]) == "confidence" and labels is not None:
            raise ValueError(
                "confidence says nothing of other classes: pass correct=, whether each prediction is right"
            )
        if kind != "confidence" and correct is not None:
            raise ValueError(f"correct= belongs to confidence=; pass the labels of {kind} as labels=")
        values = native(as_array(given[kind]))
        if kind == "confidence" and values.ndim == 1:
            values = values[:, None]
        rows = len(values) if values.ndim else 0
        if kind == "confidence" and correct is not None:
            labels = np.where(_flags(correct, "correct"), RIGHT, WRONG)
        unlabelled = values.shape if kind == "multilabel" else rows

        def category(texts: str | Sequence[str | None] | None) -> Category | None:
            return None if texts is None else Category.of(texts, rows)

        return cls(
            kind=kind,
            values=values,
            labels=np.full(unlabelled, MISSING_LABEL, np.int64) if labels is None else as_integers(labels, "labels"),
            ids=np.arange(rows, dtype=np.int64) if ids is None else as_ids(ids),
            split=category(split),
            data_set=category(data_set),
            domain=category(domain),
            corruption=category(corruption),
            severity=None if severity is None else _spread(as_integers(severity, "severity"), rows),
            in_distribution=None
            if in_distribution is None
            else _spread(_flags(in_distribution, "in_distribution"), rows),
            header=header or Header(),
            numbered=ids is None,
        )

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        shape = " x ".join(f"{size:,}" for size in self.values.shape)
        return f"<Predictions: {self.kind}, {shape} of {self.values.dtype}>"

    @property
    def classes(self) -> int:
        """K; of the kind `confidence` 1, of `multilabel` the number of labels."""
        return int(self.values.shape[-1])

    @property
    def multilabel(self) -> bool:
        """Whether several labels may apply to a sample."""
        return self.kind == "multilabel"

    @property
    def decisions(self) -> int:
        """Answers of each row: of a multilabel problem, one for each label."""
        return self.classes if self.multilabel else 1

    @property
    def members(self) -> int | None:
        """M, or None without a member axis."""
        return int(self.values.shape[1]) if self.values.ndim == 3 else None

    def rows(self, start: int, stop: int) -> "Predictions":
        """The rows from `start` to `stop`."""
        return self._of(slice(start, stop))

    def take(self, rows: NDArray[np.bool_]) -> "Predictions":
        return self._of(rows)

    def _of(self, rows: slice | NDArray[np.bool_]) -> "Predictions":
        return replace(self, numbered=False, **{name: _taken(getattr(self, name), rows) for name in _COLUMNS})

    def astype(self, dtype: str) -> "Predictions":
        """The same with values of another precision; float16 halves a file (docs: "Predictions" says what it costs)."""
        return replace(self, values=self.values.astype(dtype))


_COLUMNS = tuple(each.name for each in fields(Predictions) if each.name not in ("kind", "header", "numbered"))


def _taken(column: Any, rows: Any) -> Any:
    if isinstance(column, Category):
        return Category(column.codes[rows], column.names)
    if isinstance(column, Mapping):
        return {name: _taken(each, rows) for name, each in column.items()}
    return None if column is None else column[rows]


def as_array(values: Any) -> Array:
    """An array from a tensor, an array or lists; bfloat16, which NumPy has not, becomes float32."""
    torch = sys.modules.get("torch")  # who has a tensor has loaded it
    if torch is not None and isinstance(values, torch.Tensor):
        tensor = values.detach().cpu()
        return np.asarray(tensor.float().numpy() if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy())
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError("a masked array has masked entries, which would be taken as they lie below; fill them")
    return np.asarray(values)


def native(array: Array) -> Array:
    """The array in the machine's byte order, the only one that tensors have."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def as_integers(values: Any, name: str) -> NDArray[np.int64]:
    """Integers as int64; never rounded, never wrapped round."""
    array = as_array(values)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got {array.dtype}")
    if array.dtype.kind == "u" and len(wrong := np.flatnonzero(array > _LARGEST)):
        raise ValueError(f"{name} row {int(wrong[0])} is {array.reshape(-1)[wrong[0]]}, above the largest integer kept")
    return array.astype(np.int64, copy=False)


def as_ids(values: Any) -> Array:
    """Ids as int64, or as Python's text: NumPy's own drops trailing NUL characters."""
    array = as_array(values)
    if array.dtype.kind not in "UO":
        return as_integers(array, "ids")
    texts = np.array(values if array.ndim == 0 else list(values), dtype=object)
    if texts.ndim != 1 or not _all_text(*texts):
        raise ValueError("ids must be all integers or all text, one a sample")
    return texts


def _flags(values: Any, name: str) -> NDArray[np.bool_]:
    array = as_array(values)
    if array.dtype.kind != "b":
        raise ValueError(f"{name} must be True or False, got {array.dtype}")
    return array


def _spread(column: Array, rows: int) -> Array:
    return np.broadcast_to(column, rows) if column.ndim == 0 else column


def concatenated(parts: Sequence[Predictions]) -> Predictions:
    """Tables of one kind and shape after each other; a column that one of them lacks is dropped."""
    if not parts:
        raise ValueError("there are no tables to put after each other")
    first = parts[0]
    if any(part.kind != first.kind or part.values.shape[1:] != first.values.shape[1:] for part in parts):
        raise ValueError("tables of different kinds or shapes cannot be put after each other")
    if len(parts) == 1:
        return first
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        values = [getattr(part, name) for part in parts]
        if any(value is None for value in values):
            columns[name] = None
        elif name in CATEGORIES:
            columns[name] = _joined(values)
        elif name == "groups":
            shared = [own for own in first.groups if all(own in each for each in values)]
            columns[name] = {own: _joined([each[own] for each in values]) for own in shared}
        else:
            columns[name] = np.concatenate(values)
    if numbered := all(part.numbered for part in parts):
        columns["ids"] = np.arange(len(columns["ids"]), dtype=np.int64)
    return Predictions(kind=first.kind, header=first.header, numbered=numbered, **columns)


def _joined(parts: Sequence[Category]) -> Category:
    names = list(dict.fromkeys(name for part in parts for name in part.names))
    code = {name: index for index, name in enumerate(names)}
    tables = [np.array([*(code[name] for name in part.names), -1], np.int32) for part in parts]
    return Category(
        np.concatenate([table[part.codes] for table, part in zip(tables, parts, strict=True)]), tuple(names)
    )
