"""What needs no torch is answered without it, and so is every mistake that arguments, extras and paths tell."""

import json
import subprocess
import sys
from importlib import import_module

import pytest

import counterpoise
from counterpoise import cli
from counterpoise.recipes.config import Recipe

WITHOUT_TORCH = """
import contextlib, io, json, sys
from counterpoise import cli

found = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["counterpoise", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    found.append([code, out.getvalue(), err.getvalue(), "torch" in sys.modules])
print(json.dumps(found))
"""

ANSWERS = {
    ("--version",): counterpoise.__version__,
    ("--help",): "evaluate",
    ("methods",): "MTE-1",
    ("recipes",): "digits",
    **{(command, "--help"): "usage" for command in cli.COMMANDS},
    ("train", "digits", "--help"): "--epochs",
}

# Exit code 2 where the arguments alone are wrong, 1 where a file or the machine would have to be another.
MISTAKES = {
    (): (2, "name a command"),
    ("evalute",): (2, "did you mean evaluate?"),
    ("--nonsense",): (2, "there is no option '--nonsense'"),
    ("bench",): (2, "counterpoise-study"),
    ("evaluate", "a.csv", "--nonsense"): (2, "nonsense"),
    ("evaluate", "a.csv", "--bins", "many"): (2, "many"),
    ("evaluate",): (2, "at least one file"),
    ("evaluate", "missing.parquet"): (1, "missing.parquet: there is no such file"),
    ("evaluate", "notes.txt"): (1, "told by the suffix"),
    ("evaluate", "no*.parquet"): (1, "no file of predictions"),
    ("evaluate", "empty"): (1, "this folder holds no file of predictions"),
    ("evaluate", "a.csv", "--score", "magic"): (2, "magic"),
    ("evaluate", "a.csv", "--level", "2"): (2, "level must lie between 0 and 1"),
    ("evaluate", "a.csv", "--html", "no/page.html"): (1, "there is no folder no"),
    ("evaluate", "a.csv", "--figures", "notes.txt"): (1, "is a file, name a folder"),
    ("train", "nonsense"): (2, "there is no recipe 'nonsense'"),
    ("train", "digits", "--nonsense"): (2, "nonsense"),
    ("train", "digits", "--method", "nonsense"): (2, "there is no method 'nonsense'"),
    ("train", "digits", "--against", "nonsense"): (2, "there is no method 'nonsense'"),
    ("train", "digits", "--hyper", "beta", "1"): (2, "no hyper-parameter beta"),
    ("train", "digits", "--epochs", "0"): (2, "epochs must be positive"),
    ("train", "digits", "--data.name", "nowhere"): (1, "not a file or folder that exists"),
    ("train", "digits", "--evaluation.ood", "nowhere"): (1, "not a file or folder that exists"),
    ("train", "digits", "--evaluation.corruptions", "rain"): (2, "there is no corruption rain"),
    ("train", "digits", "--out", "notes.txt"): (1, "is a file, name a folder"),
    ("train", "digits", "--out", "run"): (1, "holds a run already"),
    ("resume", "empty"): (1, "is no run"),
    ("tune", "digits", "--search", "nothing=1:2"): (2, "no field 'nothing'"),
    ("tune", "digits", "--out", "notes.txt"): (1, "is a file, name a folder"),
    ("predict", "empty", "--data", "digits"): (1, "is no run"),
    ("predict", "run", "--data", "digits"): (1, "is not there yet"),
    ("predict", "run", "--data", "digits", "--out", "x.csv"): (2, "give it the ending .parquet"),
    ("export", "empty", "--to", "onnx"): (1, "is no run"),
    ("export", "run", "--to", "onnx", "--out", "empty"): (1, "is a folder"),
    ("export", "run", "--to", "pt2", "--temperature", "nothing.json"): (1, "nor a number, nor a file"),
    ("info", "--nonsense"): (2, "nonsense"),
}


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    (folder / "notes.txt").write_text("hello")
    (folder / "a.csv").write_text("label,p0,p1\n0,0.6,0.4\n")
    (folder / "empty").mkdir()
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text(Recipe().to_json())
    lines = [*ANSWERS, *MISTAKES]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=folder, input=json.dumps(lines), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(lines, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("arguments", ANSWERS)
def test_answers_come_without_torch(answered, arguments):
    code, out, err, torch_loaded = answered[arguments]
    assert (code, err, torch_loaded) == (0, "", False)
    assert ANSWERS[arguments] in out


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_are_told_without_torch(answered, arguments):
    code, out, err, torch_loaded = answered[arguments]
    expected, message = MISTAKES[arguments]
    assert message in " ".join(err.replace("│", "").split())
    assert (code, out, torch_loaded) == (expected, "", False)


def test_a_missing_extra_is_told_without_torch(tmp_path):
    code = (
        "import sys\n"
        "for name in ('lightning', 'optuna'): sys.modules[name] = None\n"
        "sys.argv = ['counterpoise', 'train', 'digits']\n"
        "from counterpoise import cli\n"
        "try: cli.main()\n"
        "finally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "training needs lightning: pip install 'counterpoise[train]'" in done.stderr
    assert done.stdout == "False\n"


def test_every_command_is_listed_in_a_line_that_fits():
    for name, summary in cli.COMMANDS.items():
        assert len(summary) <= 66
        assert hasattr(import_module(f"counterpoise.cli.{name}"), name.capitalize())


@pytest.mark.parametrize(
    "package", ["counterpoise", "counterpoise.data", "counterpoise.models", "counterpoise.training"]
)
def test_lazy_packages_have_all_that_they_list(package):
    module = import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        module.nonsense  # noqa: B018


WITHOUT_REPORT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jinja2", "matplotlib", "pyarrow", "sklearn", "pandas"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import counterpoise
from counterpoise.metrics import Scores

values, labels = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]] * 40, [0, 1, 1] * 40
scores = counterpoise.evaluate(probabilities=values, labels=labels)
both = counterpoise.compare({"a": {"probabilities": values}, "b": {"logits": values}}, labels=labels)
state = counterpoise.metrics.ScoreState(classes=2)
state.update(probabilities=values, labels=labels)
assert state.compute()["ece"] == scores["ece"]
assert Scores.from_json(scores.to_json()) == scores
assert "Accuracy" in str(scores) and "b" in str(both)
for needing in (scores.plot, lambda: scores.report("page.html")):
    try:
        needing()
    except ImportError as error:
        assert "counterpoise[report]" in str(error), error
    else:
        raise AssertionError(needing)
"""


def test_metrics_and_evaluate_need_none_of_the_extras(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_REPORT], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_a_csv_file_is_evaluated_without_pandas(tmp_path):
    path = tmp_path / "predictions.csv"
    path.write_text("prob_0,prob_1,label\n" + "0.75,0.25,0\n0.5,0.5,1\n" * 20)
    code = (
        f"import sys; sys.argv = ['counterpoise', 'evaluate', {str(path)!r}]\n"
        "from counterpoise import cli\n"
        "try: cli.main()\n"
        "finally: assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
