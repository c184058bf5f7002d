"""The report: one HTML file that loads nothing and runs nothing, for screens large and small, dark rooms and paper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial

from matplotlib.figure import Figure

from counterpoise import __version__
from counterpoise._files import FilePath, write_text
from counterpoise._text import listed
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.estimates import percent
from counterpoise.metrics.scores import Scores, Source
from counterpoise.metrics.selective import DEFAULT_RISK
from counterpoise.report import figures, numbers
from counterpoise.report.advice import Advice, advice_between, advice_for
from counterpoise.report.cards import card_of
from counterpoise.report.data import (
    errors_of,
    has_bins,
    has_classes,
    largest_class_error,
    largest_share,
    name_of,
    severities,
    unit_of,
)
from counterpoise.report.guarantees import coverage_tables, sets_sentence, threshold_sentence
from counterpoise.report.html import inside, layout
from counterpoise.report.sections import Picture, Section, arranged
from counterpoise.report.sentences import selective_sentence, temperature_sentence, worst_classes_sentence
from counterpoise.report.slices import crossed_tables, slice_sentence, slice_table, slices_of
from counterpoise.report.style import Look
from counterpoise.report.tables import Table

STYLE_SHEET = ("counterpoise.report", "page.css")
LISTED_CLASSES = LISTED_GROUPS = 50


@dataclass(frozen=True)
class Provenance:
    """What is known of where one model's predictions come from."""

    name: str
    rows: list[tuple[str, str]]


def write_report(
    path: str | FilePath,
    evaluation: Evaluation,
    *,
    title: str = "",
    day: date | None = None,
    notices: Sequence[str] = (),
    risk: float = DEFAULT_RISK,
) -> None:
    """Write the page, atomically.

    Args:
        path: of the file.
        evaluation: what to report.
        title: of the page; by default, the names of the models.
        day: that the page states; by default, today.
        notices: one line each, such as how columns were read and what could not be measured; beside those of the
            evaluation.
        risk: error rate that accepted predictions may have.
    """
    today = datetime.now(tz=UTC).date()
    write_text(path, render(evaluation, title=title, day=day or today, notices=notices, risk=risk))


def render(
    evaluation: Evaluation,
    *,
    day: date,
    title: str = "",
    notices: Sequence[str] = (),
    risk: float = DEFAULT_RISK,
) -> str:
    """The page as text; the same arguments always give the same text."""
    page = layout("counterpoise.report", template="page.html.jinja", sheets=(STYLE_SHEET,))
    models = evaluation.models
    advice = advice_for(models[0]) if len(models) == 1 else advice_between(evaluation)
    return page.template.render(
        title=title or _title(models),
        day=f"{day.day} {day:%B %Y}",
        iso_day=day.isoformat(),
        lead=_lead(evaluation),
        style=page.style,
        style_digest=page.style_digest,
        advice=advice or Advice(""),
        cards=[card_of(model, Look(place), models, risk=risk) for place, model in enumerate(models)],
        notices=list(dict.fromkeys((*evaluation.notices, *notices))),
        rows=arranged([section for section in _sections(evaluation, risk=risk) if section is not None]),
        sources=[Provenance(name_of(model), _provenance(model.source)) for model in models],
        version=__version__,
    )


def _title(models: Sequence[Scores]) -> str:
    names = [name_of(model) for model in models]
    if len(names) > 3:
        return f"Reliability of {len(names)} models"
    return f"Reliability of {listed(names)}"


def _lead(evaluation: Evaluation) -> str:
    models = evaluation.models
    count = "One model" if len(models) == 1 else f"{len(models)} models"
    samples, bins = (_range([getattr(model, name) for model in models]) for name in ("samples", "bins"))
    known = [model.classes for model in models if model.classes > 1]
    classes = f"{_range(known)} classes" if known else ""
    return ", ".join(filter(None, [count, f"{samples} labelled {unit_of(models[0])}", classes, f"{bins} bins"]))


def _range(values: list[int]) -> str:
    return f"{min(values):,}" if len(set(values)) == 1 else f"{min(values):,} to {max(values):,}"


def _sections(evaluation: Evaluation, *, risk: float) -> list[Section | None]:
    models = evaluation.models
    drawn = [(model, Look(place)) for place, model in enumerate(models)]
    return [
        _comparison_section(evaluation),
        _reliability_section(drawn),
        _positive_section(drawn),
        _recalibration_section(evaluation, drawn),
        _class_section(drawn),
        _selective_section(drawn, risk=risk),
        _set_section(drawn),
        _detection_section(evaluation, drawn),
        _severity_section(drawn),
        _group_section(drawn),
        _metrics(evaluation),
    ]


Drawn = list[tuple[Scores, Look]]
"""Models and how they look; some of them may be left out of a section."""


def _reliability_section(drawn: Drawn) -> Section | None:
    having = [(model, look) for model, look in drawn if has_bins(model)]
    if not having:
        return None
    text = (
        "Bars and points: how often predictions of a given confidence are right, with the interval of each bin. On the "
        "dashed line, confidence is honest; below it, the model claims too much. Underneath, how many samples have "
        "that confidence."
    )
    # Side by side, pictures are compared by eye: one scale for all of them.
    limit = largest_share([model for model, _ in having])
    pictures = [
        _picture(
            partial(figures.reliability, model, share_limit=limit, looks=[look]),
            f"Reliability diagram of {name_of(model)}",
            [numbers.reliability_table(model)],
        )
        for model, look in having
    ]
    return Section("reliability", "Does confidence match accuracy?", [text], [], pictures)


def _positive_section(drawn: Drawn) -> Section | None:
    having = [(model, look) for model, look in drawn if model.positive is not None]
    if not having:
        return None
    chosen, shown = zip(*having, strict=True)
    text = (
        "Of samples with a given P(y = 1), how often the answer is yes, with the interval of each bin. Confidence folds"
        " both classes together, and can look honest where this is not."
    )
    picture = _picture(
        partial(figures.positive_class, chosen, looks=shown),
        "Reliability diagram of the positive class",
        [numbers.positive_table(model) for model in chosen],
    )
    return Section("positive", "Does P(y = 1) match how often y is 1?", [text], [], [picture])


def _class_section(drawn: Drawn) -> Section | None:
    # Of two classes, both have the error of the positive one.
    having = [(model, look) for model, look in drawn if has_classes(model) and model.positive is None]
    if not having:
        return None
    text = [_of(model, worst_classes_sentence(model), drawn) for model, _ in having]
    limit = largest_class_error([model for model, _ in having])
    pictures = [
        _picture(
            partial(figures.classwise, model, error_limit=limit, look=look),
            f"Calibration error of the worst classes of {name_of(model)}",
            [numbers.class_table(model, most=LISTED_CLASSES)],
        )
        for model, look in having
    ]
    return Section("classes", "Which classes are worst?", text, [], pictures)


def _selective_section(drawn: Drawn, *, risk: float) -> Section | None:
    having = [(model, look) for model, look in drawn if errors_of(model) is not None]
    if not having:
        return None
    text = [
        "Keeping only the most confident predictions lowers the error rate. The mark is the largest share that can be "
        f"kept with an error rate of {100 * risk:g}%.",
        *(_of(model, selective_sentence(model, risk=risk), drawn) for model, _ in having),
        *(_of(model, said, drawn) for model, _ in having if (said := threshold_sentence(model))),
    ]
    models, shown = zip(*having, strict=True)
    picture = _picture(
        partial(figures.risk_coverage, models, risk=risk, looks=shown),
        "Risk-coverage curves",
        [numbers.titled(numbers.risk_table(model), model) for model in models],
    )
    return Section("selective", "What if it may say “I don't know”?", text, [], [picture])


def _set_section(drawn: Drawn) -> Section | None:
    having = [(model, look) for model, look in drawn if model.guarantees is not None]
    if not having:
        return None
    models, shown = zip(*having, strict=True)
    text = [
        "A prediction set has the labels that are still possible. The surer the model, the fewer; a set of one label is"
        " a prediction.",
        *(_of(model, sets_sentence(model), drawn) for model in models),
    ]
    tables = [numbers.titled(table, model) for model in models for table in coverage_tables(model, most=LISTED_CLASSES)]
    picture = _picture(partial(figures.set_sizes, models, looks=shown), "Sizes of prediction sets", tables)
    return Section("sets", "Which labels are still possible?", text, [], [picture])


def _comparison_section(evaluation: Evaluation) -> Section | None:
    differences, comparison = numbers.paired_differences(evaluation), evaluation.comparison
    if differences is None or comparison is None:
        return None
    first = evaluation.models[0]
    text = [
        f"Differences to {name_of(first)} on the same samples, each with its interval. ▲ better and ▼ worse are "
        "beyond chance; an interval that holds 0 is no difference that these samples can show. In the picture, better "
        "is to the right, and each row has a scale of its own."
    ]
    pictures = [
        _picture(
            partial(figures.forest, evaluation, difference),
            f"Differences of {name_of(evaluation.models[difference.second])} to {name_of(first)}",
            [],
        )
        for difference in comparison.differences
        if difference.first == 0
    ]
    title = "How do they compare?"
    if len(pictures) > 1:
        return Section("comparison", title, text, [differences], pictures)
    text.append(f"{differences.title}.")
    return Section("comparison", title, text, _by_heading(differences), pictures, "columns")


def _metrics(evaluation: Evaluation) -> Section:
    level = percent(evaluation.models[0].level)
    text = [f"Value, and in brackets the {level} interval that holds the value of the whole population."]
    if evaluation.comparison is not None:
        text.append("▲ best of its row, by a paired difference to every other model that is beyond chance.")
    table = numbers.summary(evaluation)
    if len(evaluation.models) > 1:
        return Section("metrics", "All metrics", text, [table], [])
    return Section("metrics", "All metrics", text, _by_heading(table), [], "columns")


def _by_heading(table: Table) -> list[Table]:
    """A table for each heading inside a table."""
    found: list[Table] = []
    for row in table.rows:
        if len(row) == 1:
            found.append(Table(row[0].text, table.columns, ()))
        else:
            found[-1] = replace(found[-1], rows=(*found[-1].rows, row))
    return found


def _detection_section(evaluation: Evaluation, drawn: Drawn) -> Section | None:
    pictures = []
    for ood in (None, *numbers.ood_sets(evaluation)):
        having = [
            (model, look, ranking)
            for model, look in drawn
            if (ranking := errors_of(model) if ood is None else model.ood.get(ood)) is not None
        ]
        if having:
            models, shown, rankings = zip(*having, strict=True)
            of_what = "right from wrong predictions" if ood is None else f"in-distribution samples from {ood}"
            tables = [
                numbers.titled(numbers.rates_table(ranking), model)
                for model, ranking in zip(models, rankings, strict=True)
            ]
            draw = partial(figures.detection, models, ood=ood, looks=shown)
            pictures.append(_picture(draw, f"True against false positive rate of telling {of_what}", tables))
    text = [
        "How well confidence separates right from wrong predictions, and in-distribution from OOD samples. The mark is "
        "the false positive rate where 95% of the positives are accepted (FPR95): the lower, the better."
    ]
    return Section("detection", "Does confidence tell what to doubt?", text, [], pictures) if pictures else None


def _recalibration_section(evaluation: Evaluation, drawn: Drawn) -> Section | None:
    text, pictures = [], []
    for model, look in drawn:
        table, tried = numbers.recalibration_table(model), model.recalibration
        if tried is not None and table is not None:
            text.append(_of(model, temperature_sentence(tried), drawn))
            draw = partial(figures.recalibration, model, look=look)
            pictures.append(_picture(draw, f"Reliability of {name_of(model)} before and after", [table]))
    title, differences = "What would temperature scaling change?", numbers.scaled_differences(evaluation)
    tables = [] if differences is None else [differences]
    return Section("temperature", title, text, tables, pictures) if pictures else None


def _severity_section(drawn: Drawn) -> Section | None:
    having = [(model, look) for model, look in drawn if len(severities(model)) > 1]
    if not having:
        return None
    models, shown = zip(*having, strict=True)
    tables = [numbers.titled(table, model) for model in models if (table := numbers.severity_table(model)) is not None]
    picture = _picture(
        partial(figures.severity, models, looks=shown), "Calibration error over the corruptions, by severity", tables
    )
    text = [
        "Each point is a corruption at one severity; boxes hold the middle half of them, whiskers reach the extremes."
    ]
    return Section("severity", "What happens when images degrade?", text, [], [picture])


def _group_section(drawn: Drawn) -> Section | None:
    text, tables = [], []
    for model, _ in drawn:
        groups = slices_of(model)
        own = [*crossed_tables(model), slice_table(model, most=LISTED_GROUPS)]
        tables += [numbers.titled(table, model) for table in own if table is not None]
        said = slice_sentence(model)
        if len(groups) > LISTED_GROUPS:
            said += f" The {LISTED_GROUPS} worst are listed; all {len(groups):,} are in --csv and --json."
        text += [_of(model, said, drawn)] if said else []
    return Section("groups", "Group by group", text, tables, []) if tables else None


def _of(scores: Scores, sentence: str, drawn: Drawn) -> str:
    return sentence if len(drawn) == 1 else f"{name_of(scores)}: {sentence}"


def _picture(draw: Callable[[], Figure], alt: str, tables: list[Table]) -> Picture:
    return Picture(*inside(draw()), alt, tables)


def _provenance(source: Source) -> list[tuple[str, str]]:
    rows = [
        ("file", source.path),
        ("SHA-256", source.digest or "not stated"),
        ("holds", source.kind if source.members is None else f"{source.kind} of {source.members} members, averaged"),
        ("model", source.model),
        ("method", source.method),
        ("seed", "" if source.seed is None else str(source.seed)),
        ("configuration", source.config_digest),
        ("data", ", ".join(source.data_sets)),
        ("split", ", ".join(source.splits)),
        ("versions", ", ".join(f"{name} {version}" for name, version in source.versions.items())),
    ]
    return [(name, value) for name, value in rows if value]
