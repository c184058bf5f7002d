"""The numbers of the paper's tables, and where each stands."""

import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from counterpoise.metrics.estimates import KEY_INFO, Key
from counterpoise_study.requests import Published
from counterpoise_study.scales import UNSTATED

OodKind = Literal["", "near", "far"]
"""OOD images that are like the data, or that are not; empty where there are none."""

KEYS: Mapping[str, Key] = {
    "accuracy_pct": Key.ACCURACY,
    "ece_pct": Key.ECE,
    "cw_ece_e-3": Key.CLASSWISE_ECE,
    "fpr95_pct": Key.FPR_AT_TPR95,
    "detection_error_pct": Key.MINIMUM_DETECTION_ERROR,
    "auroc_pct": Key.AUROC,
    "aupr_pct": Key.AUPR_POSITIVE,
}
"""The file's names of metrics. They have the unit that the metric is shown in."""

METHOD_NAMES: Mapping[str, str] = {
    "Cross-Entropy": "ce",
    "DCA": "dca",
    "MMCE": "mmce",
    "FL": "fl",
    "FL+MDCA": "fl-mdca",
    "FL+DTDP": "fl-dtdp",
    "DE-3": "de3",
    "MTE-1": "mte1",
    "MTE-2": "mte2",
}
"""The file's names of methods."""

_OOD_KINDS: Mapping[str, OodKind] = {"ood_near": "near", "ood_far": "far"}


@dataclass(frozen=True)
class PublishedNumber:
    """One number of the paper.

    Attributes:
        row: of the file, counted from 1 after its head.
        table: that it is in.
        place: data set and backbones, as the table states them.
        method: name in the methods table.
        ood: which OOD images were told from the data.
        key: the metric.
        value: in the metric's own unit, as estimates are: 0.7693, where the paper prints 76.93.
    """

    row: int
    table: str
    place: Published
    method: str
    ood: OodKind
    key: Key
    value: float


@cache
def published_numbers() -> tuple[PublishedNumber, ...]:
    """All of them, in the order of the file."""
    text = resources.files("counterpoise_study").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(_number(row, line) for row, line in enumerate(csv.DictReader(text.splitlines()), start=1))


def published_number(
    tables: Sequence[str], place: Published, method: str, key: Key, ood: OodKind = ""
) -> PublishedNumber | None:
    """The number in the first of some tables that has it; None where the paper has none.

    A table that states no backbone answers for any.

    >>> found = published_number(["cifar100"], Published("CIFAR-100", "resnet34"), "ce", Key.ACCURACY)
    >>> round(found.value, 4), found.row
    (0.7693, 1)
    """
    for table, primary in itertools.product(tables, (place.primary, UNSTATED)):
        stated = Published(place.data_set, primary, place.auxiliary)
        if (found := _index().get((table, stated, method, key, ood))) is not None:
            return found
    return None


@cache
def _index() -> dict[tuple[str, Published, str, Key, OodKind], PublishedNumber]:
    return {(each.table, each.place, each.method, each.key, each.ood): each for each in published_numbers()}


def _number(row: int, line: Mapping[str, str]) -> PublishedNumber:
    key = KEYS[line["metric"]]
    return PublishedNumber(
        row=row,
        table=line["table"],
        place=Published(line["dataset"], line["primary"], line["auxiliary"]),
        method=METHOD_NAMES[line["method"]],
        ood=_OOD_KINDS.get(line["task"], ""),
        key=key,
        value=float(line["value"]) / KEY_INFO[key].scale,
    )
