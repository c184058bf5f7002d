"""What the documentation shows of the study of fine-tuning, from the records that are kept of it so far."""

from collections.abc import Callable, Mapping

from counterpoise.metrics.estimates import KEY_INFO, Key
from counterpoise.report.numbers import metric_title, number
from counterpoise_study.cells import trial_cells
from counterpoise_study.collected import Column, Group, Images, Row, StudyResults, hyper_text
from counterpoise_study.cost import shape_of, work_of
from counterpoise_study.summary import mean, paired_difference, summarise
from tools.markdown import markdown_table
from tools.study_claims import difference_text
from tools.study_tables import spread, summary_text

PAGE = "docs/finetuning.md"
REFERENCE = "ce"
SHOWN = (
    (Key.ACCURACY, False),
    *((key, scaled) for key in (Key.ECE, Key.NLL, Key.AUROC) for scaled in (False, True)),
)
"""Metrics, as trained and after temperature scaling, which leaves accuracy as it is."""
MISSING = "not run"


def protocol_section(study: StudyResults) -> str:
    """What all runs share, from the recipe of the first setting."""
    recipe = study.request.settings[0].recipe
    data, optimizer = recipe.data, recipe.optimizer
    classes, (_, height, _) = shape_of(recipe)
    held = round(data.validation * (data.limit or 0)) if isinstance(data.validation, float) else data.validation
    training = (data.limit or 0) - held
    small = next(each for each in study.request.settings if each.variant)
    norms = "" if optimizer.decay_norms else ", none on norms and biases"
    work = work_of(recipe)
    rows = [
        ("images", f"{data.name}, {height} px, {classes} classes; of three domains {data.limit:,}, evenly spread"),
        ("of these", f"{training:,} to train on, {held:,} for validation, by the seed"),
        ("tested on", "all images of the fourth domain"),
        ("network", f"`{recipe.primary.name}`, ImageNet weights, a new head"),
        ("auxiliary, or peer", f"the same, from the same weights; or {small.variant.removeprefix('auxiliary ')}"),
        ("optimizer", f"{optimizer.name}, weight decay {optimizer.weight_decay:g}{norms}"),
        (
            "learning rate",
            f"{optimizer.lr:g} for every network, {optimizer.schedule}, {optimizer.warmup:g} epochs of warm-up",
        ),
        ("training", f"{recipe.epochs} epochs, batches of {recipe.batch}: {work.steps} steps; the last epoch ships"),
        ("augmentation", f"crops with {data.padding} px of padding{', flips' if data.flip else ''}"),
        ("precision", f"{recipe.engine.precision}, {recipe.engine.threads} thread"),
        ("seeds shown", ", ".join(map(str, study.request.seeds))),
    ]
    return markdown_table(("", ""), rows)


def progress_text(study: StudyResults) -> str:
    """How much is finished."""
    tried = [trial for choice in study.choices for trial in choice.trials]
    done = sum(trial.metrics is not None for trial in tried)
    found = sum(len(row.records) for group in study.groups for row in group.rows)
    wanted = sum(len(row.line.seeds) for group in study.groups for row in group.rows)
    state = (
        "All is finished."
        if (found, done) == (wanted, len(tried))
        else f"**{wanted - found} results are still missing.**"
    )
    return f"{state} Runs that choose hyper-parameters: {done} of {len(tried)}; results: {found} of {wanted}."


def progress_section(study: StudyResults) -> str:
    """How many seeds of every method are finished, in every setting."""
    labels = [row.label for row in study.groups[0].rows]
    rows = [
        [label, *(_count(row) for group in study.groups for row in group.rows if row.label == label)]
        for label in labels
    ]
    table = markdown_table(("seeds that are finished", *map(_domain, study.groups)), rows)
    return f"{progress_text(study)}\n\n{table}"


def choices_section(study: StudyResults) -> str:
    """Every candidate with the mean over the seeds that choose, and which was chosen."""
    rows = []
    for choice in study.choices:
        line, setting = choice.line, choice.setting
        label = ", ".join(filter(None, (line.title, setting.variant)))
        by_cell = {trial.cell.id: trial for trial in choice.trials}
        for hyper in line.candidates:
            trials = [by_cell[cell.id] for cell in trial_cells(study.request, line, hyper)]
            values = [trial.metrics["nll"] for trial in trials if trial.metrics is not None]
            text = number(KEY_INFO[Key.NLL], mean(values)) if len(values) == len(trials) else MISSING
            rows.append((label, hyper_text(hyper), text, "chosen" if trials[0].is_chosen else ""))
    seeds = " and ".join(map(str, study.request.lines[0].choosing_seeds))
    return markdown_table(("", "hyper-parameter", f"validation NLL, mean of seeds {seeds}", ""), rows)


def domains_section(study: StudyResults, *, images: Images) -> str:
    """A table for every domain that is left out."""
    tables = []
    for group in study.groups:
        rows = [
            [
                row.label,
                *(value_text(row, column_of(group, key, images), scaled=scaled) for key, scaled in SHOWN),
                _count(row),
            ]
            for row in group.rows
        ]
        tables += [f"**{group.title}**", markdown_table(_heads("seeds"), rows)]
    return "\n\n".join(tables)


def means_section(study: StudyResults, *, images: Images) -> str:
    """The mean over the domains, of the seeds that have all of them."""
    rows = []
    for label in _labels(study):
        found = [summarise(list(_means(study, label, key, images, scaled=scaled).values())) for key, scaled in SHOWN]
        cells = [summary_text(key, each) if each.count else "" for (key, _), each in zip(SHOWN, found, strict=True)]
        rows.append([label, *cells, f"{found[0].count} of {len(study.request.seeds)}"])
    return markdown_table(_heads("seeds with all domains"), rows)


def differences_section(study: StudyResults, *, images: Images) -> str:
    """Mean over the domains against cross-entropy, seed by seed, with 95% t intervals."""
    reference = next(row.label for row in study.groups[0].rows if row.line.method == REFERENCE)
    rows = []
    for label in _labels(study):
        if label == reference:
            continue
        cells = []
        for key, scaled in SHOWN:
            ours, theirs = (_means(study, each, key, images, scaled=scaled) for each in (label, reference))
            shared = sorted(ours.keys() & theirs.keys())
            found = paired_difference([theirs[seed] for seed in shared], [ours[seed] for seed in shared])
            cells.append(difference_text(key, found) if shared else "")
        rows.append([label, *cells])
    return markdown_table(_heads(), rows)


def _labels(study: StudyResults) -> list[str]:
    return [row.label for row in study.groups[0].rows]


def _domain(group: Group) -> str:
    return group.setting.removeprefix("PACS, ")


def _count(row: Row) -> str:
    done = len(row.records)
    return f"{done} of {len(row.line.seeds)}" if done else MISSING


def _heads(*last: str) -> list[str]:
    return ["", *map(head, SHOWN), *last]


def head(shown: tuple[Key, bool]) -> str:
    """Of the column of a metric."""
    key, scaled = shown
    return f"{metric_title(KEY_INFO[key])}{', scaled' if scaled else ''}"


def column_of(group: Group, key: Key, images: Images) -> Column:
    """The column of a metric on some images."""
    return next(column for column in group.columns if column.key is key and column.images == images)


def value_text(row: Row, column: Column, *, scaled: bool) -> str:
    """The mean over seeds, with its interval; nothing where none is finished."""
    return spread(row, column, scaled=scaled) if row.records else ""


def _means(study: StudyResults, label: str, key: Key, images: Images, *, scaled: bool) -> dict[int, float]:
    """By seed, of those that are finished in every domain."""
    found = [
        row.by_seed(column_of(group, key, images), scaled=scaled)
        for group in study.groups
        for row in group.rows
        if row.label == label
    ]
    return {seed: mean([values[seed] for values in found]) for seed in sorted(set.intersection(*map(set, found)))}


SECTIONS: Mapping[str, tuple[str, Callable[[StudyResults], str]]] = {
    "finetune-protocol": (PAGE, protocol_section),
    "finetune-progress": (PAGE, progress_section),
    "finetune-choices": (PAGE, choices_section),
    "finetune-left-out-means": (PAGE, lambda study: means_section(study, images="test")),
    "finetune-left-out-differences": (PAGE, lambda study: differences_section(study, images="test")),
    "finetune-in-domain-means": (PAGE, lambda study: means_section(study, images="in-domain")),
    "finetune-in-domain-differences": (PAGE, lambda study: differences_section(study, images="in-domain")),
    "finetune-left-out": (PAGE, lambda study: domains_section(study, images="test")),
    "finetune-in-domain": (PAGE, lambda study: domains_section(study, images="in-domain")),
}
"""By name: the page that shows it, and how."""
