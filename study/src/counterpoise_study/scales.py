"""Scales of studies: as published, for two CPU cores and days, for seconds; and two that one study alone has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from counterpoise.models import Backbone
from counterpoise.recipes.catalog import RECIPES
from counterpoise.recipes.config import (
    DataOptions,
    EngineOptions,
    EvaluationOptions,
    OptimizerOptions,
    PruningOptions,
    Recipe,
)
from counterpoise_study import costs
from counterpoise_study.finetuning import finetuned, finetuning_recipe
from counterpoise_study.requests import Hyper, Published, Setting
from counterpoise_study.titles import DOMAINS, TITLES, network_title

ScaleName = Literal["paper", "reduced", "smoke", "finetune", "cost"]
UNSTATED = "unstated"
"""What the published tables say where the paper does not name the backbone."""

PRIMARIES = ("resnet34", "resnet50")
"""The paper's primaries; smaller scales have networks that stand for them."""


AUXILIARIES = ("cnn", "resnet18", "resnet34", "resnet50")
"""The paper's auxiliaries, in the same way."""

AUXILIARY_RATES = (0.01, 0.02, 0.05, 0.1)
"""Learning rates of the auxiliary that are compared; the first is the paper's."""

FASTER_RATE = 0.05
"""Of these, the one that is tried in short schedules."""

WARMUP = 1 / 3
"""Share of a short training over which alpha grows."""

EPOCHS, MILESTONES = 350, (150, 200, 250, 300)
"""The paper's schedule, which shorter ones are drawn together from."""


@dataclass(frozen=True)
class Scale:
    """The settings that studies are run in; a study that has none of them is not run at the scale.

    Attributes:
        name: of the scale.
        note: what every table of the scale says of it.
        tables: for each data set, the settings of its table: the first and the second primary.
        detection: for misclassification and OOD detection.
        figures: the one setting of figures.
        auxiliaries: the settings of `tables` with other auxiliaries.
        rates: the setting of figures, with other learning rates of the auxiliary.
        short: schedules of few steps, with what may help an auxiliary that lags behind.
        domains: one for each domain of PACS that is left out.
        finetuned: the same for fine-tuning, and another of each with a small auxiliary.
        costs: MTE with auxiliaries that cost less, and what it is compared with.
        costs_large: some of these at a larger size.
        values: most values of each hyper-parameter that are tried; None for all.
        candidates: of some methods, in place of the grids of the methods table.
        tuning_seeds: that hyper-parameters are chosen at; empty for the first of the seeds that are shown.
        page: whether every cell gets a report of its own.
    """

    name: ScaleName
    note: str
    tables: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    detection: tuple[Setting, ...] = ()
    figures: tuple[Setting, ...] = ()
    auxiliaries: tuple[Setting, ...] = ()
    rates: tuple[Setting, ...] = ()
    short: tuple[Setting, ...] = ()
    domains: tuple[Setting, ...] = ()
    finetuned: tuple[Setting, ...] = ()
    costs: tuple[Setting, ...] = ()
    costs_large: tuple[Setting, ...] = ()
    values: int | None = None
    candidates: Mapping[str, tuple[Hyper, ...]] = field(default_factory=dict)
    tuning_seeds: tuple[int, ...] = ()
    page: bool = True

    def table(self, data_set: str) -> tuple[Setting, ...]:
        """The settings of a data set's table."""
        return self.tables.get(data_set, ())


def paper() -> Scale:
    """The protocol of the paper: 350 epochs, ResNet34 and ResNet50 of full width, all images."""
    # The threads are named, so that a cell that is moved to another machine goes on with the same bits.
    engine = EngineOptions(threads=1, checkpoint_epochs=5)
    ood = {"cifar10": ("cifar100", "svhn"), "cifar100": ("cifar10", "svhn"), "tiny-imagenet": ()}
    tables = {}
    for role, sets in ood.items():
        recipes = []
        for primary in PRIMARIES:
            # Only the first primary is looked at under corruption.
            corruptions = ("standard",) if sets and primary == PRIMARIES[0] else ()
            evaluation = EvaluationOptions(ood=sets, corruptions=corruptions)
            recipes.append(replace(RECIPES[f"{role}-{primary}"].recipe(), engine=engine, evaluation=evaluation))
        tables[role] = _table(role, TITLES[role], recipes)
    backbones = [Backbone(name) for name in AUXILIARIES]
    few_steps = replace(tables["cifar10"][0].recipe, evaluation=EvaluationOptions())
    return Scale(
        name="paper",
        note="as published: 350 epochs, networks of full width, all images",
        tables=tables,
        detection=(tables["cifar10"][0], tables["cifar100"][0]),
        figures=tables["cifar100"][:1],
        auxiliaries=_auxiliaries([*tables["cifar10"], *tables["cifar100"]], backbones),
        rates=_rates(tables["cifar100"][0]),
        short=_short([(few_steps, 35), (few_steps, 100)], title=TITLES["cifar10"], tuned_in="cifar10-resnet34"),
        domains=_domains(replace(RECIPES["pacs-resnet34"].recipe(), engine=engine)),
    )


def reduced() -> Scale:
    """The same code on two CPU cores: networks of width 16, at most 5,000 training images of 32 pixels."""
    engine = EngineOptions(precision="bfloat16", threads=1, checkpoint_epochs=5)
    small = Backbone("resnet18", width=16)
    overfits = Recipe(
        primary=small,
        auxiliary=small,
        epochs=50,
        data=DataOptions(limit=10_000, validation=5000, padding=0),
        optimizer=_shortened(50),
        engine=engine,
    )
    augmented = replace(
        overfits,
        primary=replace(small, name="resnet10"),
        epochs=150,
        data=replace(overfits.data, padding=4),
        optimizer=_shortened(150),
    )
    degraded = EvaluationOptions(corruptions=("standard",), corrupted_images=2000)
    near_and_far = {"cifar10": ("cifar100_partial", "svhn_partial", "dtd_32"), "cifar100": ("cifar10", "svhn_partial")}
    tables = {}
    for role, ood in near_and_far.items():
        pair = [
            replace(overfits, evaluation=replace(degraded, ood=ood)),
            replace(augmented, evaluation=EvaluationOptions(ood=ood)),
        ]
        named = [replace(recipe, data=replace(recipe.data, name=role)) for recipe in pair]
        tables[role] = _table(role, f"{TITLES[role]} (5,000 images)", named, tuned_together=True)
    tiny = replace(augmented, primary=small, epochs=15, optimizer=_shortened(15))
    tiny = replace(tiny, data=DataOptions(name="tiny-imagenet", size=32))
    tables["tiny-imagenet"] = _table("tiny-imagenet", "Tiny-ImageNet (32 px)", [tiny])
    pacs = DataOptions(name="pacs_64", size=32, validation=0.1)
    few_steps = replace(overfits, data=DataOptions(limit=15_000, validation=5000))
    widths = [Backbone("cnn", 16), *(replace(small, name=f"resnet{depth}") for depth in (10, 18, 34))]
    return Scale(
        name="reduced",
        note="reduced: networks of width 16, few images or few epochs, two CPU cores; not the paper's scale",
        tables=tables,
        detection=tables["cifar10"][:1],
        figures=tables["cifar10"][:1],
        auxiliaries=_auxiliaries(tables["cifar10"][:1], widths),
        rates=_rates(tables["cifar10"][0]),
        short=_short(
            [(few_steps, 35), (few_steps, 100)], title="CIFAR-10 (10,000 images)", tuned_in="cifar10-resnet34"
        ),
        domains=_domains(
            replace(tiny, batch=20, epochs=30, data=pacs, optimizer=_shortened(30)), tuned_in=tables["cifar10"][0].name
        ),
    )


def smoke() -> Scale:
    """Seconds: networks and data so small that results mean nothing, and every line of code runs."""
    first, second = Backbone("cnn", width=4), Backbone("cnn", width=6)
    base = Recipe(
        primary=first,
        auxiliary=first,
        epochs=6,
        batch=20,
        data=DataOptions(limit=140, validation=40, padding=0),
        optimizer=OptimizerOptions(milestones=(5,), auxiliary_lr=0.05),
        pruning=PruningOptions(every=2),
        engine=EngineOptions(threads=1),
        evaluation=EvaluationOptions(images=150),
    )
    degraded = replace(
        base.evaluation,
        corruptions=("gaussian_noise", "fog", "contrast"),
        corrupted_images=40,
    )
    near_and_far = {
        "cifar10": ("cifar10", ("cifar100_partial", "svhn_partial")),
        "cifar100": ("cifar100_partial", ("cifar10", "svhn_partial")),
    }
    tables = {}
    for role, (name, ood) in near_and_far.items():
        evaluation = degraded if role == "cifar10" else base.evaluation
        recipes = [
            replace(base, data=replace(base.data, name=name), evaluation=replace(evaluation, ood=ood)),
            replace(base, data=replace(base.data, name=name), primary=second),
        ]
        tables[role] = _table(role, f"{TITLES[role]} (140 images)", recipes)
    pacs = replace(base, data=DataOptions(name="pacs_64", limit=140, spread=True, validation=40, size=16, padding=2))
    stand_in = replace(pacs, data=replace(pacs.data, domain="photo"))
    tables["tiny-imagenet"] = _table(
        "tiny-imagenet", "PACS in place of Tiny-ImageNet", [stand_in, replace(stand_in, primary=second)]
    )
    widths = [Backbone("cnn", width) for width in (2, 4, 6, 8)]
    return Scale(
        name="smoke",
        note="smoke: networks and data so small that the numbers mean nothing; it shows that everything runs",
        tables=tables,
        detection=(tables["cifar10"][0], tables["cifar100"][0]),
        figures=tables["cifar10"][:1],
        auxiliaries=_auxiliaries([*tables["cifar10"], *tables["cifar100"]], widths),
        rates=_rates(tables["cifar10"][0]),
        short=_short([(base, 2), (base, 3)], title="CIFAR-10 (140 images)", tuned_in="cifar10-resnet34"),
        domains=_domains(pacs),
        finetuned=finetuned(pacs, second, domains=("photo",)),
        costs=costs.small_settings(base, "CIFAR-10 (140 images), what it costs", stages={2: "4"}),
        costs_large=costs.large_settings(
            replace(base, epochs=7), "CIFAR-10 (140 images), 7 epochs, what it costs", stages={2: "4"}
        ),
        values=2,
        page=False,
    )


def finetune() -> Scale:
    """Pretrained networks: EfficientNet-Lite0 with ImageNet weights on 3,000 images of three domains of PACS."""
    alphas: tuple[Hyper, ...] = tuple({"alpha": alpha} for alpha in (0.4, 0.8, 1.2))
    return Scale(
        name="finetune",
        note="finetune: ImageNet weights, 2,400 training images of 64 px and 4 epochs, float32, one CPU core",
        finetuned=finetuned(finetuning_recipe(), Backbone("resnet10", width=16)),
        candidates={"dml": alphas, "mte1": alphas},
        tuning_seeds=(100, 101),
        page=False,
    )


def cost() -> Scale:
    """What MTE costs and what it is worth, where ten seeds of a method take an hour."""
    return Scale(
        name="cost",
        note="cost: CIFAR-10 in part, networks of width 16, float32, one CPU core; not the paper's scale",
        costs=costs.small_settings(
            costs.small_recipe(_shortened(50)), "CIFAR-10 (5,000 images of 16 px), ResNet10-w16"
        ),
        costs_large=costs.large_settings(costs.large_recipe(_shortened(100)), "CIFAR-10 (10,000 images), ResNet18-w16"),
        candidates=costs.candidates(),
        tuning_seeds=(100, 101, 102),
        page=False,
    )


SCALES = {"paper": paper, "reduced": reduced, "smoke": smoke, "finetune": finetune, "cost": cost}


def _shortened(epochs: int) -> OptimizerOptions:
    """The paper's schedule drawn together to fewer epochs; milestones that fall on one epoch count once.

    >>> _shortened(35).milestones
    (15, 20, 25, 30)
    """
    return OptimizerOptions(milestones=tuple(sorted({round(each * epochs / EPOCHS) for each in MILESTONES})))


def _table(role: str, title: str, recipes: Sequence[Recipe], *, tuned_together: bool = False) -> tuple[Setting, ...]:
    """The settings of a data set's table, one for each primary; perhaps all at what is chosen for the first."""
    settings: list[Setting] = []
    for primary, recipe in zip(PRIMARIES, recipes, strict=False):
        near, *far = recipe.evaluation.ood or ("",)
        settings.append(
            Setting(
                name=f"{role}-{primary}",
                title=f"{title}, {network_title(recipe.primary)}",
                recipe=recipe,
                near=near,
                far=tuple(far),
                published=Published(TITLES[role], primary),
                tuned_in=settings[0].name if settings and tuned_together else "",
            )
        )
    return tuple(settings)


def _auxiliaries(settings: Sequence[Setting], backbones: Sequence[Backbone]) -> tuple[Setting, ...]:
    """Every setting with each auxiliary, at the hyper-parameters that were chosen with the usual one."""
    return tuple(
        replace(
            setting,
            name=f"{setting.name}-{published}",
            recipe=replace(setting.recipe, auxiliary=backbone),
            published=replace(setting.published, auxiliary=published),
            tuned_in=setting.tuned_in or setting.name,
            variant=f"auxiliary {network_title(backbone)}",
        )
        for setting in settings
        for published, backbone in zip(AUXILIARIES, backbones, strict=True)
    )


def _rates(setting: Setting) -> tuple[Setting, ...]:
    """A setting with each learning rate of the auxiliary, at what was chosen with the usual one."""
    return tuple(
        replace(
            setting,
            name=f"{setting.name}-rate-{rate:g}",
            recipe=_with_rate(setting.recipe, rate),
            tuned_in=setting.name,
            variant=f"auxiliary lr {rate:g}",
        )
        for rate in AUXILIARY_RATES
    )


def _short(trainings: Sequence[tuple[Recipe, int]], *, title: str, tuned_in: str) -> tuple[Setting, ...]:
    """Trainings of few epochs: as published, with a faster auxiliary, and with a slow start of alpha."""
    settings = []
    for recipe, epochs in trainings:
        published = Setting(
            name=f"short-{epochs}",
            title=f"{title}, {network_title(recipe.primary)}, {epochs} epochs",
            recipe=_with_rate(replace(recipe, epochs=epochs, optimizer=_shortened(epochs)), AUXILIARY_RATES[0]),
            tuned_in=tuned_in,
        )
        only = replace(published, methods=("mte1",))
        settings += [
            published,
            replace(
                only,
                name=f"{published.name}-faster",
                recipe=_with_rate(published.recipe, FASTER_RATE),
                variant=f"auxiliary lr {FASTER_RATE:g}",
            ),
            replace(
                only,
                name=f"{published.name}-warmup",
                recipe=replace(published.recipe, hyper={"alpha_warmup": WARMUP}),
                variant="alpha grows over the first third",
            ),
        ]
    return tuple(settings)


def _with_rate(recipe: Recipe, rate: float) -> Recipe:
    return replace(recipe, optimizer=replace(recipe.optimizer, auxiliary_lr=rate))


def _domains(recipe: Recipe, *, tuned_in: str = "") -> tuple[Setting, ...]:
    """PACS with each domain left out of training and tested on."""
    return tuple(
        Setting(
            name=f"pacs-{domain}",
            title=f"PACS, {published} left out, {network_title(recipe.primary)}",
            recipe=replace(recipe, data=replace(recipe.data, domain=domain)),
            published=Published(f"PACS/{published}", UNSTATED),
            tuned_in=tuned_in,
        )
        for domain, published in DOMAINS.items()
    )
