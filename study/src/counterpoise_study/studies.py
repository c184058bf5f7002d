"""Every table and figure of the paper, and some of our own, as one line of a table: methods, settings, layout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from counterpoise.metrics import Key
from counterpoise.recipes.config import ValidationMetric
from counterpoise.recipes.methods import METHODS
from counterpoise_study.requests import Line, Request, Setting, candidates_of
from counterpoise_study.scales import SCALES, Scale, ScaleName

Layout = Literal[
    "metrics",
    "detection",
    "ood",
    "variants",
    "domains",
    "in-and-out",
    "sweep",
    "severity",
    "scatter",
    "reliability",
    "bars",
    "trade-off",
]
"""What is drawn or listed; every study has a table, those named after a figure have that as well."""

QUALITY = (Key.ACCURACY, Key.ECE, Key.CLASSWISE_ECE, Key.NLL)
"""What the paper shows, and the proper score that hyper-parameters are chosen by."""

DETECTION = (Key.FPR_AT_TPR95, Key.MINIMUM_DETECTION_ERROR, Key.AUROC, Key.AUPR_POSITIVE)
ALL_METHODS = (
    "ce", "ls", "er", "dca", "mmce", "fl", "flsd53", "fl-mdca", "fl-dtdp", "de3", "dml", "mte1", "mte2",
)  # fmt: skip
"""Of the paper's tables, and those that stand beside them."""

COST_METHODS = ("ce", "ls", "fl", "pskd", "dml", "de3", "mte1", "mte2")
MAIN_TABLES = ("cifar100", "cifar10", "tiny-imagenet", "de")
SHOWN_UNDER_CORRUPTION = ("ce", "dca", "mmce", "fl", "fl-mdca", "fl-dtdp", "de3", "mte1", "mte2")


@dataclass(frozen=True)
class Study:
    """One table or figure.

    Attributes:
        title: what it shows.
        methods: that are compared.
        settings: that they are compared in, at a scale.
        layout: how it is shown.
        metrics: that are shown.
        tables: published tables that hold its numbers, those that count more first.
        swept: whether every candidate of the hyper-parameters is shown, and not only the chosen one.
    """

    title: str
    methods: tuple[str, ...]
    settings: Callable[[Scale], Sequence[Setting]]
    layout: Layout
    metrics: tuple[Key, ...] = QUALITY
    tables: tuple[str, ...] = ()
    swept: bool = False


STUDIES: dict[str, Study] = {
    "cifar100": Study(
        "Accuracy and calibration on CIFAR-100", ALL_METHODS, lambda s: s.table("cifar100"), "metrics",
        tables=("cifar100", "de"),
    ),
    "cifar10": Study(
        "Accuracy and calibration on CIFAR-10", ALL_METHODS, lambda s: s.table("cifar10"), "metrics",
        tables=("cifar10", "de"),
    ),
    "tiny-imagenet": Study(
        "Accuracy and calibration on Tiny-ImageNet", ALL_METHODS, lambda s: s.table("tiny-imagenet"), "metrics",
        tables=("tiny-imagenet", "de"),
    ),
    "deep-ensemble": Study(
        "Deep ensemble against MTE", ("de3", "mte1", "mte2"),
        lambda s: [setting for settings in s.tables.values() for setting in settings], "metrics", tables=("de",),
    ),
    "misclassification": Study(
        "Telling right from wrong predictions", ALL_METHODS, lambda s: s.detection, "detection", DETECTION,
        tables=("misclassification",),
    ),
    "ood": Study(
        "Telling known from OOD images", ALL_METHODS, lambda s: s.detection, "ood", DETECTION, tables=("ood",)
    ),
    "auxiliary-backbone": Study(
        "MTE-1 with other auxiliaries", ("mte1",), lambda s: s.auxiliaries, "variants",
        tables=("auxiliary_backbone",),
    ),
    "pacs": Study(
        "A domain that was not trained on", ALL_METHODS, lambda s: s.domains, "domains", (Key.ACCURACY, Key.ECE),
        tables=("pacs",),
    ),
    "alpha": Study(
        "How results depend on alpha", ("mte1", "mte2"), lambda s: s.figures, "sweep", swept=True
    ),
    "corruptions": Study(
        "Calibration under corruption", SHOWN_UNDER_CORRUPTION, lambda s: s.figures, "severity", (Key.ECE,)
    ),
    "dml": Study(
        "MTE against deep mutual learning", ("ce", "dml", "mte1", "mte2"), lambda s: s.figures, "bars",
        tables=MAIN_TABLES,
    ),
    "scatter": Study(
        "Accuracy against calibration", ALL_METHODS, lambda s: s.figures, "scatter", (Key.ACCURACY, Key.ECE),
        tables=MAIN_TABLES,
    ),
    "reliability": Study(
        "Reliability diagrams", ("ce", "de3", "mte1"), lambda s: s.figures, "reliability", tables=MAIN_TABLES
    ),
    "auxiliary-rate": Study(
        "MTE-1 with faster auxiliaries", ("mte1",), lambda s: s.rates, "variants"
    ),
    "short-schedules": Study(
        "MTE-1 where steps are few", ("ce", "mte1"), lambda s: s.short, "variants"
    ),
    "finetune": Study(
        "Fine-tuning a pretrained network", ("ce", "ls", "fl", "mte1", "dml", "de3"), lambda s: s.finetuned,
        "in-and-out", (Key.ACCURACY, Key.ECE, Key.NLL, Key.AUROC),
    ),
    "cost": Study(
        "What MTE costs, and cheaper auxiliaries", COST_METHODS, lambda s: s.costs, "trade-off"
    ),
    "cost-large": Study(
        "Cheaper auxiliaries with more images and steps", COST_METHODS, lambda s: s.costs_large, "trade-off"
    ),
}  # fmt: skip
"""In the order of the paper: its tables, then its figures; then those of our own."""


def studies_at(scale: ScaleName) -> list[str]:
    """Those that have settings there."""
    settings = SCALES[scale]()
    return [name for name, study in STUDIES.items() if study.settings(settings)]


def request_of(
    study: str,
    scale: ScaleName,
    *,
    seeds: Sequence[int],
    rule: ValidationMetric = "nll",
    only: Sequence[str] = (),
    places: Sequence[str] = (),
    own: Mapping[str, str] | None = None,
) -> Request:
    """A study at a scale as data.

    Args:
        study: name in `STUDIES`.
        scale: name in `SCALES`.
        seeds: of the runs of every method.
        rule: validation metric that chooses hyper-parameters.
        only: methods, of those of the study; by default all.
        places: names of settings, of those of the study; by default all.
        own: methods of the user's own that join, and the digest of the file that each comes from.
    """
    found, settings, own = STUDIES[study], SCALES[scale](), own or {}
    methods = [method for method in (*found.methods, *own) if not only or method in only]
    if not methods:
        raise ValueError(f"{study} compares {', '.join(found.methods)}; --only names none of them")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be distinct, and at least one; got {list(seeds)}")
    known = found.settings(settings)
    if not known:
        raise ValueError(f"there is no {study} at the scale {scale}; there are {', '.join(studies_at(scale))}")
    shown = tuple(setting for setting in known if not places or setting.name in places)
    if not shown:
        raise ValueError(
            f"{study} has the settings {', '.join(each.name for each in known)}; --settings names none of them"
        )
    lines = tuple(
        Line(
            setting=setting.name,
            method=method,
            title=METHODS[method].title,
            seeds=tuple(seeds),
            candidates=settings.candidates.get(method) or candidates_of(method, most=settings.values),
            swept=found.swept,
            source=own.get(method, ""),
            tuning_seeds=settings.tuning_seeds,
        )
        for setting in shown
        for method in methods
        if not setting.methods or method in setting.methods
    )
    if not lines:
        raise ValueError(
            f"{study}: the settings {', '.join(each.name for each in shown)} have no row for {', '.join(methods)}"
        )
    names = {setting.tuned_in for setting in shown} - {setting.name for setting in shown} - {""}
    everywhere = {each.name: each for table in (*settings.tables.values(), settings.costs, known) for each in table}
    tuned = tuple(setting for name, setting in everywhere.items() if name in names)
    return Request(study, scale, rule, shown + tuned, lines)
