"""Which output is which class, by the names of a table's columns; and whether tables and columns have the same rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from counterpoise._arrays import column_names
from counterpoise._classes import ANSWERS, class_suffixes, classes_of, in_order, index_of, numbering
from counterpoise._text import some


def in_class_order(
    values: Tensor, table: Any, *, class_names: Sequence[Any] | None, texts: set[str]
) -> tuple[Tensor, tuple[str, ...] | None]:
    """Predictions `[..., K]` with their columns in the order of the classes, and the names of these if they are known.

    Args:
        values: of the table, column by column.
        table: whose columns may have names, by which files are read, too.
        class_names: in the order of the numbers of the classes.
        texts: that labels are, by which the class is found within a name such as `P(y=cat)`.
    """
    chosen = None if class_names is None else tuple(map(str, class_names))
    found = column_names(table)
    names = () if found is None else tuple(map(str, found))
    if len(names) != values.shape[-1] or len(names) < 2:
        called = getattr(table, "name", None)
        _require_positive(names or (called if isinstance(called, str) else "",), values.shape[-1])
        return values, chosen
    if len(set(names)) < len(names):
        raise ValueError(f"the predictions have columns of one name: {some(names)}; give each class a name of its own")
    columns, classes = in_order(names, chosen)
    if chosen is None and texts:
        classes = classes_of(columns, texts)
    numbers = numbering(classes or ())
    if chosen is None and classes and numbers is not None and len(set(numbers)) == len(numbers):
        order = sorted(range(len(columns)), key=numbers.__getitem__)
        columns, classes = (tuple(each[place] for place in order) for each in (columns, classes))
    places = [names.index(name) for name in columns]
    kept = places == list(range(len(names)))
    return values if kept else values[..., places], classes or tuple(map(str, range(len(names))))


def _require_positive(names: tuple[str, ...], width: int) -> None:
    """Reject the only column of two classes if it is called after the class 0."""
    suffix = class_suffixes(names)[0] if len(names) == width == 1 else ""
    if index_of(suffix) == 0 or ANSWERS.get(suffix.casefold()) == 0:
        raise ValueError(
            f"a single column holds the predictions for the class 1, and {names[0]!r} is called after the class 0; "
            "pass 1 - probabilities (or -logits), under another name"
        )


def require_same_rows(table: Any, columns: Mapping[str, Any]) -> None:
    """Reject columns of pandas whose index has the rows of the predictions in another order, or other rows."""
    if not hasattr(table, "iloc"):
        return
    own = table.index
    for name, column in columns.items():
        if not hasattr(column, "iloc") or len(column) != len(own) or own.equals(column.index):
            continue
        same = set(own) == set(column.index)
        if same or not any(_is_default(index) for index in (own, column.index)):
            cure = f"pass {name}.to_numpy() if they are in the order of the predictions"
            if same:
                cure = f"pass {name}.loc[predictions.index] to join them by index, or {cure.removeprefix('pass ')}"
            what = "the index of the predictions in another order" if same else "another index than the predictions"
            raise ValueError(f"{name} has {what}; {cure}")


def _is_default(index: Any) -> bool:
    """Whether an index only counts rows from 0."""
    return type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1
