"""`counterpoise-study` as a person uses it: from nothing to a page, again, in shares, and with a method of one's own."""

import shutil
import sys
from pathlib import Path

import pytest

from counterpoise.recipes.methods import METHODS
from counterpoise_study import cli, custom_methods
from counterpoise_study.store import Store
from counterpoise_study.studies import STUDIES
from example_scripts import EXAMPLES


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["counterpoise-study", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


@pytest.fixture
def own_method(tmp_path, monkeypatch):
    """The example of the documentation as a file; gone from the table after the test."""
    monkeypatch.setattr(custom_methods, "_LOADED", {})
    monkeypatch.setattr(custom_methods, "METHODS", METHODS)
    path = tmp_path / "brier.py"
    shutil.copy(EXAMPLES / "brier.py", path)
    yield path
    METHODS.pop("brier", None)


def test_from_nothing_to_the_page_with_a_method_of_ones_own(tmp_path, real_data, own_method, monkeypatch, capsys):
    root = real_data("cifar10")
    store = tmp_path / "store"
    options = ["--scale", "smoke", "--seeds", 2, "--store", store, "--data-root", root]
    code, out, err = run(
        monkeypatch, capsys, "run", "reliability", *options, "--only", "ce", "brier", "--methods", own_method
    )
    assert code == 0, err
    assert "brier weight=" in err
    page = store / "report.html"
    assert str(page) in out
    text = page.read_text()
    assert "CE + Brier" in text
    assert "smoke" in text
    assert "<script" not in text
    cells = {line.method for request in Store(store).contents.requests for line in request.lines}
    assert cells == {"ce", "brier"}
    # Again: nothing is left to do, and the page is the same.
    lines = (store / "manifest.jsonl").read_text()
    code, out, err = run(monkeypatch, capsys, "run", "reliability", *options, "--only", "ce")
    assert code == 0, err
    assert (store / "manifest.jsonl").read_text() == lines
    assert page.read_text() == text
    # From the records alone, in every form.
    code, out, _ = run(monkeypatch, capsys, "report", store, "--out", tmp_path / "kept", "--markdown", "--latex")
    assert code == 0
    assert {Path(line).name for line in out.splitlines()} >= {"report.html", "report.md", "report.tex"}
    code, out, _ = run(monkeypatch, capsys, "status", store)
    assert code == 0
    assert "reliability" in out


def test_a_method_that_fails_is_given_up_while_others_go_on(tmp_path, real_data, own_method, monkeypatch, capsys):
    root = real_data("cifar10")
    own_method.write_text(own_method.read_text().replace("one_hot(labels, logits.shape[-1])", "one_hot(labels, 'ten')"))
    store = tmp_path / "store"
    options = ["--scale", "smoke", "--seeds", 1, "--store", store, "--data-root", root, "--methods", own_method]
    code, out, err = run(monkeypatch, capsys, "run", "dml", *options, "--only", "ce", "brier")
    assert code == 1
    assert err.splitlines()[-1] == (
        "counterpoise-study: 2 of the cells were given up, for the reasons above; --again tries them again"
    )
    assert "brier weight=0.5 seed 0: TypeError" in out
    assert "given up" in out
    page = (store / "report.html").read_text()
    assert "TypeError" in page
    done = [key for key, state in _states(store).items() if state.committed]
    assert len(done) == 1


def _states(folder):
    store = Store(folder)
    store.progress()
    return store.manifest.tasks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "cifar11", "--scale", "smoke"], "there is no study cifar11; there are cifar100"),
        (["run", "--scale", "smoke"], "name a study, or `all`"),
        (["run", "dml", "--scale", "smoke", "--only", "mte3"], "--only names mte3; the methods here are ce, dml"),
        (["run", "dml", "--scale", "smoke", "--seeds", "0"], "--seeds must be at least 1"),
        (
            ["plan", "cifar10", "--scale", "smoke", "--settings", "cifar10-resnet34", "cifar10-resnet5O"],
            "--settings names cifar10-resnet5O; the settings here are cifar10-resnet34",
        ),
        (
            ["plan", "short-schedules", "--scale", "smoke", "--only", "ce", "--settings", "short-2-faster"],
            "short-schedules: the settings short-2-faster have no row for ce",
        ),
        (
            ["plan", "cifar10", "dml", "--scale", "smoke", "--only", "ls", "--settings", "dml-x"],
            "--settings names dml-x",
        ),
        (["run", "dml", "--scale", "smoke", "--shard", "4/4"], "'4/4' is no shard"),
        (["run", "dml", "--scale", "smoke", "--ray", "--shard", "0/4"], "--ray takes at most one address, and no"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(tmp_path, arguments, message, monkeypatch, capsys):
    require_refused(tmp_path, arguments, message, monkeypatch, capsys, expected=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "pacs", "--scale", "smoke", "--data-root", "nowhere"], "nowhere"),
        (["run", "dml", "--scale", "smoke", "--methods", "nothing.py"], "there is no file nothing.py"),
        (["status", "nowhere"], "nowhere is no store"),
        (["plan", "dml", "--scale", "smoke", "--device-flops", "1e9", "--store", "nowhere"], "nowhere is no store"),
        (["report", "nowhere"], "nowhere is no store"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(tmp_path, arguments, message, monkeypatch, capsys):
    require_refused(tmp_path, arguments, message, monkeypatch, capsys, expected=1)


def require_refused(tmp_path, arguments, message, monkeypatch, capsys, *, expected):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(monkeypatch, capsys, *arguments)
    assert code == expected
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_plan_before_anything_runs(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "plan", "cifar10", "alpha", "--scale", "paper", "--device-flops", "3e13")
    assert code == 0
    (study,) = (line for line in out.splitlines() if line.startswith("cifar10"))
    assert study.split()[1:3] == ["138", "80"]  # 2 primaries x (40 candidates, 13 x 3 seeds less 10 that coincide)
    (everything,) = (line for line in out.splitlines() if line.startswith("all"))
    assert int(everything.split()[1]) == 138 + 2 * 5 * 3  # alpha is swept on CIFAR-100


def test_the_studies_are_listed(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "studies")
    assert code == 0
    assert len(out.splitlines()) == len(STUDIES)


def test_an_interruption_is_one_though_nobody_reads_of_it(monkeypatch, tmp_path, real_data):
    """With its reader gone, what is said of an interruption fails; the exit code is still that of one."""

    class Closed:
        def write(self, _text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setenv("COUNTERPOISE_DATA", str(real_data("cifar10")))
    monkeypatch.setattr("counterpoise_study.grid.run_sequentially", interrupted)
    monkeypatch.setattr("sys.stderr", Closed())
    monkeypatch.setattr(
        "sys.argv",
        ["counterpoise-study", "run", "reliability", "--scale", "smoke", "--store", str(tmp_path / "store")],
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
