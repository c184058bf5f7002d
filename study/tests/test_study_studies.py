"""The studies at their three scales, and methods of the user's own."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from counterpoise.recipes.methods import METHODS
from counterpoise_study import custom_methods
from counterpoise_study.cells import Progress, results, tasks
from counterpoise_study.custom_methods import load_methods
from counterpoise_study.requests import Request, candidates_of, merged
from counterpoise_study.scales import SCALES
from counterpoise_study.studies import STUDIES, request_of, studies_at

ISSUE = [
    "cifar100", "cifar10", "tiny-imagenet", "deep-ensemble", "misclassification", "ood", "auxiliary-backbone", "pacs",
    "alpha", "corruptions", "dml", "scatter", "reliability",
]  # fmt: skip
OWN = ["auxiliary-rate", "short-schedules", "finetune", "cost", "cost-large"]
GRID = {
    "ce": 1, "ls": 2, "er": 3, "dca": 4, "mmce": 4, "fl": 3, "flsd53": 1, "fl-mdca": 3, "fl-dtdp": 6, "de3": 1,
    "dml": 5, "mte1": 5, "mte2": 5, "pskd": 4, "mte-lite": 5}  # fmt: skip
METHOD_FILE = """
from counterpoise.functional.losses import cross_entropy
from counterpoise.objectives import SupervisedObjective
from counterpoise.recipes import Method

def build(models, *, factor):
    return SupervisedObjective(models[0], lambda logits, labels: factor * cross_entropy(logits, labels))

METHODS = {"louder": Method("Louder", 1, build, {"factor": (1.0, 2.0)}, "ours")}
"""


@pytest.fixture
def own_method(tmp_path, monkeypatch):
    """A file with a method, which is gone from the table after the test."""
    monkeypatch.setattr(custom_methods, "_LOADED", {})
    path = tmp_path / "louder.py"
    path.write_text(METHOD_FILE)
    yield path
    METHODS.pop("louder", None)


def test_every_table_and_figure_is_a_study():
    assert list(STUDIES) == ISSUE + OWN


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_every_setting_can_be_trained(scale):
    for study in studies_at(scale):
        request = request_of(study, scale, seeds=[0, 1])
        assert len({setting.name for setting in request.settings}) == len(request.settings)
        for task in tasks([request], Progress({})):
            assert task.cell.recipe.choice.keys() >= task.cell.recipe.hyper.keys()  # a recipe checks itself
        for setting in request.settings:
            assert not setting.tuned_in or request.setting(setting.tuned_in).tuned_in == ""
            assert {setting.near, *setting.far} - {""} <= set(setting.recipe.evaluation.ood)


@pytest.mark.parametrize("scale", SCALES)
def test_a_name_stands_for_one_setting(scale):
    """Settings of the same name in two studies are the same, so that their cells are."""
    found = {}
    for study in studies_at(scale):
        for setting in request_of(study, scale, seeds=[0]).settings:
            assert found.setdefault(setting.name, setting) == setting


def test_the_grids_are_those_of_the_method_page():
    assert {method: len(candidates_of(method, most=None)) for method in METHODS} == GRID
    assert all(candidates_of(method, most=None)[0].keys() == METHODS[method].grid.keys() for method in METHODS)


def test_the_paper_scale_is_the_published_protocol():
    request = request_of("cifar100", "paper", seeds=range(3))
    recipe = request.setting("cifar100-resnet34").recipe
    assert (recipe.epochs, recipe.batch, recipe.data.validation, recipe.data.limit) == (350, 100, 5000, None)
    assert (recipe.primary.name, recipe.primary.width, recipe.auxiliary.name) == ("resnet34", 64, "resnet18")
    pacs = request_of("pacs", "paper", seeds=[0])
    assert [setting.recipe.data.domain for setting in pacs.shown] == ["art_painting", "cartoon", "photo", "sketch"]
    assert {setting.recipe.batch for setting in pacs.shown} == {20}


def test_studies_share_their_cells():
    """All that figures and detection tables need is trained for the tables of the data sets anyway."""
    base = {task.cell.id for task in tasks([request_of("cifar100", "paper", seeds=range(3))], Progress({}))}
    for study in ("dml", "scatter", "reliability", "corruptions"):
        found = {task.cell.id for task in tasks([request_of(study, "paper", seeds=range(3))], Progress({}))}
        assert found <= base


def test_a_request_grows_by_methods_and_seeds():
    first = request_of("scatter", "smoke", seeds=[0], only=["ce"])
    second = request_of("scatter", "smoke", seeds=[1], only=["mte1"])
    both = merged(first, second)
    assert both.seeds == [0, 1]
    assert [(line.method, line.seeds) for line in both.lines] == [("ce", (0,)), ("mte1", (1,))]
    assert merged(second, first).lines == both.lines  # in the order of the methods, whichever was asked for first
    more = merged(both, request_of("scatter", "smoke", seeds=[2], only=["ce"]))
    assert [line.seeds for line in more.lines] == [(0, 2), (1,)]
    with pytest.raises(ValueError, match="scatter was asked for with hyper-parameters chosen by nll, and now by ece"):
        merged(first, replace(second, rule="ece"))
    (setting,) = second.settings
    renamed = replace(second, settings=(replace(setting, title="another title"),))
    assert merged(first, renamed).settings == renamed.settings
    stated, left_out = (
        replace(setting, recipe=replace(setting.recipe, optimizer=replace(setting.recipe.optimizer, auxiliary_lr=rate)))
        for rate in (0.01, None)
    )
    assert merged(replace(first, settings=(stated,)), replace(second, settings=(left_out,))).settings == (stated,)
    other = replace(second, settings=(replace(setting, recipe=replace(setting.recipe, epochs=9)),))
    with pytest.raises(ValueError, match=f"scatter, {setting.name}: the store was begun with other options"):
        merged(first, other)


def test_a_request_survives_its_file():
    from counterpoise._documents import from_document, to_document

    for scale in SCALES:
        request = request_of(studies_at(scale)[-1], scale, seeds=[0, 1])
        text = to_document(request, schema="counterpoise.request", version=1)
        assert from_document(Request, text, schema="counterpoise.request", version=1) == request


def test_a_swept_study_shows_every_candidate():
    found = list(results(request_of("alpha", "paper", seeds=[0]), Progress({})))
    assert Counter(result.line.method for result in found) == {"mte1": 5, "mte2": 5}
    assert [result.hyper["alpha"] for result in found[:5]] == [0.4, 0.6, 0.8, 1.0, 1.2]


def test_a_method_of_ones_own_joins_a_study(own_method):
    (digest,) = load_methods(own_method).values()
    assert load_methods(own_method) == {"louder": digest}  # again, as every worker does
    request = request_of("cifar10", "smoke", seeds=[0], own={"louder": digest})
    (line, _) = (line for line in request.lines if line.method == "louder")
    assert (line.title, line.source, len(line.candidates)) == ("Louder", digest, 2)
    plain = request_of("cifar10", "smoke", seeds=[0], only=["louder"], own={"louder": "another file"})
    cells = [{task.cell.id for task in tasks([each], Progress({}))} for each in (request, plain)]
    assert not cells[0] & cells[1]  # another file is another method


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("METHODS = {}", "has no METHODS"),
        ("METHODS = {'louder': 3}", "has no METHODS"),
        ("1 / 0", "cannot be run: ZeroDivisionError"),
        (METHOD_FILE.replace('"louder"', '"ce"'), "defines the method 'ce', which there is already"),
    ],
)
def test_a_file_without_methods_is_refused(own_method, text, message):
    own_method.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_methods(own_method)


def test_a_changed_file_is_not_the_same_method(own_method):
    load_methods(own_method)
    own_method.write_text(METHOD_FILE + "\n# changed")
    with pytest.raises(ValueError, match="'louder', which there is already"):
        load_methods(own_method)


def test_the_command_line_does_not_load_the_engine():
    """Help and listings come at once: nothing of the benchmark that the parser needs trains or draws."""
    code = "import sys, counterpoise.cli; print([m for m in ('lightning', 'matplotlib', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
