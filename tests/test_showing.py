"""What results show of themselves: in a terminal, in a notebook, in pandas."""

import html.parser
import re
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

import counterpoise
import evaluations as made
from counterpoise import Evaluation, Stream, calibrators, compare
from counterpoise._text import width_of
from counterpoise.metrics import ScoreOptions, ScoreState, TopLabelCalibration
from counterpoise.metrics.comparison import Comparison, Difference
from counterpoise.metrics.estimates import KEY_METRICS, Estimate, Key
from counterpoise.predictions import Columns, Predictions, find_shards, open_predictions, write_predictions
from counterpoise.recipes.catalog import RECIPES
from counterpoise.recipes.methods import METHODS
from counterpoise.report import numbers, slices, terminal
from counterpoise.scoring import score_files

pytestmark = pytest.mark.usefixtures("few_resamples")


def several(models, name="net"):
    three = made.evaluation(3)
    found = [made.renamed(three.models[index % 3], f"{name}{index}") for index in range(models)]
    differences = [
        Difference(0, index, three.comparison.differences[index % 3].estimates, {}) for index in range(1, models)
    ]
    return Evaluation(found, Comparison(1500, 0.99, differences) if models > 1 else None)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("models", [1, 2, 6])
@pytest.mark.parametrize("name", ["net", "resnet50_imagenet21k_finetuned_mixup_cutmix_seed_12345_final_"])
@pytest.mark.parametrize("everything", [False, True])
def test_no_line_is_wider_than_the_screen_and_no_number_is_cut(width, models, name, everything):
    evaluation = several(models, name)
    screen = terminal.Screen(width, colour=True)
    text = terminal.as_text(evaluation, risk=0.2, screen=screen, everything=everything)
    plain = re.sub("\x1b\\[[0-9;]*m", "", text)
    assert max(width_of(line) for line in plain.splitlines()) <= width
    for table in (numbers.summary(evaluation, key_metrics=not everything), slices.slice_table(evaluation.models[0])):
        for row in table.rows:
            assert all(cell.text in plain for cell in row[1:])


def test_key_metrics_are_few_and_everything_is_all():
    evaluation = several(1)
    short, long = (numbers.summary(evaluation, key_metrics=few) for few in (True, False))
    keys = [key for key in evaluation.models[0] if key in KEY_METRICS]
    assert 7 <= len(keys) <= 9
    assert {row[0].text for row in short.rows} < {row[0].text for row in long.rows}
    assert "more metrics: --all" in terminal.as_text(evaluation, risk=0.1)
    assert "--all" not in terminal.as_text(evaluation, risk=0.1, everything=True)


def test_better_and_worse_are_marked_by_sign_and_by_colour():
    plain = terminal.as_text(several(3), risk=0.2, screen=terminal.Screen(80))
    coloured = terminal.as_text(several(3), risk=0.2, screen=terminal.Screen(80, colour=True))
    assert "\x1b" not in plain
    cells = [cell for row in numbers.paired_differences(several(3), key_metrics=True).rows for cell in row]
    for mark, style, count in (("*", "32", sum(c.best for c in cells)), ("!", "31", sum(c.worse for c in cells))):
        assert count > 0
        assert plain.count(f") {mark}") >= count
        assert len(re.findall(f"\x1b\\[1;{style}m[^\x1b]* \\{mark}\x1b", coloured)) == plain.count(f") {mark}")


def test_an_interval_that_leaves_its_value_out_is_explained_below_it():
    scores = made.scores(0)
    biased = replace(scores, estimates=scores.estimates | {Key.ECE: Estimate(0.1, 0.01, 0.05)})
    outside = [key for key, e in biased.items() if not e.low <= e.value <= e.high]
    text = terminal.as_text(Evaluation([biased]), risk=0.1, everything=True)
    assert "10.00† (1.00 to 5.00)" in text
    assert text.count("†") == len(outside) + 1
    assert "plug-in value" in text


def test_the_environment_decides_about_width_and_colour(monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal.this_screen() == terminal.Screen(72)
    monkeypatch.setenv("COLUMNS", "20")
    assert terminal.this_screen().width == terminal.LEAST_COLUMNS
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert terminal.this_screen().colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.this_screen().colour


def test_models_in_memory_compare_as_their_files_do(tmp_path):
    labels = made.raw(0).labels
    for model in range(2):
        np.savez(tmp_path / f"m{model}.npz", logits=made.raw(model).logits.numpy(), labels=labels.numpy())
    files = score_files([tmp_path / "m0.npz", tmp_path / "m1.npz"])
    memory = compare({f"m{model}": {"logits": made.raw(model).logits} for model in range(2)}, labels=labels)
    assert list(memory) == list(files) == ["m0", "m1"]
    for name in memory:
        for key, estimate in memory[name].items():
            assert estimate.value == pytest.approx(files[name][key].value, rel=1e-9, nan_ok=True)
    (one,), (other,) = memory.comparison.differences, files.comparison.differences
    for key in (Key.ACCURACY, Key.NLL, Key.BRIER, Key.MEAN_GAP):
        ours, theirs = one.estimates[key], other.estimates[key]
        assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high), rel=1e-6)


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({}, "dictionary by name"),
        ({"a": [[0.5, 0.5]]}, "say what 'a' holds"),
        ({"a": {"scores": [[0.5, 0.5]]}}, "say what 'a' holds"),
        ({"a": {"logits": [[[0.5, 1.0]]]}}, "a: "),
        ({"a": {"logits": [[0.5, 1.0]]}, "b": {"logits": [[0.5, 1.0, 2.0]]}}, "same samples"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(models, words):
    with pytest.raises(ValueError, match=words):
        compare(models, labels=[0])


@pytest.mark.parametrize("models", [1, 2])
def test_a_notebook_shows_diagrams_without_scripts_and_escapes_names(models):
    class Balance(html.parser.HTMLParser):
        depth = 0
        seen = ()

        def handle_starttag(self, tag, attrs):
            self.depth += 1
            self.seen += (tag,)

        def handle_endtag(self, tag):
            self.depth -= 1

    parser = Balance()
    parser.feed(several(models, "<script>alert(1)</script>")._repr_html_())
    assert parser.depth == 0
    assert parser.seen.count("svg") == models
    assert "script" not in parser.seen


def test_scores_draw_write_and_tabulate_themselves(tmp_path):
    evaluation = several(2)
    scores = evaluation.models[0]
    for results in (scores, evaluation):
        results.report(tmp_path / "report.html")
        assert "<html" in (tmp_path / "report.html").read_text()
        figure = results.plot()
        size = struct.unpack(">4s2I", figure._repr_png_()[12:24])
        assert size == (b"IHDR", *(figure.dpi * figure.get_size_inches()).astype(int))
        assert len(figure.axes) == 2 * len([results] if results is scores else results)
        assert results.to_pandas().shape == (len(numbers.estimate_rows(Evaluation([scores]))), 8) or len(results) == 2
        assert len(repr(results)) < 200
        assert str(results) == str(results).strip()
    assert dict(scores) == {key: scores[key] for key in scores}
    assert evaluation["net1"] is evaluation.models[1]
    with pytest.raises(KeyError, match="no model 'x'"):
        evaluation["x"]


def test_every_public_object_prints_in_a_few_lines_and_without_an_address(tmp_path):
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((300, 4)), rng.integers(0, 4, 300)
    table = Predictions.of(logits=logits, labels=labels)
    write_predictions(tmp_path / "a.parquet", table)
    both = compare({"a": {"logits": logits}, "b": {"logits": 2 * logits}}, labels=labels)
    fitted = [getattr(calibrators, name)() for name in calibrators.__all__ if name.endswith(("ing", "ion"))]
    model = counterpoise.MutualTransport(torch.nn.Linear(4, 3), auxiliaries=[torch.nn.Linear(4, 3)], alpha=0.5)
    shown = [
        both, both["a"], both["a"]["ece"], both.comparison, both.comparison.differences[0], table, table.header, model,
        open_predictions(tmp_path / "a.parquet"), find_shards(tmp_path), Columns(label="y"), METHODS["mte1"],
        RECIPES["digits"], ScoreState(classes=4, options=ScoreOptions()), Stream(TopLabelCalibration()), *fitted,
    ]  # fmt: skip
    for each in shown:
        assert " at 0x" not in repr(each), each
        assert len(repr(each)) < 1000, each
        assert repr(each).count("\n") < 10, each
