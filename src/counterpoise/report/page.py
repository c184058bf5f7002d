"""The report: one HTML file that loads nothing and runs nothing, for screens large and small, dark rooms and paper."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from counterpoise import __version__
from counterpoise._files import write_text
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.estimates import Key
from counterpoise.metrics.scores import Scores, Source, verdict
from counterpoise.metrics.selective import DEFAULT_RISK
from counterpoise.report import figures, numbers
from counterpoise.report.data import largest_class_error, largest_share, name_of, severities
from counterpoise.report.html import data_uri, layout
from counterpoise.report.sentences import (
    accuracy_sentence,
    ece_sentence,
    selective_sentence,
    temperature_sentence,
    worst_classes_sentence,
)
from counterpoise.report.style import DARK, LIGHT, Theme
from counterpoise.report.tables import Table

STYLE_SHEET = ("counterpoise.report", "page.css")
LISTED_CLASSES = 50


@dataclass(frozen=True)
class Picture:
    """A figure in both themes as data URIs, what it shows in words, and its numbers."""

    light: str
    dark: str
    alt: str
    tables: list[Table]


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    title: str
    text: list[str]
    tables: list[Table]
    pictures: list[Picture]


@dataclass(frozen=True)
class Card:
    """The verdict on one model."""

    name: str
    state: str
    verdict: str
    lines: list[str]


@dataclass(frozen=True)
class Provenance:
    """What is known of where one model's predictions come from."""

    name: str
    rows: list[tuple[str, str]]


def write_report(path: str | Path, evaluation: Evaluation, *, risk: float = DEFAULT_RISK) -> None:
    """Write the page, atomically."""
    write_text(path, render(evaluation, risk=risk))


def render(evaluation: Evaluation, *, risk: float = DEFAULT_RISK) -> str:
    """The page as text; the same evaluation always gives the same text."""
    page = layout("counterpoise.report", template="page.html.jinja", sheets=(STYLE_SHEET,))
    models = evaluation.models
    return page.template.render(
        title="Reliability report",
        lead=_lead(evaluation),
        style=page.style,
        style_digest=page.style_digest,
        cards=[_card(model, risk=risk) for model in models],
        notices=evaluation.notices,
        sections=[section for section in _sections(evaluation, risk=risk) if section is not None],
        sources=[Provenance(name_of(model), _provenance(model.source)) for model in models],
        version=__version__,
    )


def _lead(evaluation: Evaluation) -> str:
    models = evaluation.models
    count = "One model" if len(models) == 1 else f"{len(models)} models"
    samples, classes, bins = (
        _range([getattr(model, name) for model in models]) for name in ("samples", "classes", "bins")
    )
    return f"{count}, {samples} labelled samples, {classes} classes, {bins} confidence bins."


def _range(values: list[int]) -> str:
    return f"{min(values):,}" if len(set(values)) == 1 else f"{min(values):,} to {max(values):,}"


def _card(scores: Scores, *, risk: float) -> Card:
    gap = scores[Key.MEAN_GAP]
    state = "over" if gap.low > 0 else "under" if gap.high < 0 else "none"
    lines = [ece_sentence(scores), accuracy_sentence(scores), selective_sentence(scores, risk=risk)]
    return Card(name_of(scores), state, verdict(scores), lines)


def _sections(evaluation: Evaluation, *, risk: float) -> list[Section | None]:
    models = evaluation.models
    return [
        _reliability_section(models),
        _comparison_section(evaluation),
        _class_section(models),
        _selective_section(models, risk=risk),
        _detection_section(evaluation),
        _recalibration_section(models),
        _severity_section(models),
        _group_section(models),
        _metrics(evaluation),
    ]


def _reliability_section(models: list[Scores]) -> Section:
    text = (
        "Bars and points: how often predictions of a given confidence are right, with the interval of each bin. On the "
        "dashed line, confidence is honest; below it, the model claims too much. Underneath, how many samples have "
        "that confidence."
    )
    # Side by side, pictures are compared by eye: one scale for all of them.
    draw = partial(figures.reliability, share_limit=largest_share(models))
    pictures = [
        _picture(draw, model, f"Reliability diagram of {name_of(model)}", [numbers.reliability_table(model)])
        for model in models
    ]
    return Section("Does confidence match accuracy?", [text], [], pictures)


def _class_section(models: list[Scores]) -> Section | None:
    models = [model for model in models if model.by_class.ece]
    if not models:
        return None
    text = [_of(model, worst_classes_sentence(model), models) for model in models]
    draw = partial(figures.classwise, error_limit=largest_class_error(models))
    pictures = [
        _picture(
            draw,
            model,
            f"Calibration error of the worst classes of {name_of(model)}",
            [numbers.class_table(model, most=LISTED_CLASSES)],
        )
        for model in models
    ]
    return Section("Which classes are worst?", text, [], pictures)


def _selective_section(models: list[Scores], *, risk: float) -> Section:
    text = [
        "Keeping only the most confident predictions lowers the error rate. The mark is the largest share that can be "
        f"kept with an error rate of {100 * risk:g}%.",
        *(_of(model, selective_sentence(model, risk=risk), models) for model in models),
    ]
    picture = _both(
        lambda theme: figures.risk_coverage(models, risk=risk, theme=theme),
        "Risk-coverage curves",
        [numbers.titled(numbers.risk_table(model), model) for model in models],
    )
    return Section("What if it may say “I don't know”?", text, [], [picture])


def _comparison_section(evaluation: Evaluation) -> Section | None:
    differences = numbers.paired_differences(evaluation)
    if differences is None:
        return None
    text = [
        "Differences on the same samples, each with its interval. Bold: better than the first model, beyond chance. An "
        "interval that holds 0 is no difference that these samples can show."
    ]
    return Section("How do they compare?", text, [differences], [])


def _metrics(evaluation: Evaluation) -> Section:
    text = ["Value, and in brackets the interval that holds the value of the whole population."]
    if evaluation.comparison is not None:
        text.append("Bold: best of its row, by a paired difference to every other model that is beyond chance.")
    return Section("All metrics", text, [numbers.summary(evaluation)], [])


def _detection_section(evaluation: Evaluation) -> Section:
    models = evaluation.models
    pictures = [
        _both(
            lambda theme: figures.detection(models, theme=theme),
            "True against false positive rate of telling right from wrong predictions",
            [numbers.titled(numbers.rates_table(model.misclassification), model) for model in models],
        )
    ]
    for name in numbers.ood_sets(evaluation):
        having = [model for model in models if name in model.ood]
        pictures.append(_ood_picture(having, name))
    text = [
        "How well confidence separates right from wrong predictions, and in-distribution from OOD samples. The mark is "
        "the false positive rate where 95% of the positives are accepted (FPR95): the lower, the better."
    ]
    return Section("Does confidence tell what to doubt?", text, [], pictures)


def _ood_picture(models: list[Scores], name: str) -> Picture:
    return _both(
        lambda theme: figures.detection(models, ood=name, theme=theme),
        f"True against false positive rate of telling in-distribution samples from {name}",
        [numbers.titled(numbers.rates_table(model.ood[name]), model) for model in models],
    )


def _recalibration_section(models: list[Scores]) -> Section | None:
    tried = [(model, model.recalibration) for model in models if model.recalibration is not None]
    if not tried:
        return None
    text, pictures = [], []
    for model, result in tried:
        text.append(_of(model, temperature_sentence(result), models))
        tables = [table for table in (numbers.recalibration_table(model),) if table is not None]
        pictures.append(
            _picture(figures.recalibration, model, f"Reliability of {name_of(model)} before and after", tables)
        )
    return Section("What would temperature scaling change?", text, [], pictures)


def _severity_section(models: list[Scores]) -> Section | None:
    having = [model for model in models if len(severities(model)) > 1]
    if not having:
        return None
    tables = [numbers.titled(table, model) for model in having if (table := numbers.severity_table(model)) is not None]
    picture = _both(
        lambda theme: figures.severity(having, theme=theme),
        "Calibration error over the corruptions, by severity",
        tables,
    )
    text = [
        "Each point is a corruption at one severity; boxes hold the middle half of them, whiskers reach the extremes."
    ]
    return Section("What happens when images degrade?", text, [], [picture])


def _group_section(models: list[Scores]) -> Section | None:
    tables = [numbers.titled(table, model) for model in models if (table := numbers.group_table(model)) is not None]
    return Section("Group by group", [], tables, []) if tables else None


def _of(scores: Scores, sentence: str, models: list[Scores]) -> str:
    return sentence if len(models) == 1 else f"{name_of(scores)}: {sentence}"


def _picture(draw: Callable[..., Figure], scores: Scores, alt: str, tables: list[Table]) -> Picture:
    return _both(lambda theme: draw(scores, theme=theme), alt, tables)


def _both(draw: Callable[[Theme], Figure], alt: str, tables: list[Table]) -> Picture:
    return Picture(data_uri(draw(LIGHT)), data_uri(draw(DARK)), alt, tables)


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
