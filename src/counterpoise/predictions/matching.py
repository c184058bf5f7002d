"""Whether predicted classes are the labels, where nobody says what the classes are: a row decides for itself."""

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from counterpoise._classes import TRUTH, index_of, stripped
from counterpoise.predictions.columns import AmbiguousInputError
from counterpoise.predictions.from_arrow import filled, holds_text
from counterpoise.predictions.names import MISSING, joined, natural
from counterpoise.predictions.table import MISSING_LABEL, RIGHT, WRONG, Array, PredictionFileError

_MOST_NAMES = 1000
_NUMBER = re.compile(r"[+-]?[0-9]{1,400}([.][0-9]*)?([eE][+-]?[0-9]{1,3})?")


def matches(label: Any, prediction: Any, *, names: tuple[str, str], first_row: int) -> Array:
    """`RIGHT` where two columns are the same text, `WRONG` where not, and `MISSING_LABEL` where one has no value.

    Texts that differ and may be one class are asked about, whatever the rows around them are; so are a name and a
    whole number, which may be its place.
    """
    keep_words = holds_text(label.type) or holds_text(prediction.type)
    columns = [_distinct(column, keep_words=keep_words) for column in (label, prediction)]
    known = list(dict.fromkeys(text for _, texts in columns for text in texts if text is not None))
    place, key = {text: number for number, text in enumerate(known)}, dict[object, int]()
    found, predicted = (
        np.array([*(-1 if text is None else place[text] for text in texts), -1])[codes] for codes, texts in columns
    )
    alike = np.array([*(key.setdefault(_loose(text), len(key)) for text in known), -1])
    number = np.array([*(_NUMBER.fullmatch(text) is not None for text in known), False])
    word = np.array([*(text in MISSING for text in known), False])
    # Next to a number, NaN and NA are missing values; next to a text either may be a class.
    given = (found >= 0) & (predicted >= 0) & ~(word[found] & number[predicted]) & ~(word[predicted] & number[found])
    same = found == predicted
    whole = np.array([*(index_of(text) is not None for text in known), False])
    unlike = (whole[found] & ~number[predicted]) | (whole[predicted] & ~number[found])
    may_be_one = (alike[found] == alike[predicted]) | unlike
    doubt = np.flatnonzero(given & (word[found] | word[predicted] | (~same & may_be_one)))
    if len(doubt):
        row = int(doubt[0])
        raise _question(first_row + row, names, (known[found[row]], known[predicted[row]]), known)
    return np.where(given, np.where(same, RIGHT, WRONG), MISSING_LABEL)


def _distinct(column: Any, *, keep_words: bool) -> tuple[NDArray[np.int32], list[str | None]]:
    """Codes into distinct values as text: of a whole number its digits, of true and false the words, or 1 and 0."""
    if pa.types.is_boolean(column.type) and not keep_words:
        column = column.cast(pa.int8())
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return filled(encoded.indices.cast(pa.int32()), -1), [_as_text(value) for value in encoded.dictionary.to_pylist()]


def _as_text(value: object) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return stripped([str(value).lower() if isinstance(value, bool) else str(value)])[0] or None


def _loose(text: str) -> object:
    """Equal for texts that may be one class: capitals aside, and numbers however they are written."""
    if _NUMBER.fullmatch(text):
        return Decimal(text)
    return Decimal(TRUTH[text.lower()]) if text.lower() in TRUTH else text.casefold()


def _question(row: int, names: tuple[str, str], pair: tuple[str, str], known: Sequence[str]) -> PredictionFileError:
    """What the classes are: all of these texts, or one of those that may be one."""
    problem = f"row {row}, column {names[0]!r} is {pair[0]!r:.60} and column {names[1]!r} is {pair[1]!r:.60}"
    every = sorted(known, key=natural)
    if word := next((text for text in pair if text in MISSING), None):
        problem += f": {word!r} may be a class or a missing value"
        others = [text for text in every if text not in MISSING]
        orders = [(every, f"if {word!r} is a class"), (others, f"if {word!r} is a missing value")]
    else:
        problem += ", which may be one class or two; write labels and predictions alike, or name all classes"
        orders = [(every, "if they are two classes")]
        merged = list({_loose(text): text for text in every[::-1]}.values())[::-1]
        resolved = all(index_of(text) is not None for text in every if _NUMBER.fullmatch(text))
        if len(merged) < len(every) and resolved:
            orders.append((merged, "if they are one class"))
    few = len(every) <= _MOST_NAMES
    return AmbiguousInputError(problem, [({"class_names": joined(each)}, why) for each, why in orders if few])
