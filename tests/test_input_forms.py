"""The front door: every form is read rightly or asked about with a command that works, and none is misread."""

import json
import re
import shlex
import sys

import pytest

from counterpoise.cli import main
from form_files import Form
from input_forms import write_forms

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forms")
    return folder, {form.name: form for form in write_forms(folder)}


def evaluate(arguments, capsys):
    sys.argv = ["counterpoise", "evaluate", *arguments]
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, *capsys.readouterr()


def misread(out: str, form: Form) -> str | None:
    models = json.loads(out)["models"]
    if len(models) != form.expect.get("models", 1):
        return f"{len(models)} models"
    for key in ("accuracy", "nll"):
        wanted = form.expect.get(key)
        if wanted is not None and models[0]["estimates"][key]["value"] != pytest.approx(wanted, abs=form.tolerance):
            return f"{key} is {models[0]['estimates'][key]['value']}, not {wanted}"
    if "ood" in form.expect and [each["negatives"] for each in models[0]["ood"].values()] != [form.expect["ood"]]:
        return "OOD samples"
    return None


def outcome(form: Form, capsys) -> str:
    """`right`, `asked`, or what went wrong."""
    code, out, error = evaluate([*form.arguments, "--json"], capsys)
    if form.refused:
        return "right" if code == 1 and all(word in error for word in form.refused) else f"not refused: {error}"
    if code == 0:
        return misread(out, form) or "right"
    for line in re.findall(r"^  counterpoise evaluate (.*)$", error, re.M) if form.asks else ():
        code, out, _ = evaluate(shlex.split(line, comments=True), capsys)
        if code == 0 and misread(out, form) is None:
            return "asked"
    return f"refused: {error}"


@pytest.mark.slow
def test_every_form(forms, capsys, monkeypatch):
    folder, every = forms
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", sys.argv)
    found = {name: outcome(form, capsys) for name, form in every.items()}
    wanted = {name: "asked" if form.asks else "right" for name, form in every.items()}
    assert {name: each for name, each in found.items() if each != wanted[name]} == {}
    assert len(found) >= 150


def test_what_was_taken_for_what_is_said(forms, capsys, monkeypatch):
    monkeypatch.chdir(forms[0])
    _, _, error = evaluate(["extra.csv"], capsys)
    line = "extra.csv: probabilities from 'prob_0' to 'prob_5'; labels from 'label'; ignored: 'path', 'loss', 'pred'"
    assert line in error
    _, _, error = evaluate(["binary_prob.csv"], capsys)
    assert "probabilities from 'prob', taken as P(y = 1); labels from 'label'" in error


@pytest.mark.parametrize(
    ("expected", "arguments", "message"),
    [
        (2, ["--probabilities", "p*", "--logits", "z*"], "exclude each other"),
        (2, ["--label", "y", "--labels", "labels.npy"], "choose one"),
        (2, ["--one-hot", "--multilabel"], "choose one"),
        (1, ["--class-names", "a,b"], "2 class names for 6 classes"),
        (1, ["--labels", "twice.parquet"], "240 labels for the 120 rows"),
        (
            1,
            ["--probabilities", "nothing*"],
            "no column is named 'nothing*' (--probabilities); its columns are 'prob_0'",
        ),
    ],
)
def test_choices_that_do_not_fit(forms, capsys, monkeypatch, expected, arguments, message):
    monkeypatch.chdir(forms[0])
    code, _, error = evaluate(["wide.parquet", *arguments], capsys)
    assert code == expected
    assert message in error
