"""The table of a study's results: mean, deviation and interval over seeds, beside what the paper has."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics.estimates import KEY_INFO, Key, percent
from counterpoise.recipes.config import LARGER_IS_BETTER
from counterpoise.report.numbers import number
from counterpoise.report.tables import Cell, Table
from counterpoise_study.cells import Cell as GridCell
from counterpoise_study.collected import Column, Group, Row, StudyResults
from counterpoise_study.published import published_number
from counterpoise_study.requests import Request
from counterpoise_study.scales import SCALES, UNSTATED
from counterpoise_study.summary import Marks, marks, mean, summarise

MISSING = "\N{EN DASH}"
BLOCKS = (("As trained", False), ("After temperature scaling", True))
"""Every method is shown twice; the second costs nothing but the fit of one number."""

Address = Callable[[GridCell], str | None]
"""Where a cell can be looked at, as the page links to it; None where there is nothing to see."""


@dataclass(frozen=True)
class Link:
    """A text and where it leads."""

    text: str
    target: str


@dataclass(frozen=True)
class Entry:
    """A cell of a table on a page.

    Attributes:
        text: of it.
        best: whether it is the best of its column.
        second: whether it is the second best.
        target: where the text leads.
        links: that follow the text.
        anchor: name of the row, by which links find it; of a first cell.
    """

    text: str
    best: bool = False
    second: bool = False
    target: str = ""
    links: tuple[Link, ...] = ()
    anchor: str = ""


@dataclass(frozen=True)
class Linked:
    """A table whose cells may lead somewhere, with a note that holds for all of it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    note: str = ""

    @property
    def table(self) -> Table:
        """Without links."""
        cells = (tuple(Cell(each.text, best=each.best, second=each.second) for each in row) for row in self.rows)
        return Table(self.title, self.columns, tuple(cells))


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Linked:
    """A table in which nothing leads anywhere."""
    return Linked(title, tuple(columns), tuple(tuple(map(Entry, row)) for row in rows))


def result_tables(gathered: StudyResults, address: Address) -> list[Linked]:
    """One for each group of rows."""
    return [_result_table(gathered, index, address) for index in range(len(gathered.groups))]


def _result_table(gathered: StudyResults, place: int, address: Address) -> Linked:
    group = gathered.groups[place]
    published = {column: _published_texts(gathered, group, column) for column in group.columns}
    heads = [""]
    for column in group.columns:
        heads += [column.title]
        heads += ["noise floor"] * column.has_floor
        heads += ["published"] * (published[column] is not None)
    heads.append("seeds")
    rows: list[tuple[Entry, ...]] = []
    for title, scaled in BLOCKS:
        rows.append((Entry(title),))
        marked = {column: _marks(group, column, scaled=scaled) for column in group.columns}
        for index, row in enumerate(group.rows):
            entries = [Entry(row.label)]
            for column in group.columns:
                found, paper = marked[column], published[column]
                text = value_text(row, column, scaled=scaled, captioned=len(gathered.request.seeds) == 1)
                target = f"#{anchor(gathered, place, index)}" if row.records else ""
                entries.append(Entry(text, best=found.best == index, second=found.second == index, target=target))
                if column.has_floor:
                    entries.append(Entry(floor_text(row, column, scaled=scaled)))
                if paper is not None:
                    entries.append(Entry("" if scaled else paper[index]))
            entries.append(Entry(f"{len(row.records)} of {len(row.line.seeds)}", links=_run_links(row, address)))
            rows.append(tuple(entries))
    return Linked(group.title, tuple(heads), tuple(rows))


def floor_tables(gathered: StudyResults) -> list[Linked]:
    """The noise floors of a study whose tables have no room for them: one for each group, empty where they have."""
    if gathered.study.layout != "severity":
        return []
    tables = []
    for group in gathered.groups:
        rows: list[tuple[str, ...]] = []
        for title, scaled in BLOCKS:
            rows.append((title,))
            rows += [
                (row.label, *(floor_text(row, each, scaled=scaled) for each in group.columns)) for row in group.rows
            ]
        heads = ("", *(column.title for column in group.columns))
        tables.append(plain_table(f"Noise floor: {group.title}", heads, rows))
    return tables


def anchor(gathered: StudyResults, group: int, row: int) -> str:
    """Name of the runs of a row, within a page."""
    return f"runs-{gathered.request.study}-{group}-{row}"


def value_text(row: Row, column: Column, *, scaled: bool, captioned: bool) -> str:
    """Such as `76.93 ± 0.21 (76.41 to 77.45)`; says where some of the finished runs have no such value.

    Of one seed, the interval is that over test images, where there is one; `captioned` where the caption says so.
    """
    if not row.records:
        return MISSING
    found = summarise(row.values(column, scaled=scaled))
    if not found.count:
        return "undefined"
    text = number(KEY_INFO[column.key], found.mean)
    if found.count > 1:
        deviation = number(KEY_INFO[column.key], found.deviation)
        text = f"{text} ± {deviation} {_interval_text(column.key, found.low, found.high)}"
    else:
        only = next(each for each in row.estimates(column, scaled=scaled) if each and not math.isnan(each.value))
        if not math.isnan(only.low):
            note = "" if captioned else ", over images"
            text = f"{text} {_interval_text(column.key, only.low, only.high, note=note)}"
    defined, done = found.count, len(row.records)
    return text if defined == done else f"{text}, {defined} of {done} defined"


def _interval_text(key: Key, low: float, high: float, *, note: str = "") -> str:
    return f"({number(KEY_INFO[key], low)} to {number(KEY_INFO[key], high)}{note})"


def floor_text(row: Row, column: Column, *, scaled: bool) -> str:
    """Mean over seeds of what a perfectly calibrated model would show."""
    found = [each.floor for each in row.estimates(column, scaled=scaled) if each is not None and each.floor is not None]
    return number(KEY_INFO[column.key], mean(found)) if found else MISSING


def _published_texts(gathered: StudyResults, group: Group, column: Column) -> list[str] | None:
    """For each row; None where the paper has nothing of the kind."""
    found = [
        published_number(gathered.study.tables, row.setting.published, row.line.method, column.key, column.ood)
        for row in group.rows
    ]
    if not any(found):
        return None
    return [MISSING if each is None else number(KEY_INFO[column.key], each.value) for each in found]


def _marks(group: Group, column: Column, *, scaled: bool) -> Marks:
    """Rows are compared seed by seed, over the seeds that they share."""
    found = [row.by_seed(column, scaled=scaled) for row in group.rows]
    seeds = sorted(set().union(*found))
    whole = [[values.get(seed, math.nan) for seed in seeds] for values in found]
    return marks(whole, higher_is_better=KEY_INFO[column.key].higher_is_better)


def _run_links(row: Row, address: Address) -> tuple[Link, ...]:
    done = [run.cell for run in row.runs if run.record is not None]
    return tuple(Link(str(cell.recipe.seed), target) for cell in done if (target := address(cell)))


def caption(gathered: StudyResults) -> str:
    """What must be known of all numbers of a study."""
    request = gathered.request
    sentences = [f"Scale {SCALES[request.scale]().note}."]
    seeds = ", ".join(str(seed) for seed in request.seeds)
    if len(request.seeds) == 1:
        sentences.append(f"Seed {seeds} alone, so with the {percent(DEFAULT_LEVEL)} interval over test images.")
    else:
        counted = (
            "" if len({line.seeds for line in request.lines}) == 1 else ", as many of them as the last column says"
        )
        sentences.append(
            f"Mean ± standard deviation over seeds {seeds}{counted} ({percent(DEFAULT_LEVEL)} t interval of the mean)."
        )
    if not gathered.study.swept:
        better = "highest" if request.rule in LARGER_IS_BETTER else "lowest"
        rule = KEY_INFO[Key(request.rule)].title
        mean_of = "mean " if tuning_seeds_text(request) else ""
        seeds = tuning_seeds_text(request) or "the first seed"
        sentences.append(
            f"Hyper-parameters by the {better} {mean_of}validation {rule} at {seeds}{_elsewhere(request)}."
        )
    if gathered.study.tables:
        sentences.append(f"Published: the paper's number, at the paper's own scale{_published_places(request)}.")
    return " ".join(sentences)


def tuning_seeds_text(request: Request) -> str:
    """Seeds of their own that hyper-parameters were chosen at; empty where it was at the first of those shown."""
    seeds = sorted({seed for line in request.lines for seed in line.tuning_seeds})
    return f"seeds {', '.join(map(str, seeds))}, which no table shows" if seeds else ""


def _elsewhere(request: Request) -> str:
    """Where hyper-parameters were chosen, if not in every setting by itself."""
    names = {request.setting(line.setting).tuned_in for line in request.lines} - {""}
    titles = dict.fromkeys(request.setting(name).title for name in sorted(names))
    return "".join(f", in {title}" for title in titles)


def _published_places(request: Request) -> str:
    """What the paper's numbers are of, beside which table."""
    places = {}
    for line in request.lines:
        setting = request.setting(line.setting)
        if setting.published.data_set:
            of = [setting.published.data_set, _backbone(setting.published.primary)]
            places[setting.title] = f"{', '.join(filter(None, of))}, beside {setting.title}"
    return f" ({'; '.join(places.values())})" if places else ""


def _backbone(name: str) -> str:
    return "" if name == UNSTATED else name.replace("resnet", "ResNet")
