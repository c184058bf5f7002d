"""Which class a column of predictions is of: by numbers and names in the names of columns, in files and in memory."""

import itertools
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence

from counterpoise._text import some

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
TRUTH = {"true": 1, "false": 0}
"""Labels of two classes that are no numbers."""
POSITIVE = ("1", "pos", "positive", "true", "yes")
"""What follows the prefix in the name of a binary model's only column: the probability is that of y = 1."""
ANSWERS = {"no": 0, "yes": 1, "neg": 0, "pos": 1, "negative": 0, "positive": 1} | TRUTH
"""Names of two classes that say which number each has."""
SIGNS = {2: ("-1", "1"), 3: ("-1", "0", "1")}
"""Names of so many classes of which -1 may be one, so that it is no missing label."""
_LARGEST_EXACT = 2.0**53


def in_order(
    columns: tuple[str, ...], chosen: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Columns in the order of their classes, and the names of these: as chosen, else by number, else as found."""
    if len(columns) == 1:
        return columns, None
    if chosen is not None:
        found = classes_of(columns, chosen)
        if (places := places_of(found, chosen)) is not None:
            return tuple(columns[place] for place in places), chosen
        _require_new_names(found, chosen)
    suffixes = class_suffixes(columns)
    numbers = numbering(suffixes) or ()
    if sorted(numbers) == list(range(len(columns))):
        order = sorted(range(len(columns)), key=numbers.__getitem__)
        names = None if all(map(is_index, suffixes)) else tuple(suffixes[place] for place in order)
        return tuple(columns[place] for place in order), names
    if chosen is not None and numbers and sorted(numbers) == list(range(min(numbers), min(numbers) + len(columns))):
        return tuple(column for _, column in sorted(zip(numbers, columns, strict=True))), chosen
    numbered = [suffix for suffix in suffixes if is_index(suffix)]
    if numbered and chosen is None and len(set(numbered)) < len(columns):
        raise ValueError(
            f"the columns {some(columns)} are not numbered from 0 to {len(columns) - 1}; number them so, or give every "
            "class a name that is no number"
        )
    return columns, chosen or suffixes


def places_of(names: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """Where the wanted names are among these, capitals aside where these tell no two apart; None where they differ."""
    here, there = ([name.casefold() for name in stripped(each)] for each in (names, wanted))
    if len(set(here)) < len(here):
        here, there = list(stripped(names)), list(stripped(wanted))
    return [here.index(name) for name in there] if sorted(here) == sorted(there) else None


def _require_new_names(names: tuple[str, ...], chosen: tuple[str, ...]) -> None:
    """Refuse names of which some are those of other columns; classes that are numbers may be counted anew."""
    moved = [name for name, own in zip(chosen, names, strict=False) if name != own and name in names]
    if moved and len(chosen) == len(names) and not all(map(is_index, names)):
        raise ValueError(
            f"the columns are those of the classes {some(names)}, and class_names gives {moved[0]!r} another place "
            f"beside other names, {some(chosen)}; give the names of the columns, in any order, or new ones for all"
        )


def classes_of(columns: tuple[str, ...], labels: Collection[str]) -> tuple[str, ...]:
    """The part of each column's name that is a class by these labels: what follows a known prefix, or lies within.

    >>> classes_of(("P(y=cat)", "P(y=dog)"), {"dog"}), classes_of(("prob_cat", "prob_dog"), {"dog"})
    (('cat', 'dog'), ('cat', 'dog'))
    """
    suffixes, columns = class_suffixes(columns), stripped(columns)
    if set(labels) <= set(suffixes) and suffixes != columns:
        return suffixes
    starts, ends = (boundaries(names) for names in (columns, [name[::-1] for name in columns]))
    for start, end in itertools.product(starts, ends):
        names = tuple(name[start : len(name) - end] for name in columns)
        if all(names) and set(labels) <= set(names):
            return names
    return suffixes


def boundaries(names: Sequence[str]) -> list[int]:
    """Lengths of the beginnings that all names share and that end in no letter or digit, 0 first."""
    shared = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return [0, *(place for place, letters in enumerate(shared, 1) if not letters[0].isalnum())]


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


def stripped(names: Iterable[str]) -> tuple[str, ...]:
    """Names as they are compared: without spaces around them, in one Unicode normal form."""
    return tuple(unicodedata.normalize("NFC", name.strip(SPACES)) for name in names)


def numbering(names: Sequence[str]) -> tuple[int, ...] | None:
    """The number of each class, if the names say it: all are numbers, differ in a number alone, or are two answers.

    >>> numbering(["2", "-1"]), numbering(["class_2", "class_10"]), numbering(["Pos", "neg"]), numbering(["a", "b"])
    ((2, -1), (2, 10), (1, 0), None)
    """
    whole = tuple(number for name in names if (number := index_of(name)) is not None)
    answers = tuple(ANSWERS[name.casefold()] for name in names if name.casefold() in ANSWERS)
    if len(whole) == len(names):
        return whole
    return answers if len(answers) == len(names) == len(set(answers)) else numbers_of(names)


def numbers_of(names: Sequence[str]) -> tuple[int, ...] | None:
    """The last number in each name, where the names differ in nothing else.

    >>> numbers_of(["class_2", "class_10"]), numbers_of(["P(y=0)", "P(y=1)"]), numbers_of(["cat_1", "dog_2"])
    ((2, 10), (0, 1), None)
    """
    found = [re.fullmatch(r"(.*?)([0-9]{1,18})([^0-9]*)", name, re.DOTALL) for name in names]
    parts = [each.groups() for each in found if each is not None]
    if len(parts) < len(names) or len({(before, after) for before, _, after in parts}) > 1:
        return None
    return tuple(int(number) for _, number, _ in parts)


def is_index(text: str) -> bool:
    """Whether text is a whole number."""
    return re.fullmatch(r"-?[0-9]{1,18}", text) is not None


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
