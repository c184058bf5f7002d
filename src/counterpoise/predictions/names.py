"""How columns are called, and texts of names."""

import csv
import fnmatch
import io
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from counterpoise._classes import (
    LOGITS,
    PROBABILITIES,
    SEPARATORS,
    SPACES,
    TRUTH,
    boundaries,
    class_suffixes,
    index_of,
)
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
# Softmax of log-probabilities gives the probabilities back, so they are logits.
VALUES: dict[Kind, tuple[str, ...]] = {"logits": LOGITS, "probabilities": PROBABILITIES}
_LABEL_OF = tuple(f"{name}_" for name in LABELS)
STATISTICS = (
    "argmax", "average", "avg", "bias", "entropy", "gap", "label", "margin", "max", "mean", "median", "min", "norm",
    "pred", "prediction", "scale", "std", "sum", "temperature", "threshold", "total", "var", "variance",
)  # fmt: skip
"""What a column beside those of the classes may hold, in the place of a class."""
MISSING = ("NA", "N/A", "<NA>", "NaN", "nan", "None", "null", "NULL")
"""Labels that stand for none, as R, pandas and databases write them, unless a class is called so."""
DESCRIPTIVE = (*CATEGORIES, "severity", "in_distribution")
GROUPED = ("domain", "corruption", "severity")
"""Columns that samples are grouped by wherever they are."""
TEXT_NAMES = (*LABELS, *PREDICTED, *CORRECT, *IDS, *DESCRIPTIVE, MODEL)
"""Columns that are not predictions, whose cells may be text."""
KNOWN = (*TEXT_NAMES, *CONFIDENCES, *LOGITS, *PROBABILITIES, CLASS_NAMES)
"""What somebody means by its name."""


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


def is_found(names: Sequence[str], pattern: str) -> bool:
    """Whether a pattern stands for any column."""
    return any(fits(name, each) for name in names for each in (pattern, *listed(pattern)))


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern, such as `p*`, stands for a name."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def pattern_of(columns: tuple[str, ...], names: Sequence[str]) -> str:
    """The shortest pattern that stands for these columns and no other."""
    shared, begun = re.sub(r"[0-9]+$", "", columns[0]), columns[0][: boundaries(columns)[-1]]
    for pattern in (f"{shared}*", f"{shared}[0-9]*", f"{begun}*"):
        if len(columns) > 1 and tuple(name for name in names if fnmatch.fnmatchcase(name, pattern)) == columns:
            return joined([pattern])
    return joined(columns)


def listed(text: str) -> tuple[str, ...]:
    """Names with commas between them; one that has a comma stands in quotes, as in CSV."""
    return tuple(name.strip(SPACES) for name in next(csv.reader([text], skipinitialspace=True), []))


def joined(names: Iterable[str]) -> str:
    """The text of which `listed` makes the names.

    >>> joined(["cat", "fox, red"])
    'cat,"fox, red"'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()


@lru_cache(maxsize=1 << 18)  # every rule asks for the name of every column
def normal_name(name: str) -> str:
    """A column's name as known ones are written.

    >>> normal_name("Y-True "), normal_name("trueLabel"), normal_name(".pred_class"), normal_name("logits[3]")
    ('y_true', 'true_label', 'pred_class', 'logits_3')
    """
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub(r"\]$", "", name.strip()))
    return re.sub(rf"[{re.escape(''.join(SEPARATORS))}]+", "_", parted.casefold()).lstrip("_")


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts by the numbers within names.

    >>> sorted(["T10", "T9", "S"], key=natural)
    ['S', 'T9', 'T10']
    """
    return [(int(part or 0), "") if place % 2 else (0, part) for place, part in enumerate(re.split(r"([0-9]+)", name))]


def reads_as_index(text: str) -> bool:
    """Whether a label is the index of a class as text: a whole number, or true or false."""
    return index_of(text) is not None or text.strip().lower() in TRUTH


def span(names: Sequence[str]) -> str:
    """The first and the last name."""
    return repr(names[0]) if len(names) == 1 else f"{names[0]!r} to {names[-1]!r}"


def is_log_probability(name: str) -> bool:
    """Whether a name says that a value is the logarithm of a probability.

    >>> is_log_probability("LogProb"), is_log_probability("logit")
    (True, False)
    """
    return normal_name(name).startswith(("log_p", "logp", "log_softmax"))
