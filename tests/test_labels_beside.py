"""Labels in a file of their own: by id where both files have ids, else row by row."""

import csv

import numpy as np
import pytest

from counterpoise.predictions import (
    MISSING_LABEL,
    AmbiguousInputError,
    Columns,
    PredictionFileError,
    open_predictions,
    read_predictions,
)

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
    with pytest.raises(PredictionFileError, match=r"3 labels, and here are more rows"):
        labels_of(tmp_path, [(1,), (0,), (0,)], head=("label",))


def test_what_cannot_be_joined_is_refused(tmp_path):
    with pytest.raises(PredictionFileError, match="the id 'b' is there twice"):
        labels_of(tmp_path, [("a", 1), ("b", 0), ("b", 1)])
    with pytest.raises(
        PredictionFileError, match=r"none of the ids in .*y\.csv, such as 'x', 'y', is one of those in 'id'"
    ):
        labels_of(tmp_path, [("x", 1), ("y", 0)])


def shuffled(rows):
    return [rows[place] for place in np.random.default_rng(3).permutation(len(rows))]


@pytest.mark.parametrize("head", ["label", "species"])
@pytest.mark.parametrize("name", ["filename", "path", "id", "Sample ID"])
def test_a_column_of_one_name_pairs_them_whatever_it_is_called(tmp_path, name, head):
    rows = [(f"{row}.png", row % 2) for row in range(40)]
    predictions = written(tmp_path / "p.csv", [name, "prob_0", "prob_1"], *((key, 0.25, 0.75) for key, _ in rows))
    labels = written(tmp_path / "y.csv", [name, head], *shuffled(rows))
    table = read_predictions(predictions, Columns(labels=str(labels), id=name))
    assert table.labels.tolist() == [label for _, label in rows]


@pytest.mark.parametrize("name", ["id", "filename"])
def test_ids_with_zeros_before_them_are_texts(tmp_path, name):
    rows = [(f"{row:05}", ["cat", "dog"][row % 3 % 2]) for row in range(40)]
    predictions = written(tmp_path / "p.csv", [name, "cat", "dog"], *((key, 0.25, 0.75) for key, _ in rows))
    labels = written(tmp_path / "y.csv", [name, "label"], *shuffled(rows))
    if name == "filename":
        with pytest.raises(AmbiguousInputError, match="'filename' may tell which label"):
            read_predictions(predictions, Columns(labels=str(labels)))
    table = read_predictions(predictions, Columns(labels=str(labels), id=name))
    assert [table.header.class_names[label] for label in table.labels] == [label for _, label in rows]


def test_how_labels_belong_to_rows_is_asked_where_a_column_could_tell(tmp_path):
    rows = [(f"{row}.png", row % 3 % 2) for row in range(40)]
    head, values = ["filename", "prob_0", "prob_1"], [(key, 0.25, 0.75) for key, _ in rows]
    predictions = written(tmp_path / "p.csv", head, *values)
    turned = shuffled(rows)
    for name in ("filename", "image_id"):
        labels = written(tmp_path / "y.csv", [name, "label"], *turned)
        with pytest.raises(AmbiguousInputError, match=r"'filename' may tell which label of .*y\.csv belongs") as asked:
            read_predictions(predictions, Columns(labels=str(labels)))
        by_id, in_order = (dict(choice) for choice, _ in asked.value.choices)
        found = read_predictions(predictions, Columns(labels=str(labels), **by_id))
        assert found.labels.tolist() == [label for _, label in rows]
        found = read_predictions(predictions, Columns(labels=str(labels), **in_order))
        assert found.labels.tolist() == [label for _, label in turned]


def test_ids_of_labels_alone_are_asked_about(tmp_path):
    predictions = written(tmp_path / "p.csv", ["prob_0", "prob_1"], *[(0.25, 0.75)] * 4)
    labels = written(tmp_path / "y.csv", ["id", "label"], *zip(IDS, [1, 0, 0, 1], strict=True))
    with pytest.raises(AmbiguousInputError, match="has ids in 'id', and here are none") as asked:
        read_predictions(predictions, Columns(labels=str(labels)))
    ((choice, _),) = asked.value.choices
    file = open_predictions(predictions, Columns(labels=str(labels), **choice))
    assert any("row by row" in notice for notice in file.notices)
    assert [label for table in file.batches() for label in table.labels.tolist()] == [1, 0, 0, 1]


def test_how_they_were_paired_is_said(tmp_path):
    for head, said in ((("id", "label"), "by 'id'"), (("label",), "row by row")):
        rows = [(name, 1)[-len(head) :] for name in IDS]
        predictions = written(tmp_path / "p.csv", ["id", "prob_0", "prob_1"], *((name, 0.25, 0.75) for name in IDS))
        labels = written(tmp_path / "y.csv", head, *rows)
        assert open_predictions(predictions, Columns(labels=str(labels))).notices[-1].endswith(f"y.csv, {said}")


def test_an_id_that_the_labels_lack_is_refused(tmp_path):
    predictions = written(tmp_path / "p.csv", ["file", "prob_0", "prob_1"], *((name, 0.25, 0.75) for name in IDS))
    labels = written(tmp_path / "y.csv", ["label"], *[(1,)] * 4)
    with pytest.raises(PredictionFileError, match=r"has no column 'file' \(--id\); its columns are 'label'"):
        read_predictions(predictions, Columns(labels=str(labels), id="file"))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"row_by_row": True}, "row_by_row is about a file of labels"),
        ({"row_by_row": True, "labels": "y.csv", "id": "id"}, "exclude each other"),
    ],
)
def test_row_by_row_is_about_a_file_of_labels(choices, message):
    with pytest.raises(ValueError, match=message):
        Columns(**choices)


def test_labels_are_all_that_a_column_beside_could_be(tmp_path):
    """Compared with the predicted class, and rows of K."""
    texts = ["cat", "dog", "dog", "cat"]
    predictions = written(
        tmp_path / "p.csv", ["label", "score"], *zip(["cat", "dog", "cat", "cat"], [0.9] * 4, strict=True)
    )
    labels = written(tmp_path / "y.csv", ["label"], *((text,) for text in texts))
    columns = Columns(confidence="score", prediction="label", labels=str(labels))
    assert read_predictions(predictions, columns).labels.tolist() == [0, 0, 1, 0]
    np.save(tmp_path / "logits.npy", np.eye(3)[[0, 2, 1]])
    np.save(tmp_path / "y.npy", np.eye(3)[[1, 0, 2]])
    columns = Columns(labels=str(tmp_path / "y.npy"), one_hot=True)
    assert read_predictions(tmp_path / "logits.npy", columns).labels.tolist() == [1, 0, 2]


@pytest.mark.parametrize("name", ["index", "filename", ""])
def test_labels_whose_rows_have_names_are_not_taken_in_order_unasked(tmp_path, name):
    np.save(tmp_path / "logits.npy", np.eye(3)[[0, 2, 1, 0]])
    known = {"index": [3, 0, 2, 1], "filename": ["b", "a", "d", "c"], "": [1, 3, 0, 2]}[name]
    labels = written(tmp_path / "y.csv", [name, "label"], *zip(known, [0, 1, 1, 0], strict=True))
    where = repr(name) if name else "a column without a name"
    with pytest.raises(AmbiguousInputError, match=f"has ids in {where}, and here are none") as asked:
        read_predictions(tmp_path / "logits.npy", Columns(labels=str(labels)))
    ((choice, _),) = asked.value.choices
    assert choice == {"row_by_row": True}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", ["index", ""])
def test_labels_whose_rows_are_numbered_are_in_order(tmp_path, name, first):
    np.save(tmp_path / "logits.npy", np.eye(3)[[0, 2, 1, 0]])
    labels = written(tmp_path / "y.csv", [name, "label"], *((first + row, row % 2) for row in range(4)))
    table = read_predictions(tmp_path / "logits.npy", Columns(labels=str(labels)))
    assert table.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("own", "other"), [("file", "filename"), ("id", "image"), ("path", "id")])
def test_columns_of_other_names_are_joined_where_one_is_chosen(tmp_path, own, other):
    rows = [(f"im{row}.png", row % 3 % 2) for row in range(40)]
    predictions = written(tmp_path / "p.csv", [own, "prob_0", "prob_1"], *((key, 0.25, 0.75) for key, _ in rows))
    labels = written(tmp_path / "y.csv", [other, "label"], *shuffled(rows))
    if other != "id" or own != "id":
        with pytest.raises(AmbiguousInputError, match=f"'{own}' may tell which label"):
            read_predictions(predictions, Columns(labels=str(labels)))
    table = read_predictions(predictions, Columns(labels=str(labels), id=own))
    assert table.labels.tolist() == [label for _, label in rows]
