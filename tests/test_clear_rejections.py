"""Files whose fault is named: where it is, and what to do."""

import numpy as np
import pytest
import torch

from counterpoise import evaluate
from counterpoise.predictions import PredictionFileError, read_predictions
from counterpoise.scoring import score_files


def csv_text(folder, text, encoding="utf-8"):
    (folder / "p.csv").write_bytes(text.encode(encoding))
    return folder / "p.csv"


ROWS_OF_TWO = "".join(f"0.{k}25,0.{9 - k}75,{k % 2}\n" for k in range(1, 9))
HELP = {
    "a header line again": (
        "prob_0,prob_1,label\n" + ROWS_OF_TWO * 2 + "prob_0,prob_1,label\n" + ROWS_OF_TWO,
        "row 16 is the header line again",
    ),
    "a long cell": (
        "label,probs\n0,[" + "0.000001," * 20_000 + "0.98]\n",
        "row 0 cannot be split into cells .*131072.* close its quotation marks",
    ),
    "commas between thousands": ("logit_0;logit_1;label\n" + "2,664;-31;0\n-50;907;1\n", "'2,664' may be 2664"),
    "points between thousands": ("logit_0;logit_1;label\n" + "2.664;-31;0\n-31;907;1\n", "'2.664' may be 2664"),
}


@pytest.mark.parametrize("form", HELP)
def test_what_is_wrong_with_a_csv_is_said(tmp_path, form):
    text, message = HELP[form]
    with pytest.raises(PredictionFileError, match=message):
        read_predictions(csv_text(tmp_path, text))


def test_numbers_of_three_decimals_are_read(tmp_path):
    for text in ("2,664;-1,000;0\n1,250;0,907;1\n", "2.664;-1.0;0\n1.250;0.907;1\n", "2,664;-31;0\n1,2504;907;1\n"):
        table = read_predictions(csv_text(tmp_path, "logit_0;logit_1;label\n" + text))
        assert table.values[0, 0] == 2.664


def test_utf_32_is_named(tmp_path):
    with pytest.raises(PredictionFileError, match="it is UTF-32; save it as UTF-8"):
        read_predictions(csv_text(tmp_path, "prob_0,prob_1,label\n" + ROWS_OF_TWO, "utf-32"))


def test_names_of_rows_and_an_empty_first_label(tmp_path):
    rows = [f'"{k}",{row}' for k, row in enumerate(ROWS_OF_TWO.split())]
    rows[0] = rows[0][:-1]
    table = read_predictions(csv_text(tmp_path, "prob_0,prob_1,label\n" + "\n".join(rows) + "\n"))
    assert table.labels.tolist() == [-1, 0, 1, 0, 1, 0, 1, 0]


def test_accents_in_one_character_or_two(tmp_path):
    text = "prob_cafe\u0301,prob_the\u0301,label\n0.25,0.75,caf\u00e9\n0.25,0.75,th\u00e9\n0.5,0.5,cafe\u0301\n"
    assert read_predictions(csv_text(tmp_path, text)).labels.tolist() == [0, 1, 0]


def test_arrays_of_other_shapes_are_named(tmp_path):
    p = np.full((6, 4), 0.25)
    np.savez(tmp_path / "p.npz", probs=p[:, :, None], labels=np.zeros(6, int))
    with pytest.raises(PredictionFileError, match=r"has shape \[n, 4, 1\]: one class for each of 4 members"):
        read_predictions(tmp_path / "p.npz")
    logits = torch.zeros(7, 4)
    torch.save([{"logits": logits[k : k + 3].squeeze(0)} for k in (0, 3, 6)], tmp_path / "p.pt")
    with pytest.raises(PredictionFileError, match=r"batch 2 of 'logits' has shape \[4\], and batch 0 \[3, 4\]; keep"):
        read_predictions(tmp_path / "p.pt")
    with pytest.raises(ValueError, match="the last axis of predictions is that of the classes"):
        evaluate(probabilities=p[:, :, None], labels=np.zeros(6, int))


@pytest.mark.parametrize("classes", [4, 30])
def test_labels_that_may_count_from_one(tmp_path, classes):
    rows = 10 * classes
    p, labels = np.random.default_rng(0).dirichlet(np.ones(classes), rows), np.arange(rows) % (classes - 1) + 1
    np.savez(tmp_path / "p.npz", probs=p, labels=labels)
    in_file, in_memory = score_files([tmp_path / "p.npz"]).models[0], evaluate(probabilities=p, labels=labels)
    for scores in (in_file, in_memory):
        assert any("no label is 0" in notice for notice in scores.source.notices)
    assert not any("no label is 0" in notice for notice in evaluate(probabilities=p, labels=labels - 1).source.notices)
