"""The report of a benchmark: its numbers are those of the records, and the same records give the same bytes."""

import base64
import hashlib
import html
import re
from dataclasses import replace
from urllib.parse import unquote

import numpy as np
import pytest
from scipy import stats

import stores
from counterpoise._files import write_text
from counterpoise.metrics import Key
from counterpoise.models import Backbone
from counterpoise.recipes.config import Recipe
from counterpoise.report.tables import Cell, Table, as_latex, as_markdown
from counterpoise_study import details, sections, tables
from counterpoise_study.collected import collect
from counterpoise_study.grid import remaining
from counterpoise_study.manifest import MOST_FAILURES
from counterpoise_study.record import CellRecord
from counterpoise_study.report import as_latex_text, as_markdown_text, write_report
from counterpoise_study.store import Store
from counterpoise_study.studies import STUDIES, request_of


def nowhere(cell):
    return None


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return stores.filled(tmp_path_factory.mktemp("all") / "store", stores.requests())


@pytest.fixture(scope="module")
def studies(store):
    return {each.request.study: each for each in collect(store)}


# Tables


@pytest.mark.slow
def test_cells_hold_mean_deviation_and_interval_of_the_records(studies):
    study = studies["cifar10"]
    (first, *_), group = tables.result_tables(study, nowhere), study.groups[0]
    place = first.columns.index("ECE, %")
    for block, scaled in ((0, False), (1, True)):
        start = 1 + block * (len(group.rows) + 1)
        for row, entries in zip(group.rows, first.rows[start:], strict=False):
            found = np.array(stores.values(row, Key.ECE, scaled=scaled))
            low, high = stats.t.interval(0.95, len(found) - 1, found.mean(), stats.sem(found))
            text = f"{found.mean():.2f} ± {found.std(ddof=1):.2f} ({low:.2f} to {high:.2f})"
            assert (entries[0].text, entries[place].text) == (row.label, text)
            floors = [record.outcome(scaled=scaled).estimates[Key.ECE].floor for record in row.records]
            assert entries[place + 1].text == f"{100 * np.mean(floors):.2f}"
            assert entries[-1].text == "3 of 3"


def test_published_numbers_stand_beside_what_was_trained_alone(studies):
    first = tables.result_tables(studies["cifar10"], nowhere)[0]
    place = first.columns.index("Accuracy, %") + 1
    assert first.columns[place] == "published"
    shown = {row[0].text: row[place].text for row in first.rows[1:7]}
    assert (shown["Cross-entropy"], shown["MTE-1"], shown["DML"]) == ("95.03", "95.39", tables.MISSING)
    assert {row[place].text for row in first.rows[8:]} == {""}
    assert "published" not in tables.result_tables(studies["alpha"], nowhere)[0].columns


def test_best_and_second_are_marked_where_they_are_clear(studies):
    first = tables.result_tables(studies["cifar10"], nowhere)[0]
    for head in ("Accuracy, %", "ECE, %"):
        place = first.columns.index(head)
        for rows in (first.rows[1:7], first.rows[8:]):
            assert [row[0].text for row in rows if row[place].best] == ["MTE-2"]
            assert [row[0].text for row in rows if row[place].second] == ["MTE-1"]
    detection = tables.result_tables(studies["misclassification"], nowhere)[0]
    assert sum(entry.best for row in detection.rows for entry in row) <= 2  # they are all alike but for noise


def test_ood_sets_and_severities_are_those_of_their_column(studies):
    near, far = studies["ood"].groups[:2]
    setting = near.rows[0].setting
    for group, name in ((near, setting.near), (far, setting.far[0])):
        column = group.columns[2]
        expected = [run.plain.ood[name][Key.AUROC].value for run in group.rows[0].records]
        assert group.rows[0].values(column, scaled=False) == expected
        assert name in group.title
    group = studies["corruptions"].groups[0]
    clean, *_, worst = group.columns
    run = group.rows[0].records[0]
    corrupted = [each.estimates[Key.ECE].value for each in run.plain.groups if each.severity == 5]
    assert group.rows[0].values(worst, scaled=False)[0] == pytest.approx(np.mean(corrupted))
    assert (clean.title, worst.title) == ("ECE, %, clean", "ECE, %, severity 5")
    (floors,) = tables.floor_tables(studies["corruptions"])
    assert {entry.text for row in floors.rows for entry in row[1:]} == {"3.00"}
    assert not tables.floor_tables(studies["ood"])


def test_every_far_set_has_a_table_and_the_first_the_published_numbers(tmp_path):
    request = request_of("ood", "reduced", seeds=[0], only=["ce"])
    (study,) = collect(stores.filled(tmp_path / "store", [request]))
    assert [group.ood for group in study.groups] == [
        "cifar100_partial (near)",
        "svhn_partial (far)",
        "dtd_32 (far)",
    ]
    heads = [table.columns for table in tables.result_tables(study, nowhere)]
    assert ["published" in columns for columns in heads] == [True, True, False]


@pytest.mark.slow
def test_rows_of_unequal_seeds_are_compared_over_those_that_they_share(tmp_path):
    wanted = [
        request_of("dml", "smoke", seeds=range(5), only=["mte1", "mte2"]),
        request_of("dml", "smoke", seeds=range(3), only=["dml", "ce"]),
    ]
    store = Store(tmp_path / "store")
    for request in wanted:
        stores.filled(store.path, [request])
    (study,) = collect(store)
    (table,) = tables.result_tables(study, nowhere)
    assert [row[-1].text for row in table.rows[1:5]] == ["3 of 3", "3 of 3", "5 of 5", "5 of 5"]
    assert [row[0].text for row in table.rows[1:5]] == ["Cross-entropy", "DML", "MTE-1", "MTE-2"]
    assert [row[1].best for row in table.rows[1:5]] == [False, False, False, True]
    assert "over seeds 0, 1, 2, 3, 4, as many of them as the last column says" in tables.caption(study)


def test_an_interval_over_images_says_so_beside_rows_of_several_seeds(tmp_path):
    store = Store(tmp_path / "store")
    for request in (
        request_of("dml", "smoke", seeds=range(3), only=["mte1"]),
        request_of("dml", "smoke", seeds=[0], only=["ce"]),
    ):
        stores.filled(store.path, [request])
    (table,) = tables.result_tables(*collect(store), nowhere)
    ce, mte = table.rows[1:3]
    assert ce[1].text.endswith(", over images)")
    assert "over images" not in mte[1].text


@pytest.mark.slow
def test_figures_of_fewer_settings_are_removed(tmp_path):
    store = stores.filled(tmp_path / "store", stores.requests(["cifar10"]))
    first, *_ = [path for path in write_report(store, html=False, markdown=True) if path.suffix == ".png"]
    old = first.with_name("cifar10.png")
    assert first.name == "cifar10-1.png"
    for path in (old, old.with_name("cifar10-9.svg"), old.with_name("cifar10-mine.png")):
        path.touch()
    write_report(store, html=False, markdown=True)
    assert not old.exists()
    assert not old.with_name("cifar10-9.svg").exists()
    assert old.with_name("cifar10-mine.png").exists()
    assert first.exists()


def test_variants_of_a_setting_stand_in_one_table(studies):
    rates = studies["auxiliary-rate"].groups
    assert [row.label for group in rates for row in group.rows] == [
        f"MTE-1, auxiliary lr {rate}" for rate in ("0.01", "0.02", "0.05", "0.1")
    ]
    shortest, _ = studies["short-schedules"].groups
    assert [row.label for row in shortest.rows] == [
        "Cross-entropy",
        "MTE-1",
        "MTE-1, auxiliary lr 0.05",
        "MTE-1, alpha grows over the first third",
    ]
    hypers = [run.cell.recipe.hyper.get("alpha_warmup") for row in shortest.rows for run in row.runs]
    assert hypers == [None] * 9 + [pytest.approx(1 / 3)] * 3
    assert len({row.hyper["alpha"] for row in shortest.rows[1:]}) == 1


def test_costs_are_counted_in_those_of_cross_entropy():
    small = Recipe(method="mte1", primary=Backbone("cnn", width=4), auxiliary=Backbone("cnn", width=4))
    expected = {"ce": (1, 1), "fl": (1, 1), "mte1": (2, 1), "mte2": (3, 1), "dml": (2, 1), "de3": (3, 3)}
    for method, ratios in expected.items():
        assert details.cost_ratios(replace(small, method=method)) == pytest.approx(ratios)


def test_the_choice_is_that_of_the_smallest_validation_nll(studies):
    study = studies["cifar10"]
    for choice in study.choices:
        best = min(choice.trials, key=lambda trial: trial.metrics["nll"])
        assert [trial for trial in choice.trials if trial.is_chosen] == [best]
        chosen = [row.hyper for row in study.groups[0].rows if row.line == choice.line]
        assert chosen in ([], [best.cell.recipe.hyper])
    shown = details.choice_table(study, nowhere)
    assert sum(row[-1].text == "chosen" for row in shown.rows if len(row) > 1) == len(study.choices)


def test_second_best_is_written_in_every_form():
    table = Table("", ("", "x"), ((Cell("a"), Cell("1", second=True)), (Cell("b"), Cell("2", best=True))))
    assert "| a | *1* |\n| b | **2** |" in as_markdown(table)
    assert r"a & \underline{1} \\" in as_latex(table)
    assert r"b & \textbf{2} \\" in as_latex(table)


# Files


@pytest.fixture(scope="module")
def page(store):
    (path,) = write_report(store)
    return path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_link_leads_somewhere(store, page):
    found = [html.unescape(link) for link in re.findall(r'href="([^"]*)"', page)]
    assert any(link.endswith("/cell.json") for link in found)
    names = set(re.findall(r' id="([^"]*)"', page))
    for link in set(found):
        target = link.removeprefix("#")
        assert target in names if link.startswith("#") else (store.path / unquote(link)).is_file()


def test_numbers_lead_to_their_runs_and_runs_to_their_records(studies):
    study = studies["cifar10"]
    shown = tables.result_tables(study, lambda cell: cell.id)[0]
    runs = {row[0].anchor: index for index, row in enumerate(details.run_tables(study, lambda cell: cell.id)[0].rows)}
    listed = details.run_tables(study, lambda cell: cell.id)[0].rows
    for row, entries in zip(study.groups[0].rows, shown.rows[1:], strict=False):
        assert [link.target for link in entries[-1].links] == [run.cell.id for run in row.runs]
        first = runs[entries[1].target.removeprefix("#")]
        assert [each[0].target for each in listed[first : first + 3]] == [run.cell.id for run in row.runs]
        assert [float(each[2].text) for each in listed[first : first + 3]] == pytest.approx(
            stores.values(row, Key.ACCURACY), abs=0.0051
        )


def test_page_loads_and_runs_nothing(page):
    assert "<script" not in page
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"base64,[^\"]*", "", page))
    (style,) = re.findall("<style>(.*?)</style>", page, flags=re.DOTALL)
    assert f"sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}" in html.unescape(page)
    for study in STUDIES.values():
        assert html.escape(study.title) in page
    assert "numbers mean nothing" in page


@pytest.mark.slow
def test_names_are_escaped(tmp_path):
    (wanted,) = stores.requests(["dml"])
    odd = replace(wanted, lines=tuple(replace(line, title="<b>|&_") for line in wanted.lines))
    store = stores.filled(tmp_path / "store", [odd])
    paths = write_report(store, markdown=True, latex=True)
    texts = {path.suffix: path.read_text() for path in paths if path.suffix in (".html", ".md", ".tex")}
    assert "<b>" not in texts[".html"]
    assert r"\<b\>\|\&\_" in texts[".md"]
    assert r"\textless{}b\textgreater{}\textbar{}\&\_" in texts[".tex"]


def disturbed(path, wanted):
    """The same records in another order, after losses, failures and starts that came to nothing."""
    store = Store(path)
    store.add(wanted)
    while ready := remaining(store, wanted).ready:
        for task in reversed(ready):
            with store.claim(task):
                pass
            with store.claim(task):
                store.fail(task, reason="no room", seconds=2.0)
            stores.commit(store, task)
    return store


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(tmp_path):
    wanted = stores.requests(["alpha", "dml"])
    written = []
    for name, make in (("plain", stores.filled), ("other", disturbed)):
        paths = write_report(make(tmp_path / name, wanted), markdown=True, latex=True)
        written.append({path.relative_to(tmp_path / name): path.read_bytes() for path in paths})
    assert written[0] == written[1]
    assert {path.name for path in written[0]} > {"report.html", "report.md", "report.tex", "alpha.png", "dml.svg"}


@pytest.mark.slow
def test_what_is_missing_is_shown_as_missing(tmp_path):
    wanted = stores.requests(["cifar10"])

    def late(task):
        recipe = task.cell.recipe
        return recipe.method == "de3" or (recipe.method == "mte1" and recipe.seed == 2) or recipe.method == "fl"

    store = stores.filled(tmp_path / "store", wanted, skip=late)
    for task in remaining(store, wanted).ready:
        if task.cell.recipe.method == "de3" and task.cell.recipe.seed == 0:
            for _ in range(MOST_FAILURES):
                with store.claim(task):
                    store.fail(task, reason="ValueError: <no> data", seconds=1.0)
    (study,) = collect(store)
    assert study.done < study.total
    table = tables.result_tables(study, nowhere)[0]
    shown = {row[0].text: (row[1].text, row[-1].text) for row in table.rows[1:7]}
    assert shown["Deep ensemble of 3"] == shown["Focal loss"] == (tables.MISSING, "0 of 3")
    assert shown["MTE-1"][1] == "2 of 3"
    assert "not run yet" in {row[-1].text for row in details.choice_table(study, nowhere).rows}
    assert [reason for _, reason in study.failures] == ["ValueError: <no> data"] * 2
    (path,) = write_report(store)
    assert "ValueError: &lt;no&gt; data" in path.read_text()


@pytest.mark.slow
def test_a_store_without_a_finished_run_has_a_report(tmp_path):
    store = Store(tmp_path / "store")
    store.add(stores.requests())
    document = sections.document_of(store, studies=(), address=nowhere)
    assert not any(section.drawings for section in document.sections)
    assert "0 of 3" in as_markdown_text(document)
    assert tables.MISSING in as_latex_text(document)
    assert len(write_report(store)) == 1


@pytest.mark.slow
def test_one_seed_has_the_interval_over_samples_and_no_mark(tmp_path):
    store = stores.filled(tmp_path / "store", stores.requests(["scatter"], seeds=(4,)))
    (study,) = collect(store)
    (table,) = tables.result_tables(study, nowhere)
    for row, found in zip([row for row in table.rows if len(row) > 1], 2 * study.groups[0].rows, strict=True):
        value, low, high = map(float, re.fullmatch(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", row[1].text).groups())
        assert (value - low, high - value) == pytest.approx((1, 1), abs=0.011), found.label
    assert "Seed 4 alone, so with the 95% interval over test images." in tables.caption(study)
    assert not any(entry.best or entry.second for row in table.rows for entry in row)
    assert write_report(store)


@pytest.mark.slow
def test_undefined_values_are_said_to_be(tmp_path):
    store = stores.filled(tmp_path / "store", stores.requests(["dml"]))
    (study,) = collect(store)
    for row, seeds in zip(study.groups[0].rows, (1, 3, 0, 0), strict=True):
        for run in row.runs[:seeds]:
            found = stores.undefined(stores.record(run.cell.recipe), Key.ACCURACY)
            write_text(store.record_file(run.cell.id), found.to_json())
    (study,) = collect(store)
    texts = [row[1].text for row in tables.result_tables(study, nowhere)[0].rows[1:5]]
    assert texts[0].endswith(", 2 of 3 defined")
    assert texts[1] == "undefined"
    assert write_report(store)


@pytest.mark.slow
def test_a_report_of_some_studies_and_errors(tmp_path, store):
    document = sections.document_of(store, studies=["dml", "cifar10"], address=nowhere)
    assert [section.name for section in document.sections] == ["cifar10", "dml"]
    with pytest.raises(ValueError, match="has no study nonsense; it has cifar100"):
        write_report(store, studies=["nonsense"])
    broken = stores.filled(tmp_path / "store", stores.requests(["reliability"]))
    (study,) = collect(broken)
    broken.record_file(study.groups[0].rows[0].runs[0].cell.id).write_text("{}")
    with pytest.raises(ValueError, match=r"cell\.json belongs to a finished cell, and cannot be read: not a cell"):
        write_report(broken)


@pytest.mark.slow
def test_another_folder_links_back_to_the_runs(tmp_path, store):
    (path,) = write_report(store, studies=["dml"], out=tmp_path / "elsewhere")
    links = re.findall(r'href="([^"#][^"]*)"', path.read_text())
    assert links
    assert all((path.parent / unquote(html.unescape(link))).is_file() for link in links)


def test_records_of_tests_are_read_back(store, studies):
    cell = studies["dml"].groups[0].rows[0].runs[0].cell
    assert CellRecord.from_json(store.record_file(cell.id).read_text()) == stores.record(cell.recipe)
