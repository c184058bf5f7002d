"""The study that the repository keeps: its tables, and what the documentation says of it, follow from its records."""

from pathlib import Path

import pytest

from counterpoise.training.folder import Conditions, Environment
from counterpoise_study.cells import Cell, tasks
from counterpoise_study.collected import collect
from counterpoise_study.record import CellRecord
from counterpoise_study.reduced import PARTS
from counterpoise_study.report import FORMATS, as_latex_text, as_markdown_text
from counterpoise_study.requests import merged
from counterpoise_study.sections import document_of
from counterpoise_study.store import Store
from counterpoise_study.studies import request_of
from counterpoise_study.summary import Summary
from tools import finetuning_tables
from tools.documentation import STUDY_SECTIONS
from tools.markdown import section_of
from tools.study_claims import compared, verdict
from tools.study_tables import CLAIMS, Study, training_kernels

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "study" / "results"
FINETUNING = ROOT / "study" / "results-finetune"
both = pytest.mark.parametrize("kept", [RESULTS, FINETUNING], ids=lambda path: path.name)


@both
def test_the_tables_follow_from_the_records_byte_for_byte(kept):
    """As `counterpoise-study report study/results --markdown --latex` writes them; figures are only counted here."""
    document = document_of(Store(kept), studies=(), address=lambda _: None)
    for name, text in (("report.md", as_markdown_text(document)), ("report.tex", as_latex_text(document))):
        assert text.encode() == (kept / name).read_bytes(), f"{name} is not made of the records"
    drawn = {
        f"{drawing.name}.{kind}" for section in document.sections for drawing in section.drawings for kind in FORMATS
    }
    assert drawn == {path.name for path in kept.glob("figures/*")}


def test_the_records_are_those_of_their_folders():
    store = Store(RESULTS)
    progress = store.progress()
    complete = {cell for cell, stage in progress.metrics if stage == "complete"}
    files = {path.parent.name: path for path in RESULTS.glob("cells/*/cell.json")}
    assert files.keys() == complete
    wanted = {task.cell.id for part in PARTS for task in part.tasks(store)}
    for cell, path in files.items():
        record = CellRecord.from_json(path.read_text())
        assert cell in wanted
        assert record.recipe.engine.threads == 1
        assert record.recipe.initial_weights == "by-count"
        assert Cell(record.recipe, record.source).id == cell


def test_the_records_of_fine_tuning_are_those_that_the_study_asks_for():
    store = Store(FINETUNING)
    progress, asked = store.progress(), request_of("finetune", "finetune", seeds=range(3))
    assert merged(store.contents.requests[0], asked) == store.contents.requests[0]
    wanted = {task.key for task in tasks([asked], progress)}
    assert progress.metrics.keys() <= wanted
    files = {path.parent.name: path for path in FINETUNING.glob("cells/*/cell.json")}
    assert files.keys() == {cell for cell, stage in progress.metrics if stage == "complete"}
    for cell, path in files.items():
        record = CellRecord.from_json(path.read_text())
        assert Cell(record.recipe, record.source).id == cell
        assert record.in_domain is not None


@both
def test_nothing_but_records_is_kept(kept):
    files = {path.name for path in kept.rglob("*") if path.is_file()}
    files -= {path.name for path in kept.glob("figures/*")} | {"manifest.lock"}
    assert files <= {
        "store.json", "manifest.jsonl", "cell.json", "environment.json", "epochs.csv", "report.html", "report.md",
        "report.tex", "README.md", "SHA256SUMS",
    }  # fmt: skip


@pytest.fixture(scope="module")
def study():
    return Study(Store(RESULTS))


@pytest.fixture(scope="module")
def finetuned():
    (gathered,) = collect(Store(FINETUNING))
    return gathered


@pytest.mark.parametrize("name", STUDY_SECTIONS)
def test_the_documentation_shows_what_is_kept(name, study):
    page, section = STUDY_SECTIONS[name]
    assert section_of((ROOT / page).read_text(), name) == section(study)


@pytest.mark.parametrize("name", finetuning_tables.SECTIONS)
def test_the_documentation_shows_what_is_kept_of_fine_tuning(name, finetuned):
    page, section = finetuning_tables.SECTIONS[name]
    assert section_of((ROOT / page).read_text(), name) == section(finetuned)


def test_every_claim_is_about_methods_and_measures_that_its_study_has():
    from counterpoise_study.studies import STUDIES

    for claims in CLAIMS.values():
        for claim in claims:
            study = STUDIES[claim.study]
            assert {claim.first, claim.second} <= set(study.methods)
            assert claim.key in study.metrics


def conditions(kernels: str, step: int) -> Conditions:
    return Conditions(
        config_digest="", versions={}, revision="", platform="", device="cpu", threads=1, world_size=1, command="",
        kernels=kernels, step=step,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sessions", "expected"),
    [
        ([("native", 0)], {"native"}),
        ([("native", 0), ("float32", 0)], {"float32"}),  # trained anew
        ([("native", 0), ("float32", 500)], {"native", "float32"}),
        ([("native", 0), ("float32", 0), ("float32", 500)], {"float32"}),
    ],
)
def test_kernels_are_those_of_the_steps_that_count(sessions, expected):
    started, *resumed = [conditions(kernels, step) for kernels, step in sessions]
    assert training_kernels(Environment(started, resumed)) == expected


def test_methods_with_different_kernels_are_not_ranked():
    study = Study(Store(RESULTS))
    native = {"ce", "fl", "de3", "mte1", "mte2"}
    for claims in CLAIMS.values():
        for found in compared(study, claims):
            is_across = len({found.claim.first, found.claim.second} & native) == 1
            for scaled in (False, True):
                assert (found.verdict(scaled=scaled) == "not comparable") == is_across


@pytest.mark.parametrize(
    ("low", "high", "higher_is_better", "said"),
    [
        (0.1, 0.3, True, "better"),
        (0.1, 0.3, False, "**worse**"),
        (-0.3, -0.1, True, "**worse**"),
        (-0.3, -0.1, False, "better"),
        (-0.1, 0.1, True, "inconclusive"),
    ],
)
def test_a_verdict_is_that_of_the_interval(low, high, higher_is_better, said):
    found = Summary(3, (low + high) / 2, 0.1, low, high)
    assert verdict(found, higher_is_better=higher_is_better) == said
    assert verdict(Summary(1, 1.0), higher_is_better=higher_is_better) == "one seed"
