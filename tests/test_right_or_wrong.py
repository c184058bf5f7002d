"""Labels, predictions and whether they are right, as files spell them; and numbers that are something else."""

import numpy as np
import pytest

from counterpoise.predictions import Columns, PredictionFileError
from counterpoise.scoring import score_files

RIGHT_OR_WRONG = {
    "spaces after commas": "label, prediction, confidence\ncat, cat, 0.9\ncat, dog, 0.6\n",
    "truth of numbers": "label,prediction,confidence\n1,True,0.9\n0,True,0.6\n",
    "other capitals": "label,prediction,confidence\nCat,cat,0.9\nCat,dog,0.6\n",
    "decimal commas": "label;prediction;confidence\n1,0;1;0,9\n2,0;1;0,6\n",
}


@pytest.mark.parametrize("form", RIGHT_OR_WRONG)
def test_predictions_are_right_however_they_are_written(tmp_path, form):
    path = tmp_path / "p.csv"
    path.write_text(RIGHT_OR_WRONG[form])
    assert score_files([path]).models[0]["accuracy"].value == 0.5


def test_capitals_that_tell_classes_apart_are_kept(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("label,prediction,confidence\na,A,0.9\nA,A,0.8\nb,b,0.7\n")
    assert score_files([path]).models[0]["accuracy"].value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"correct": 2, "prediction": 2, "confidence": 0.8}\n{"correct": 0, "prediction": 2, "confidence": 0.8}\n', "row 0, column 'correct' is 2; write true or false, or call it 'label'"),
        ('{"label": 1, "prediction": 1, "logprob": -0.05}\n{"label": 0, "prediction": 1, "logprob": -0.7}\n', "one log-probability a row, which is no logit"),
        ('{"label": 1, "prediction": 1, "confidence": 9}\n{"label": 0, "prediction": 1, "confidence": 4}\n', "goes up to 9, not 1; divide it"),
    ],
)  # fmt: skip
def test_numbers_that_would_be_taken_for_something_else_are_refused(tmp_path, text, message):
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(PredictionFileError, match=message):
        score_files([path])


def test_names_with_spaces_in_a_file_of_one_column(tmp_path):
    path = tmp_path / "y.csv"
    names = ["Arctic Wolf", "Brown Bear", "Red Fox"]
    path.write_text("\n".join(["label", *(names * 4)]) + "\n")
    np.savez(tmp_path / "p.npz", probabilities=np.tile(np.eye(3) * 0.7 + 0.1, (4, 1)), class_names=np.array(names))
    assert score_files([tmp_path / "p.npz"], columns=Columns(labels=path)).models[0]["accuracy"].value == 1.0
