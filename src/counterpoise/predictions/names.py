"""How columns are called, and texts of names."""

import csv
import fnmatch
import io
import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from counterpoise.predictions.table import CATEGORIES, Kind

LABELS = (
    "label", "labels", "target", "targets", "y_true", "y", "y_test", "true_label", "true_labels", "true_class",
    "ground_truth", "gt", "truth", "gold", "gold_label", "actual", "actual_label", "actual_class", "expected",
    "observed", "label_ids",
)  # fmt: skip
PREDICTED = (
    "prediction", "predictions", "pred", "preds", "y_pred", "y_hat", "predicted", "predicted_label", "predicted_class",
    "pred_label", "pred_class", "predict", "scored_labels", "top1", "top_1",
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
_LABEL_OF = tuple(f"{name}_" for name in LABELS)
MISSING = ("NA", "N/A", "<NA>", "NaN", "nan", "None", "null", "NULL")
"""Labels that stand for none, as R, pandas and databases write them, unless a class is called so."""
_LARGEST_EXACT = 2.0**53
POSITIVE = ("1", "pos", "positive", "true", "yes")
"""What follows the prefix in the name of a binary model's only column: the probability is that of y = 1."""
DESCRIPTIVE = (*CATEGORIES, "severity", "in_distribution")
GROUPED = ("domain", "corruption", "severity")
"""Columns that samples are grouped by wherever they are."""
TEXT_NAMES = (*LABELS, *PREDICTED, *CORRECT, *IDS, *DESCRIPTIVE, MODEL)
"""Columns that are not predictions, whose cells may be text."""
KNOWN = (*TEXT_NAMES, *CONFIDENCES, *LOGITS, *PROBABILITIES, CLASS_NAMES)
"""What somebody means by its name."""


def classes_of(columns: tuple[str, ...], labels: Collection[str]) -> tuple[str, ...]:
    """The part of each column's name that is a class by these labels: what follows a known prefix, or lies within.

    >>> classes_of(("P(y=cat)", "P(y=dog)"), {"dog"}), classes_of(("prob_cat", "prob_dog"), {"dog"})
    (('cat', 'dog'), ('cat', 'dog'))
    """
    suffixes, columns = class_suffixes(columns), stripped(columns)
    if set(labels) <= set(suffixes) and suffixes != columns:
        return suffixes
    starts, ends = (_boundaries(names) for names in (columns, [name[::-1] for name in columns]))
    for start, end in itertools.product(starts, ends):
        names = tuple(name[start : len(name) - end] for name in columns)
        if all(names) and set(labels) <= set(names):
            return names
    return suffixes


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


def is_of_labels(name: str) -> bool:
    """Whether a column is called as labels are, or as those of a class."""
    normal = normal_name(name)
    return normal in LABELS or (normal not in TEXT_NAMES and normal.startswith(_LABEL_OF))


def ends_with(name: str, word: str) -> bool:
    """Whether a name is a word, or ends with it as a part of its own.

    >>> ends_with("prob_NA", "na"), ends_with("P(y=None)", "None"), ends_with("banana", "na")
    (True, True, False)
    """
    return re.search(rf"(^|[\W_]){re.escape(word)}\W*$", name, re.IGNORECASE) is not None


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


def is_found(names: Sequence[str], pattern: str) -> bool:
    """Whether a pattern stands for any column."""
    return any(fits(name, each) for name in names for each in (pattern, *listed(pattern)))


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern, such as `p*`, stands for a name."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def pattern_of(columns: tuple[str, ...], names: Sequence[str]) -> str:
    """The shortest pattern that stands for these columns and no other."""
    shared, begun = re.sub(r"[0-9]+$", "", columns[0]), columns[0][: _boundaries(columns)[-1]]
    for pattern in (f"{shared}*", f"{shared}[0-9]*", f"{begun}*"):
        if len(columns) > 1 and tuple(name for name in names if fnmatch.fnmatchcase(name, pattern)) == columns:
            return joined([pattern])
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


@lru_cache(maxsize=1 << 18)  # every rule asks for the name of every column
def normal_name(name: str) -> str:
    """A column's name as known ones are written.

    >>> normal_name("Y-True "), normal_name("trueLabel"), normal_name(".pred_class"), normal_name("logits[3]")
    ('y_true', 'true_label', 'pred_class', 'logits_3')
    """
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub(r"\]$", "", name.strip()))
    return re.sub(rf"[{re.escape(''.join(SEPARATORS))}]+", "_", parted.casefold()).lstrip("_")


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


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts by the numbers within names.

    >>> sorted(["T10", "T9", "S"], key=natural)
    ['S', 'T9', 'T10']
    """
    return [(int(part or 0), "") if place % 2 else (0, part) for place, part in enumerate(re.split(r"([0-9]+)", name))]


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


def is_log_probability(name: str) -> bool:
    """Whether a name says that a value is the logarithm of a probability.

    >>> is_log_probability("LogProb"), is_log_probability("logit")
    (True, False)
    """
    return normal_name(name).startswith(("log_p", "logp", "log_softmax"))
