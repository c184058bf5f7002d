"""Every block of the README and of the documentation runs, page by page, and relative links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from counterpoise import cli
from counterpoise_study import cli as study_cli
from counterpoise_study.studies import studies_at
from tools import architecture, documentation
from tools.markdown import section_of
from tools.transcript import blocks_of, follow

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "study/README.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
]
PROGRAMS = {"counterpoise": cli.parse, "counterpoise-study": study_cli.parse}
NEED_DATA = {"docs/tutorial.md": "cifar10"}
NEED_NETWORK = {"docs/photos.md": "weights are downloaded"}
SMALLER = {
    "docs/benchmark.md": {"--seeds 2": "--seeds 1"},
    "docs/photos.md": {
        "train photos/ --recipe finetune": "train photos/ --recipe finetune --epochs 2 --data.size 8 --data.workers 0 --optimizer.layer-decay 1"
        + "".join(
            f" --{role}.name cnn --{role}.width 8 --{role}.small-images --{role}.weights random"
            for role in ("primary", "auxiliary")
        )
    },
    "docs/quickstart.md": {"train digits --against ce": "train digits --against ce --epochs 5"},
    "docs/runs.md": {"--epochs 20": "--epochs 2"},
    "docs/tutorial.md": {
        "--epochs 2 --data.limit 1000 --data.validation 500": "--epochs 1 --data.limit 200 --data.validation 100",
        "--evaluation.images 1000": "--evaluation.images 200",
        "--evaluation.corrupted-images 100": "--evaluation.corrupted-images 20",
    },
}
"""Passages that take long, and what is run in their place; `.ci/long` runs these pages to the letter."""


# The README's blocks are run in an environment of their own, from the built wheel: `.ci/run`.
@pytest.mark.parametrize("page", PAGES[1:])
def test_blocks_run(page, tmp_path, monkeypatch, real_data, programs):
    if page in NEED_DATA:
        real_data(NEED_DATA[page])
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    follow(ROOT / page, programs=programs, instead=SMALLER.get(page))


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in SMALLER if page not in NEED_NETWORK])
def test_blocks_run_to_the_letter(page, tmp_path, monkeypatch, real_data):
    """With the installed programs, each from nothing."""
    if page in NEED_DATA:
        real_data(NEED_DATA[page])
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    follow(ROOT / page)


@pytest.mark.slow
@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_commands_that_are_not_run_are_understood(page):
    for block in blocks_of((ROOT / page).read_text()):
        if not block.reason or block.language != "bash":
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            words = shlex.split(line.partition(" > ")[0], comments=True)
            for program, parse in PROGRAMS.items():
                if program in words:
                    # What it cannot parse ends the process with 2.
                    parse(words[words.index(program) + 1 :])


def test_a_failing_block_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```bash\ntrue\n```\n\n```bash\necho before; exit 3\n```\n")
    with pytest.raises(RuntimeError, match=r"page.md, line 8: exit code 3"):
        follow(page)
    page.write_text("# Title\n\n```python\nx = 1\nx / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as raised:
        follow(page)
    assert raised.traceback[-1].lineno + 1 == 5


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page):
    source = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", source.read_text()):
        assert (source.parent / target).exists(), f"{page} links to {target}"


def test_an_output_that_is_not_shown_is_found_and_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    text = "# Title\n\n```python\nprint('ECE', 1 / 3)\n```\n\n<!-- output -->\n\n```text\nECE 0.4\n```\n\nThe end.\n"
    page.write_text(text)
    with pytest.raises(RuntimeError, match=r"page.md, line 4: prints what the page does not show"):
        follow(page)
    follow(page, write=True)
    assert page.read_text() == text.replace("0.4", str(1 / 3))
    follow(page)


@pytest.mark.parametrize("name", documentation.SECTIONS)
def test_figures_in_the_documentation_are_the_measured_ones(name):
    page, section = documentation.SECTIONS[name]
    result = documentation.result(name)
    text = section_of((ROOT / "docs" / page).read_text(), name)
    assert text == section(result)
    # What a benchmark did not reach is said beside its figures, or is no figure of the documentation.
    whole = (ROOT / "docs" / page).read_text()
    for short in result["failed"]:
        quantity = short.rpartition(": ")[2]
        assert re.search(rf"- {quantity}: .* wanted", whole), f"{page} does not say that {short} was not reached"


@pytest.mark.slow
def test_the_rooms_are_described_with_their_imports():
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", text, flags=re.MULTILINE)
    found = architecture.imports()
    assert [room for room, _ in rows] == architecture.rooms()
    for room, imported in rows:
        assert set(re.findall(r"`(\w+)`", imported)) == found[room], room


def test_the_modules_of_the_journeys_are_there():
    text = (ROOT / "docs" / "architecture.md").read_text()
    library, study = text.split("## A cell through the study")
    for part, folder in ((library, "src/counterpoise"), (study, "study/src/counterpoise_study")):
        for module in re.findall(r"`([\w/]+\.py)`", part):
            places = (ROOT, ROOT / folder, ROOT / "src" / "counterpoise")
            assert any((place / module).is_file() for place in places), module


def test_no_file_is_longer_than_400_lines():
    for folder in ("src", "study", "tests", "benchmarks", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            assert len(path.read_text().splitlines()) <= 400, path


@pytest.mark.slow
def test_the_plan_in_the_documentation_is_that_of_the_studies():
    page = (ROOT / "docs" / "benchmark.md").read_text()
    plan = documentation.paper_plan()
    assert section_of(page, "plan").strip() == plan
    assert max(map(len, plan.splitlines())) <= 100
    studies = studies_at("paper")
    assert [line.split()[0] for line in plan.splitlines()[4 : 4 + len(studies)]] == studies
    assert f"--device-flops {documentation.PLANNED_FLOPS:g}".replace("+", "") in page
