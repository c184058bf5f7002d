"""The tables of a report: all metrics, paired differences, and the numbers behind each picture."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from counterpoise.metrics.comparison import Comparison, Difference, Evaluation
from counterpoise.metrics.estimates import KEY_INFO, KEY_METRICS, Estimate, Key, MetricInfo, percent
from counterpoise.metrics.protocol import Estimates
from counterpoise.metrics.scores import BinTable, GroupScores, RankingScores, Scores
from counterpoise.metrics.selective import operating_point
from counterpoise.metrics.summary import in_order
from counterpoise.report.data import (
    NOT_STATED,
    column_values,
    name_of,
    reliability_bins,
    severities,
    threshold_text,
    worst_classes,
)
from counterpoise.report.tables import Cell, Table, as_csv, table

_STEPS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)

_ECE = KEY_INFO[Key.ECE]
CsvRow = tuple[str | float | None, ...]

_NO_INTERVAL = (math.nan, math.nan, None, None)
"""Low, high, noise floor and error bound of what has none."""


@dataclass(frozen=True)
class Section:
    """A group of metrics.

    Attributes:
        title: of it.
        ranking: where its scores are; None for the metrics that rank nothing.
        ood: set of OOD samples that are told from the others.
    """

    title: str
    ranking: Callable[[Scores], RankingScores | None] | None = None
    ood: str | None = None

    def estimates(self, scores: Scores) -> Estimates:
        if self.ranking is None:
            return scores.estimates
        found = self.ranking(scores)
        return {} if found is None else found.estimates


def sections(evaluation: Evaluation) -> list[Section]:
    """All groups of metrics that some model has."""
    score = evaluation.models[0].misclassification.score
    return [
        Section("Performance and calibration"),
        Section(f"Right from wrong, by {score}", lambda scores: scores.misclassification),
        *(Section(f"In-distribution from {name}", partial(_against, name), name) for name in ood_sets(evaluation)),
    ]


def ood_sets(evaluation: Evaluation) -> list[str]:
    """Names of all OOD sets."""
    return list(dict.fromkeys(name for model in evaluation.models for name in model.ood))


def _against(name: str, scores: Scores) -> RankingScores | None:
    return scores.ood.get(name)


def summary(evaluation: Evaluation, *, key_metrics: bool = False, outside: str = "") -> Table:
    """Every metric of every model; best where a paired difference to every other model is beyond chance.

    Args:
        evaluation: of the models.
        key_metrics: those alone that nobody can do without.
        outside: mark of a value that its interval leaves out.
    """
    models = evaluation.models
    rows: list[tuple[Cell, ...]] = []
    for section in sections(evaluation):
        rows.append((Cell(section.title),))
        estimates = [section.estimates(model) for model in models]
        every = list(in_order({key: estimate for found in estimates for key, estimate in found.items()}))
        for key in shown_keys(every) if key_metrics else every:
            info = evaluation.info_of(key)
            values = [found[key].value if key in found else math.nan for found in estimates]
            comparison = evaluation.comparison
            best = None
            if comparison is not None:
                best = comparison.best(key, values, higher_is_better=info.higher_is_better, ood=section.ood)
            cells = [
                Cell(value_and_interval(info, found.get(key), outside=outside), index == best)
                for index, found in enumerate(estimates)
            ]
            rows.append((_title_cell(info), *cells))
            floors = [found[key].floor if key in found else None for found in estimates]
            if any(floor is not None for floor in floors):
                texts = ["" if floor is None else number(info, floor) for floor in floors]
                rows.append((Cell("  noise floor of it", part=True), *(Cell(text) for text in texts)))
        if section.ranking is not None and not key_metrics:
            # AUPR cannot be read without it.
            rankings = [section.ranking(model) for model in models]
            counts = ["" if each is None else f"{each.positives:,} : {each.negatives:,}" for each in rankings]
            rows.append((Cell("positives : negatives"), *map(Cell, counts)))
    return Table("", ("", *map(name_of, models)), tuple(rows))


def shown_keys(keys: Sequence[str]) -> list[str]:
    """Those that nobody can do without, and metrics from outside, which somebody asked for; all where none is."""
    chosen = [key for key in keys if key in KEY_METRICS or key not in KEY_INFO]
    return chosen or list(keys)


def paired_differences(evaluation: Evaluation, *, key_metrics: bool = False) -> Table | None:
    """Each model minus the first, of all metrics or of those that matter most; None where they are not compared."""
    return _difference_table(evaluation, evaluation.comparison, how="", key_metrics=key_metrics)


def scaled_differences(evaluation: Evaluation, *, key_metrics: bool = False) -> Table | None:
    """The same after temperature scaling of each model, of what that changes."""
    how = "temperatures scaled, "
    found = _difference_table(evaluation, evaluation.scaled, how=how, key_metrics=key_metrics)
    return None if found is None else replace(found, rows=found.rows[1:])  # there is but one section


def _difference_table(
    evaluation: Evaluation, comparison: Comparison | None, *, how: str, key_metrics: bool
) -> Table | None:
    models = evaluation.models
    if comparison is None:
        return None
    chosen = [difference for difference in comparison.differences if difference.first == 0]
    rows: list[tuple[Cell, ...]] = []
    for section in sections(evaluation):
        estimates = [_differences(each, section) for each in chosen]
        own = section.estimates(models[0])
        keys = [key for key in own if any(key in found for found in estimates)]
        keys = shown_keys(keys) if key_metrics else keys
        rows += [(Cell(section.title),)] if keys else []
        for key in keys:
            info, cells = evaluation.info_of(key), []
            for found in estimates:
                estimate = found.get(key)
                better, worse = _wins(info, estimate), _wins(info, estimate, loses=True)
                cells.append(Cell(value_and_interval(info, estimate, signed=True), better, worse=worse))
            rows.append((_title_cell(info), *cells))
    level = percent(round(comparison.level, 4))
    title = f"Each minus {name_of(models[0])}, {how}paired on {comparison.samples:,} samples ({level} intervals)"
    return Table(title, ("", *(name_of(models[d.second]) for d in chosen)), tuple(rows))


def _differences(difference: Difference, section: Section) -> Estimates:
    return difference.estimates if section.ood is None else difference.ood.get(section.ood, {})


def _wins(info: MetricInfo, difference: Estimate | None, *, loses: bool = False) -> bool:
    """Better, or worse, beyond chance; by the interval, outside which a biased value may lie."""
    if difference is None or info.higher_is_better is None:
        return False
    return difference.low > 0 if info.higher_is_better != loses else difference.high < 0


def reliability_table(scores: Scores) -> Table:
    """The bins of the reliability diagram."""
    heads = ("confidence", "samples", "share", "mean confidence", "accuracy", f"{percent(scores.level)} interval")
    return table("Bins of the predicted class", heads, _bin_rows(scores.top_label, level=scores.level))


def positive_table(scores: Scores) -> Table:
    """The bins of the positive class of a binary model."""
    assert scores.positive is not None  # noqa: S101
    heads = ("P(y = 1)", "samples", "share", "mean P(y = 1)", "frequency", f"{percent(scores.level)} interval")
    rows = _bin_rows(scores.positive, level=scores.level)
    return table(f"Bins of the positive class, {name_of(scores)}", heads, rows)


def _bin_rows(bins: BinTable, *, level: float) -> list[tuple[str, ...]]:
    return [
        (
            f"{row.lower:.3f} to {row.upper:.3f}",
            f"{row.count:,}",
            f"{row.share:.1%}",
            f"{row.confidence:.2%}",
            f"{row.accuracy:.2%}",
            f"{row.low:.1%} to {row.high:.1%}",
        )
        for row in reliability_bins(bins, level=level)
    ]


def class_table(scores: Scores, *, most: int) -> Table:
    """The worst classes, with everything known of each."""
    rows = [
        (
            row.name,
            f"{row.frequency:.2%}",
            f"{row.mean_probability:.2%}",
            f"{row.ece:.2%}",
            f"{row.low:.2%} to {row.high:.2%}",
            f"{row.floor:.2%}",
        )
        for row in worst_classes(scores, most=most)
    ]
    heads = ("class", "share of labels", "mean probability", "ECE", f"{percent(scores.level)} interval", "noise floor")
    return table("Classes by calibration error", heads, rows)


def risk_table(scores: Scores) -> Table:
    """The risk-coverage curve at round coverages."""
    curves = scores.misclassification.curves
    rows = []
    for share in _STEPS:
        place = next((i for i, value in enumerate(curves["coverage"]) if value >= share), None)
        if place is not None:
            threshold, coverage, risk = (curves[name][place] for name in ("threshold", "coverage", "risk"))
            rows.append((threshold_text(threshold), f"{coverage:.1%}", f"{risk:.2%}"))
    return table("Risk and coverage", ("threshold", "accepted", "error rate of these"), list(dict.fromkeys(rows)))


def rates_table(ranking: RankingScores) -> Table:
    """True positive rates at round false positive rates."""
    heads = ("threshold", "false positive rate", "true positive rate")
    if math.isnan(ranking.estimates[Key.AUROC].value):
        return table("Rates", heads, [("undefined", "", "")])
    false, true = ranking.curves["false_positive_rate"], ranking.curves["true_positive_rate"]
    rows = []
    for rate in _STEPS:
        reached = [index for index, value in enumerate(false) if value <= rate]
        if reached:
            place = reached[-1]
            threshold = threshold_text(ranking.curves["threshold"][place])
            rows.append((threshold, f"{false[place]:.1%}", f"{true[place]:.1%}"))
    return table("Rates", heads, list(dict.fromkeys(rows)))


def recalibration_table(scores: Scores) -> Table | None:
    """Metrics without and with temperature scaling."""
    tried = scores.recalibration
    if tried is None:
        return None
    rows = [
        (metric_title(info), value_and_interval(info, tried.before[key]), value_and_interval(info, tried.after[key]))
        for key, info in ((key, scores.info_of(key)) for key in tried.before)
    ]
    return table("Temperature scaling", ("", "as it is", f"T = {tried.temperature:.3f}"), rows)


def selective_table(evaluation: Evaluation, *, risk: float) -> Table:
    """Of each model, the threshold for a chosen risk."""
    rows = []
    for model in evaluation.models:
        point = operating_point(model.misclassification, risk=risk, level=model.level)
        if point is None:
            rows.append((name_of(model), "no threshold", "", ""))
            continue
        wrong = f"{point.risk:.1%} ({point.low:.1%} to {point.high:.1%})"
        rows.append((name_of(model), threshold_text(point.threshold), f"{point.coverage:.1%}", wrong))
    title = f"To be wrong at most {100 * risk:g}% of the time, by {evaluation.models[0].misclassification.score}"
    return table(title, ("", "accept from", "keeps", "wrong of these"), rows)


def temperature_table(evaluation: Evaluation) -> Table | None:
    """Of each model, what temperature scaling would change of the ECE; None where it was not tried."""
    rows = []
    for model in evaluation.models:
        if (tried := model.recalibration) is not None and Key.ECE in tried.before:
            found = (value_and_interval(_ECE, estimates[Key.ECE]) for estimates in (tried.before, tried.after))
            rows.append((name_of(model), f"{tried.temperature:.3f}", *found))
    heads = ("", "temperature", "ECE as it is, %", "ECE then, %")
    return table("Temperature scaling, measured on other samples", heads, rows) if rows else None


def severity_table(scores: Scores) -> Table | None:
    """ECE of each corruption (rows) at each severity (columns)."""
    levels = severities(scores)
    if not levels:
        return None
    found = {(name, level): estimate for level, estimates in levels.items() for name, estimate in estimates}
    names = list(dict.fromkeys(name for name, _ in found))
    rows = [
        (name, *(value_and_interval(KEY_INFO[Key.ECE], found.get((name, level))) for level in levels)) for name in names
    ]
    return table("ECE by severity, %", ("corruption", *(f"severity {level}" for level in levels)), rows)


def severity_means(scores: Scores) -> Table | None:
    """Mean ECE over the corruptions at each severity, with the smallest and largest."""
    rows, what = [], "groups" if any(group.columns for group in scores.groups) else "corruptions"
    for level, estimates in severities(scores).items():
        values = [estimate.value for _, estimate in estimates]
        low, mean, high = (
            number(KEY_INFO[Key.ECE], value) for value in (min(values), sum(values) / len(values), max(values))
        )
        rows.append(("clean" if level == 0 else f"severity {level}", str(len(values)), mean, low, high))
    return table("ECE over the corruptions, %", ("", what, "mean", "lowest", "highest"), rows) if rows else None


def titled(source: Table, scores: Scores) -> Table:
    """The table with the model's name in its title."""
    return Table(f"{source.title}: {name_of(scores)}", source.columns, source.rows)


ESTIMATE_COLUMNS = ("model", "section", "metric", "value", "low", "high", "noise_floor", "error_bound")


def estimates_csv(evaluation: Evaluation) -> str:
    """Every estimate as a row of CSV."""
    return as_csv(ESTIMATE_COLUMNS, estimate_rows(evaluation))


def estimate_rows(evaluation: Evaluation) -> list[CsvRow]:
    """Every estimate, in the metrics' own units, under `ESTIMATE_COLUMNS`.

    First the metrics of each model, then its groups and its temperature trial, then the paired differences, as they are
    and after temperature scaling: in a section `..., minus A`, the row of model B holds B minus A.
    """
    models = evaluation.models
    rows: list[CsvRow] = []
    for model in models:
        for section in sections(evaluation):
            rows += _csv_rows(model, section.title, section.estimates(model))
            if section.ranking is not None and (ranking := section.ranking(model)) is not None:
                counts = {"positives": ranking.positives, "negatives": ranking.negatives}
                rows += [
                    (model.source.name, section.title, name, count, *_NO_INTERVAL) for name, count in counts.items()
                ]
    for model in models:
        for group in model.groups:
            rows += _csv_rows(model, f"Group: {_group_name(group)}", group.estimates)
        if (tried := model.recalibration) is not None:
            rows.append((model.source.name, "Temperature scaling", "temperature", tried.temperature, *_NO_INTERVAL))
            rows += _csv_rows(model, "Temperature scaling, before", tried.before)
            rows += _csv_rows(model, "Temperature scaling, after", tried.after)
    for difference in [] if evaluation.comparison is None else evaluation.comparison.differences:
        first, second = models[difference.first], models[difference.second]
        for section in sections(evaluation):
            found = _differences(difference, section)
            own = {key: found[key] for key in section.estimates(first) if key in found}
            rows += _csv_rows(second, f"{section.title}, minus {name_of(first)}", own)
    for difference in [] if evaluation.scaled is None else evaluation.scaled.differences:
        section_title = f"Temperature scaling, after, minus {name_of(models[difference.first])}"
        rows += _csv_rows(models[difference.second], section_title, difference.estimates)
    return rows


def _csv_rows(scores: Scores, section: str, estimates: Estimates) -> list[CsvRow]:
    return [
        (scores.source.name, section, str(key), e.value, e.low, e.high, e.floor, e.error_bound)
        for key, e in estimates.items()
    ]


def _group_name(group: GroupScores) -> str:
    severity = None if group.severity is None else f"severity {group.severity}"
    return ", ".join(filter(None, (group.domain, group.corruption, severity, *column_values(group)))) or NOT_STATED


def metric_title(info: MetricInfo) -> str:
    """Name and unit of a metric."""
    return f"{info.title}, {info.unit}" if info.unit else info.title


def _title_cell(info: MetricInfo) -> Cell:
    title = metric_title(info)
    return Cell(title, part=title.startswith(" "))


def number(info: MetricInfo, value: float, *, signed: bool = False) -> str:
    """A value in the unit it is shown in."""
    digits = 2 if info.scale > 1 or abs(value) >= 100 else 4
    return f"{info.scale * value:+.{digits}f}" if signed else f"{info.scale * value:.{digits}f}"


def value_and_interval(info: MetricInfo, estimate: Estimate | None, *, signed: bool = False, outside: str = "") -> str:
    """Such as `2.24 (1.31 to 2.65)`; `outside` follows a value that its interval leaves out."""
    if estimate is None:
        return ""
    if math.isnan(estimate.value):
        return "undefined"
    value = number(info, estimate.value, signed=signed)
    if math.isnan(estimate.low) or math.isinf(estimate.value):
        return value
    value += "" if estimate.low <= estimate.value <= estimate.high else outside
    return f"{value} ({number(info, estimate.low, signed=signed)} to {number(info, estimate.high, signed=signed)})"
