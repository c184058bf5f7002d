"""Tables in all their forms: the numbers are those of the metrics, and no name runs, breaks out or overflows."""

import csv
import io
import math
import re
from dataclasses import replace

import pytest

import evaluations as made
from counterpoise._text import width_of
from counterpoise.metrics import KEY_INFO, Key
from counterpoise.metrics.comparison import Comparison, Difference, Evaluation
from counterpoise.metrics.estimates import Estimate
from counterpoise.report import numbers, tables, terminal


@pytest.fixture(scope="module")
def scores():
    return made.scores(0)


@pytest.fixture(scope="module")
def three():
    return made.evaluation(3)


FORMULAS = (
    "=1+1",
    "+1",
    "-1+cmd",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "  =1",
    "\n=1",
    "\ufeff=1",
    "\xa0=1",
    "\uff1d1",
    "\uff0d1",
    "a;=1",
    '"=1',
)


@pytest.mark.parametrize("name", FORMULAS, ids=ascii)
def test_csv_holds_no_formula(scores, name):
    odd = replace(made.renamed(scores, name), recalibration=None)
    for row in csv.reader(io.StringIO(numbers.estimates_csv(Evaluation([odd])))):
        for cell in row[:3]:
            for piece in re.split("[;|\t\r\n]", cell):
                # A quote, or a letter, comes before anything that begins a formula.
                assert re.match(r"\s*['\w]|$", piece), piece


def counted(section, model):
    """Positives and negatives, as the rows of CSV have them."""
    ranking = section.ranking(model) if section.ranking else None
    counts = () if ranking is None else (ranking.positives, ranking.negatives)
    return [Estimate(count, math.nan, math.nan) for count in counts]


def test_the_numbers_that_aupr_depends_on_stand_beside_it(three):
    rows = [row for row in numbers.summary(three).rows if row[0].text == "positives : negatives"]
    assert len(rows) == len(numbers.sections(three)) - 1
    scores = three.models[0].misclassification
    assert rows[0][1].text == f"{scores.positives:,} : {scores.negatives:,}"


def test_csv_gives_back_every_estimate(three):
    infinite = replace(
        three.models[0], estimates=three.models[0].estimates | {Key.NLL: Estimate(math.inf, math.nan, math.nan)}
    )
    evaluation = replace(three, models=[infinite, *three.models[1:]])
    text = numbers.estimates_csv(evaluation)
    rows = list(csv.DictReader(io.StringIO(text)))
    expected = [
        estimate
        for model in evaluation.models
        for section in numbers.sections(evaluation)
        for estimate in (*section.estimates(model).values(), *counted(section, model))
    ]
    for model in evaluation.models:
        tried = model.recalibration
        expected += [estimate for group in model.groups for estimate in group.estimates.values()]
        expected += [Estimate(tried.temperature, math.nan, math.nan), *tried.before.values(), *tried.after.values()]
    for difference in evaluation.comparison.differences:
        first, before = evaluation.models[difference.first], len(expected)
        for section in numbers.sections(evaluation):
            found = difference.estimates if section.ood is None else difference.ood[section.ood]
            expected += [found[key] for key in section.estimates(first) if key in found]
        assert len(expected) - before == len(difference.estimates) + sum(map(len, difference.ood.values()))
    expected += [estimate for each in evaluation.scaled.differences for estimate in each.estimates.values()]
    assert len(rows) == len(expected)
    assert len({(row["model"], row["section"], row["metric"]) for row in rows}) == len(rows)
    assert "'" not in text
    assert any(float(row["low"]) < 0 for row in csv.DictReader(io.StringIO(tables.as_csv(("low",), [(-0.5,)]))))
    for row, estimate in zip(rows, expected, strict=True):
        for column, value in zip(
            ("value", "low", "high", "noise_floor"),
            (estimate.value, estimate.low, estimate.high, estimate.floor),
            strict=True,
        ):
            if value is None:
                assert row[column] == ""
            else:
                assert float(row[column]) == value or (math.isnan(value) and row[column] == "nan")


def test_csv_names_groups_temperature_and_differences(three):
    rows = {
        (row["model"], row["section"], row["metric"]): float(row["value"])
        for row in csv.DictReader(io.StringIO(numbers.estimates_csv(three)))
    }
    second = three.models[1]
    (fog,) = (group for group in second.groups if group.corruption == "fog" and group.severity == 2)
    assert rows["net 1", "Group: fog, severity 2", "ece"] == fog.estimates[Key.ECE].value
    assert rows["net 1", "Group: severity 0", "ece"] == second.groups[0].estimates[Key.ECE].value
    assert rows["net 1", "Temperature scaling", "temperature"] == second.recalibration.temperature
    assert rows["net 1", "Temperature scaling, after", "ece"] == second.recalibration.after[Key.ECE].value
    for foreign in (None, *made.FOREIGN_SETS):
        section = "Performance and calibration" if foreign is None else f"In-distribution from {foreign}"
        measure = Key.NLL if foreign is None else Key.AUROC
        plain, minus = rows["net 1", section, measure], rows["net 1", f"{section}, minus net 0", measure]
        assert minus == pytest.approx(plain - rows["net 0", section, measure], abs=1e-3)


def test_all_tables_hold_the_groups_and_the_trials_of_each_model(three):
    titles = [table.title for table in terminal.all_tables(three)]
    for name in ("net 0", "net 1", "net 2"):
        for title in ("Temperature scaling", "ECE by severity, %", "Groups", "Sets by class", "Sets by group"):
            assert titles.count(f"{title}: {name}") == 1
    plain = replace(three.models[0], recalibration=None, guarantees=None, groups=[])
    assert len(terminal.all_tables(Evaluation([plain]))) == 1


HOSTILE_CELLS = ("a|b", "\\", "\\|", "a\nb|c", "**x**", "`|`", "[x](javascript:1)", "<b>", "&lt;", "$x$", "~~x~~", "![x](y)",
                 "100% {x}_y^z~#&", "[2pt]x", "*x", "^^M", "%", "\x1b[31m", "a\rb", "\\input{/etc/passwd}", "--", "https://x.y")  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE_CELLS, ids=ascii)
def test_no_name_adds_a_column_or_a_command(text):
    source = tables.table(text, ("", text), [(text, text), (text, "1")])
    markdown, latex = tables.as_markdown(source), tables.as_latex(source)
    for line in markdown.splitlines()[2:]:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3
    body = re.sub(r"\\[\\`*_\[\]<>|#~!&${}:]", "", "".join(markdown.splitlines()[2:3]))
    assert not re.search(r"[`*_\[\]<>#~!&$]", body)
    known = r"\\text(?:backslash|asciicircum|asciitilde|less|greater|bar|quotedbl)\{\}|\\[{}$&#%_]|\{[\[\]*]\}"
    for row in latex.splitlines()[5:7]:
        assert row.endswith(r" \\")
        rest = re.sub(known, "", row.removesuffix(r" \\"))
        assert rest.count("&") == 1
        assert not re.search(r"[\\{}$#%_^~<>|\[\]*\"]", rest)
    assert latex.splitlines()[0].startswith("% ")
    assert len(latex.splitlines()) == 9


def one_comparison(low, high):
    """Two models whose ECE differs by an interval."""
    models = [made.scores(0), made.scores(1)]
    value = models[1][Key.ECE].value - models[0][Key.ECE].value
    difference = Difference(0, 1, {Key.ECE: Estimate(value, low, high)}, {})
    return Evaluation(models, Comparison(made.SAMPLES, 0.95, [difference]))


@pytest.mark.parametrize(("low", "high", "marks"), [(-0.2, 0.1, 0), (-0.2, -0.1, 1), (math.nan, math.nan, 0)])
def test_best_is_marked_only_beyond_chance(low, high, marks):
    evaluation = one_comparison(low, high)
    for table in (numbers.summary(evaluation), numbers.paired_differences(evaluation)):
        assert sum(cell.best for row in table.rows for cell in row) == marks
        assert tables.as_text(table).count(" *") == marks
        assert tables.as_latex(table).count(r"\textbf") == marks
        headings = sum(len(row) == 1 for row in table.rows)
        assert tables.as_markdown(table).count("**") == 2 * (marks + headings + bool(table.title))


def test_best_cells_are_those_of_the_comparison(three):
    table = numbers.summary(three)
    for key in (Key.ACCURACY, Key.NLL, Key.ECE, Key.MEAN_GAP):
        info = KEY_INFO[key]
        (row,) = (row for row in table.rows if row[0].text == numbers.metric_title(info))
        values = [model[key].value for model in three.models]
        best = three.comparison.best(key, values, higher_is_better=info.higher_is_better)
        assert [cell.best for cell in row[1:]] == [index == best for index in range(3)]
        assert row[1].text == numbers.value_and_interval(info, three.models[0][key])


def test_a_plug_in_value_outside_its_interval_decides_nothing():
    better = one_comparison(0.01, 0.05)
    assert better.comparison.differences[0].estimates[Key.ECE].value < 0
    assert not any(cell.best for row in numbers.paired_differences(better).rows for cell in row)


def assert_terminal(text):
    for line in text.split("\n"):
        assert width_of(line) <= 100
        assert line.isprintable()


@pytest.mark.parametrize("name", ["net", "a long name of a model " * 5, "\x1b[2J\x07x\n", "模型" * 40], ids=ascii)
@pytest.mark.parametrize("models", range(1, 8))
def test_text_is_at_most_100_columns_wide_and_holds_no_control_characters(three, name, models):
    found = [made.renamed(three.models[index % 3], f"{name}{index}", foreign=f"{name} set") for index in range(models)]
    differences = [
        Difference(0, index, three.comparison.differences[index % 3].estimates, {}) for index in range(1, models)
    ]
    evaluation = Evaluation(found, Comparison(1500, 0.99, differences) if models > 1 else None)
    assert_terminal(terminal.as_text(evaluation, risk=0.2))
    assert_terminal(tables.as_text(numbers.reliability_table(found[0])))
    assert_terminal(tables.as_text(numbers.class_table(found[0], most=5)))
    assert_terminal(tables.as_text(tables.table(name * 9, (name * 9, name * 9), [(name * 9, name * 9)])))


def test_terminal_text_says_what_was_found(three):
    one = terminal.as_text(Evaluation(three.models[:1]), risk=0.3)
    several = terminal.as_text(three, risk=0.3, everything=True)
    for text in (one, several):
        assert "overconfident by 26.9 points (90% interval 24.9 to 29.0)" in " ".join(text.split())
        assert "noise floor" in text
        assert "corruptions" in text
        assert "town" in text
    stars = sum(
        cell.best for t in (numbers.summary(three), numbers.paired_differences(three)) for r in t.rows for cell in r
    )
    assert " *" not in one
    assert several.count(" *") == stars
    assert "Each minus net 0, paired on 1,500 samples (95% intervals)" in several
    unnamed = [replace(model, source=replace(model.source, name="")) for model in three.models[:2]]
    assert terminal.as_text(Evaluation(unnamed), risk=0.3).startswith("predictions: Says")
