"""The command line as a person uses it: tables that fit, one-line errors, documented exit codes."""

import csv
import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from counterpoise import __version__, cli
from counterpoise.cli.progress import ProgressLine
from counterpoise.data import SETS
from counterpoise.functional.confidence import LOGIT_SCORES
from counterpoise.metrics.comparison import Evaluation
from counterpoise.predictions import Header, Predictions, read_predictions, write_predictions
from counterpoise.recipes.config import Recipe

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models on the same samples, the second much overconfident, with predictions for foreign samples."""
    target = tmp_path_factory.mktemp("predictions")
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(800, 3, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator).squeeze(-1)
    foreign = torch.randn(200, 3, generator=generator)
    for name, factor in (("honest", 1.0), ("loud", 3.0)):
        header = Header(class_names=("cat", "dog", "=cmd"), model="net", method=name)
        table = Predictions.of(logits=factor * logits, labels=labels, severity=np.arange(800) % 2, header=header)
        write_predictions(target / f"{name}.parquet", table)
        write_predictions(target / f"{name}_ood.parquet", Predictions.of(logits=factor * foreign, header=header))
    return target


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["counterpoise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


def test_a_table_for_one_model(folder, monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys, "evaluate", folder / "loud.parquet", "--ood", folder / "loud_ood.parquet")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    assert "overconfident by" in out
    assert "noise floor" in out
    assert "In-distribution from loud_ood" in out
    assert "Temperature scaling (T = " in out
    assert "400 corrupted samples" in err


@pytest.mark.slow
def test_a_comparison_marks_what_is_beyond_chance(folder, monkeypatch, capsys):
    models = [folder / "honest.parquet", folder / "loud.parquet"]
    foreign = [folder / "honest_ood.parquet", folder / "loud_ood.parquet"]
    code, out, _ = run(monkeypatch, capsys, "evaluate", *models, "--ood", *foreign)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    (ece,) = (line for line in out.splitlines() if line.startswith("ECE, %") and "+" not in line)
    assert ece.count("*") == 1
    accuracy = [line for line in out.splitlines() if line.startswith("Accuracy")]
    assert not any("*" in line for line in accuracy)  # scaling changes no prediction


@pytest.mark.slow
def test_every_other_form(folder, monkeypatch, capsys):
    models = [folder / "honest.parquet", folder / "loud.parquet"]
    _, out, _ = run(monkeypatch, capsys, "evaluate", *models, "--json")
    evaluation = Evaluation.from_json(out)
    assert json.loads(out)["schema"] == "counterpoise.evaluation"
    _, out, _ = run(monkeypatch, capsys, "evaluate", *models, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    ece = {row["section"]: float(row["value"]) for row in rows if row["model"] == "net loud" and row["metric"] == "ece"}
    assert ece["Performance and calibration"] == evaluation.models[1]["ece"].value
    assert {"Group: severity 1", "Temperature scaling, after"} <= set(ece)
    _, out, _ = run(monkeypatch, capsys, "evaluate", *models, "--markdown")
    assert "| ECE, %" in out
    assert "Temperature scaling\\: net loud" in out
    _, out, _ = run(monkeypatch, capsys, "evaluate", *models, "--latex")
    assert out.count(r"\begin{tabular}") == out.count(r"\end{tabular}") == 9


@pytest.mark.slow
def test_report_and_figures(folder, tmp_path, monkeypatch, capsys):
    page, figures = tmp_path / "report.html", tmp_path / "figures"
    arguments = [folder / "loud.parquet", "--html", page, "--figures", figures, "--risk", "0.3", "--bins", "10"]
    code, out, _ = run(monkeypatch, capsys, "evaluate", *arguments)
    assert code == 0
    assert "wrong at most 30%" in page.read_text(encoding="utf-8")
    names = {path.name for path in figures.iterdir()}
    assert {"reliability.png", "reliability.svg", "risk_coverage.png", "severity.svg"} <= names
    assert "10 bins" in out


@pytest.mark.parametrize(
    ("expected", "arguments", "message"),
    [
        (1, ["missing.parquet"], "missing.parquet"),
        (1, ["broken.parquet"], "broken.parquet: "),
        (1, ["notes.txt"], "told by the suffix"),
        (2, ["honest.parquet", "--bins", "0"], "bins must be a whole number of at least 1"),
        (2, ["honest.parquet", "--risk", "2"], "--risk must lie between 0 and 1"),
        (2, ["honest.parquet", "--level", "1"], "level must lie between 0 and 1"),
        (2, ["honest.parquet", "--score", "magic"], "magic"),
        (2, ["honest.parquet", "--json", "--csv"], "choose one of"),
        (1, ["honest.parquet", "loud.parquet", "--ood", "honest_ood.parquet"], "give 2 files of OOD samples"),
        (2, [], "at least one file"),
        (1, ["honest.parquet", "--html", "no/such/folder/report.html"], "no/such/folder"),
        (1, ["honest.parquet", "--html", "run"], "--html run is a folder: name a file in it"),
        (1, ["honest.parquet", "--html", "./honest.parquet"], "is a file of predictions, which would be overwritten"),
        (1, ["honest.parquet", "--figures", "notes.txt"], "notes.txt is a file, name a folder"),
        (1, ["honest.parquet", "--figures", "notes.txt/below"], "notes.txt is a file, name a folder"),
        (2, ["honest.parquet", "--bins", "100000000000"], "--bins must be at most 10,000"),
        (1, ["run"], "run: this folder holds no file of predictions (.parquet, .csv, "),
    ],
)
def test_errors_are_one_line(folder, monkeypatch, capsys, expected, arguments, message):
    (folder / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    (folder / "notes.txt").write_text("hello")
    (folder / "run" / "predictions").mkdir(parents=True, exist_ok=True)
    (folder / "run" / "predictions" / "test.parquet").touch()
    monkeypatch.chdir(folder)
    code, out, err = run(monkeypatch, capsys, "evaluate", *arguments)
    assert code == expected
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("counterpoise: note:")]
    assert len(lines) == 1
    assert message in lines[0]


def test_the_old_command_of_the_benchmark_names_the_new_one(monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, "bench", "run", "cifar10")
    assert code == 2
    assert "`counterpoise-study`" in err


def test_a_command_line_that_is_not_understood_exits_with_2(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "evaluate", "a.parquet", "--bins", "many")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--to", "onnx", "--out", "."], "is a folder"), (["--to", "hub", "--out", "file"], "is a file, name a folder")],
)
def test_export_refuses_a_path_before_it_loads_the_run(tmp_path, monkeypatch, capsys, arguments, message):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    code, _, err = run(monkeypatch, capsys, "export", "no-run", *arguments)
    assert code == 1
    assert message in err


def test_a_name_that_the_encoding_has_not_costs_no_result(folder, tmp_path, programs):
    path = tmp_path / "模型.parquet"
    source = read_predictions(folder / "honest.parquet")
    write_predictions(path, Predictions.of(logits=source.values, labels=source.labels))  # named by its file
    done = subprocess.run(
        [programs / "python", "-m", "counterpoise", "evaluate", path, folder / "loud.parquet", "--csv"],
        env={**os.environ, "PYTHONIOENCODING": "cp1252"}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"??,Performance and calibration,ece," in done.stdout


def test_help_names_every_score(monkeypatch, capsys):
    _, out, _ = run(monkeypatch, capsys, "evaluate", "--help")
    for name in LOGIT_SCORES:
        assert name in out


def test_version(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "--version") == (0, f"counterpoise {__version__}\n", "")


def test_methods_say_how_many_models_train(monkeypatch, capsys):
    _, out, _ = run(monkeypatch, capsys, "methods")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert all(f"{count} model" in lines[name] for name, count in (("ce", 1), ("de3", 3), ("mte1", 2), ("mte2", 3)))
    assert "alpha_warmup" in lines["mte1"]


def test_progress_goes_to_standard_error(folder, monkeypatch, capsys):
    monkeypatch.setattr("counterpoise.cli.progress._PATIENCE", 0.0)
    _, out, err = run(monkeypatch, capsys, "evaluate", folder / "honest.parquet", "--json")
    assert "honest.parquet: 800 of 800 rows, 100%" in err
    Evaluation.from_json(out)


def test_large_files_are_announced_while_their_digests_are_checked(folder, monkeypatch, capsys):
    monkeypatch.setattr("counterpoise.cli.evaluate._SECOND_OF_HASHING", 1000)
    _, _, err = run(monkeypatch, capsys, "evaluate", folder / "honest.parquet", "--json")
    assert "checking the digests" in err


def test_a_reader_that_goes_away_is_no_error(folder, programs):
    files = " ".join([str(folder / "honest.parquet")] * 4)  # more output than a pipe holds, so that it must be read
    command = f"{programs / 'python'} -m counterpoise evaluate {files} --json | head -c 10"
    done = subprocess.run(  # noqa: S602
        f"set -o pipefail; {command}", shell=True, executable="bash", capture_output=True, text=True, check=False
    )
    assert done.stderr.count("Traceback") == 0
    assert "Broken pipe" not in done.stderr
    assert done.returncode == 141  # and not that of success: what came after it is not done


@pytest.mark.slow
def test_other_commands_need_none_of_the_report_s_libraries():
    code = (
        "import sys; sys.argv = ['counterpoise', 'info']\n"
        "from counterpoise import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('pyarrow', 'matplotlib', 'jinja2', 'sklearn') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["train", "tune"])
@pytest.mark.parametrize("arguments", [("--epochs", "5", "digits"), ("--method", "ce", "nonsense")])
def test_a_recipe_after_its_options_is_refused(monkeypatch, capsys, command, arguments):
    """The options would have had the defaults of no recipe."""
    code, _, error = run(monkeypatch, capsys, command, *arguments)
    assert code == 2
    assert f"the recipe comes first: counterpoise {command} RECIPE {arguments[0]}" in error
    assert run(monkeypatch, capsys, command, "--help")[0] == 0


def test_a_search_with_an_unknown_method_is_one_line(monkeypatch, capsys):
    code, _, error = run(monkeypatch, capsys, "tune", "digits", "--method", "focal")
    assert (code, error.count("\n")) == (2, 1)
    assert "there is no method 'focal'" in error


def test_domains_are_predicted_into_files_of_their_own(monkeypatch, tmp_path):
    from counterpoise.cli.predict import Predict

    paths = []
    monkeypatch.setattr("counterpoise.training.evaluation.predict", lambda *given, **_: paths.append(given[2].name))
    monkeypatch.setattr("counterpoise.training.networks.load_run", lambda _: SimpleNamespace(recipe=Recipe()))
    monkeypatch.setattr("counterpoise.training.inputs.load_inputs", lambda *_, **__: None)
    (tmp_path / "config.json").write_text(Recipe().to_json())
    (tmp_path / "primary.safetensors").touch()
    (tmp_path / "pacs_64").mkdir()
    for domain in SETS["pacs_64"].domains:
        (tmp_path / "pacs_64" / f"{domain}.parquet").touch()
    (tmp_path / "ood_sketch" / "dog").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for domain in ("photo", "sketch"):
        Predict(tmp_path, "pacs_64", domain=domain, data_root=tmp_path).run()
    Predict(tmp_path, "ood_sketch", split="all").run()  # of the model's classes, whatever its name
    assert paths == ["pacs_64_photo_test.parquet", "pacs_64_sketch_test.parquet", "own_ood_sketch_all.parquet"]


def test_a_run_goes_on_where_nobody_reads_what_it_says(monkeypatch):
    from counterpoise.training.progress import say

    class Closed(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    say("epoch 1 of 2")
    line = ProgressLine()
    line.say("a file", at_once=True)
    line.clear()


def test_progress_takes_one_row_of_a_terminal_and_no_orders_from_names(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    ProgressLine().say("\x1b[31m" + "long" * 40, at_once=True)
    (shown,) = sys.stderr.getvalue().split("\r\x1b[K")[1:]
    assert len(shown) == 39
    assert "\x1b" not in shown
