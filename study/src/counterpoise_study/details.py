"""The tables behind the results: how each was obtained and at what cost, what was chosen, and every run by itself."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from counterpoise.calibrators.protocol import FitState
from counterpoise.metrics.estimates import KEY_INFO, Key
from counterpoise.recipes.config import Recipe
from counterpoise.recipes.methods import METHODS
from counterpoise.report.numbers import metric_title, number
from counterpoise_study.collected import Choice, Column, Row, StudyResults, Trial, hyper_text
from counterpoise_study.cost import counted, reference_of, shape_of
from counterpoise_study.summary import summarise
from counterpoise_study.tables import BLOCKS, MISSING, Address, Entry, Linked, anchor, tuning_seeds_text

_VALIDATED = (Key.NLL, Key.ACCURACY, Key.ECE)


def setup_table(gathered: StudyResults) -> Linked:
    """Of every row the hyper-parameters, the fitted temperature, and the cost as a ratio to cross-entropy."""
    rows: list[tuple[Entry, ...]] = []
    # Groups of one setting have the same rows: near and far OOD images.
    for group in {group.setting: group for group in gathered.groups}.values():
        rows.append((Entry(group.setting),))
        for row in group.rows:
            hyper = MISSING if row.hyper is None else hyper_text(row.hyper) or "none"
            rows.append((Entry(row.label), Entry(hyper), Entry(_temperature(row)), *map(Entry, _costs(row))))
    heads = ("", "hyper-parameters", "temperature", "training cost, CE = 1", "inference cost, CE = 1")
    note = (
        "Cost: counted operations for an image through all networks that train, forward and backward, and through what "
        "ships, forward; as a multiple of cross-entropy with the same primary. Temperature: fitted on the "
        "validation images, mean ± standard deviation over seeds."
    )
    return Linked("How the results were obtained", heads, tuple(rows), note)


def cost_ratios(recipe: Recipe) -> tuple[float, float]:
    """Training and inference cost of a recipe, in those of cross-entropy with the same primary."""
    classes, shape = shape_of(recipe)
    cost, base = (counted(each, classes=classes, shape=shape) for each in (recipe, reference_of(recipe)))
    return cost.training_flops / base.training_flops, cost.inference_flops / base.inference_flops


def _costs(row: Row) -> tuple[str, str]:
    """Unknown for a method of the user's own whose file was not named."""
    if row.line.method not in METHODS:
        return MISSING, MISSING
    training, inference = cost_ratios(replace(row.setting.recipe, method=row.line.method))
    return f"{training:.2f}", f"{inference:.2f}"


def _temperature(row: Row) -> str:
    if not row.records:
        return MISSING
    found = summarise([record.temperature for record in row.records])
    text = f"{found.mean:.3f} ± {found.deviation:.3f}" if found.count > 1 else f"{found.mean:.3f}"
    bounded = sum(record.temperature_state != FitState.CONVERGED for record in row.records)
    return f"{text}, {bounded} of {found.count} at a bound" if bounded else text


def choice_table(gathered: StudyResults, address: Address) -> Linked | None:
    """Every candidate of the hyper-parameters on the validation images; None where there was nothing to choose."""
    if not gathered.choices:
        return None
    rule = Key(gathered.request.rule)
    rows: list[tuple[Entry, ...]] = []
    settings = dict.fromkeys(choice.setting.name for choice in gathered.choices)
    for name in settings:
        here = [choice for choice in gathered.choices if choice.setting.name == name]
        rows.append((Entry(here[0].setting.title),))
        rows += [_trial(choice, trial, rule, address) for choice in here for trial in choice.trials]
    heads = ("", *(f"validation {metric_title(KEY_INFO[key])}" for key in _VALIDATED), "")
    apart = tuning_seeds_text(gathered.request)
    note = f"One run of each at {apart or 'the first seed'}; {metric_title(KEY_INFO[rule])} decides."
    return Linked("Candidates of the hyper-parameters", heads, tuple(rows), note)


def _trial(choice: Choice, trial: Trial, rule: Key, address: Address) -> tuple[Entry, ...]:
    seed = f", seed {trial.cell.recipe.seed}" if choice.line.tuning_seeds else ""
    variant = f", {choice.setting.variant}" if choice.setting.variant else ""
    label = Entry(f"{choice.line.title}{variant}, {hyper_text(trial.cell.recipe.hyper)}{seed}")
    if trial.metrics is None:
        state = "failed" if trial.has_failed else "not run yet"
        return label, *(Entry(MISSING) for _ in _VALIDATED), Entry(state)
    target = address(trial.cell) or ""
    values = (
        Entry(number(KEY_INFO[key], trial.metrics[key]), best=trial.is_chosen and key is rule, target=target)
        for key in _VALIDATED
    )
    return label, *values, Entry("chosen" if trial.is_chosen else "")


def run_tables(gathered: StudyResults, address: Address) -> list[Linked]:
    """Every metric of every run, for each group; rows have the names that results link to."""
    tables = []
    for place, group in enumerate(gathered.groups):
        heads = ["", "temperature"]
        heads += [f"{column.title}, {title.lower()}" for column in group.columns for title, _ in BLOCKS]
        rows = [
            entries
            for index, row in enumerate(group.rows)
            for entries in _runs(row, anchor(gathered, place, index), group.columns, address)
        ]
        tables.append(Linked(f"Every run: {group.title}", tuple(heads), tuple(rows)))
    return tables


def _runs(row: Row, name: str, columns: Sequence[Column], address: Address) -> Iterator[tuple[Entry, ...]]:
    values = {(column, scaled): row.values(column, scaled=scaled) for column in columns for _, scaled in BLOCKS}
    for index, run in enumerate(row.runs):
        label = f"{row.label}, seed {run.cell.recipe.seed}"
        if run.record is None:
            yield Entry(label), Entry(MISSING), *(Entry(MISSING) for _ in values)
            continue
        numbers = (
            Entry("undefined" if math.isnan(found[index]) else number(KEY_INFO[column.key], found[index]))
            for (column, _), found in values.items()
        )
        first = Entry(label, target=address(run.cell) or "", anchor="" if index else name)
        yield first, Entry(f"{run.record.temperature:.3f}"), *numbers
