"""Labels in a file of their own: by id where both files have ids, else row by row."""

import csv

import pytest

from counterpoise.predictions import MISSING_LABEL, Columns, PredictionFileError, open_predictions

IDS = ["a", "b", "c", "d"]


def written(path, head, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def labels_of(folder, rows, *, ids=True, head=("id", "label")):
    names = ["id"] * ids + ["prob_0", "prob_1"]
    predictions = written(folder / "p.csv", names, *([name] * ids + [0.25, 0.75] for name in IDS))
    labels = written(folder / "y.csv", head, *rows)
    file = open_predictions(predictions, Columns(labels=str(labels)))
    return [label for table in file.batches() for label in table.labels.tolist()]


def test_another_order_is_joined_by_id(tmp_path):
    assert labels_of(tmp_path, [("d", 1), ("b", 0), ("a", 1), ("c", 0)]) == [1, 0, 0, 1]


def test_labels_that_are_not_known_yet_are_missing_and_those_of_others_are_left(tmp_path):
    assert labels_of(tmp_path, [("c", 1), ("z", 0)]) == [MISSING_LABEL, MISSING_LABEL, 1, MISSING_LABEL]


def test_without_ids_rows_correspond(tmp_path):
    assert labels_of(tmp_path, [(1,), (0,), (0,), (1,)], head=("label",)) == [1, 0, 0, 1]
    with pytest.raises(PredictionFileError, match=r"3 labels, and .* has more rows|3 labels for the 4 rows"):
        labels_of(tmp_path, [("a", 1), ("b", 0), ("c", 0)], ids=False)


def test_what_cannot_be_joined_is_refused(tmp_path):
    with pytest.raises(PredictionFileError, match="the id 'b' is there twice"):
        labels_of(tmp_path, [("a", 1), ("b", 0), ("b", 1)])
    with pytest.raises(PredictionFileError, match="none of its ids, such as 'x', 'y', is one of"):
        labels_of(tmp_path, [("x", 1), ("y", 0)])
