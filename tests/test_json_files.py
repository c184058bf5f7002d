"""Predictions in JSON documents, and the scores of classes that pipelines of transformers give."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.predictions import Columns, PredictionFileError, find_shards, read_predictions, write_manifest
from prediction_tables import refusal

ROWS = [[0.25, 0.75], [0.5, 0.5], [1, 0]]


def written(folder, document, name="p.json"):
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / name).write_text(text)
    return folder / name


def scores(row, names=("cat", "dog")):
    return [{"label": name, "score": score} for name, score in zip(names, row, strict=True)]


def test_documents_of_one_table_are_the_same(tmp_path):
    labels = [1, None, 0]
    documents = (
        [{"probs": row, "label": label} for row, label in zip(ROWS, labels, strict=True)],
        {"probs": ROWS, "label": labels, "model": "cnn", "steps": [1]},
        {"probs": {str(key): row for key, row in enumerate(ROWS)}, "label": {"0": 1, "1": None, "2": 0}},
        [{"out": {"probs": row}, "label": label} for row, label in zip(ROWS, labels, strict=True)],
        {"results": [{"probs": row, "label": label} for row, label in zip(ROWS, labels, strict=True)], "epoch": 3},
        {f"image {key}": {"probs": row, "label": labels[key]} for key, row in enumerate(ROWS)},
        {
            "columns": ["probs", "label"],
            "data": [list(row) for row in zip(ROWS, labels, strict=True)],
            "index": [4, 5, 6],
        },
    )
    for document in documents:
        table = read_predictions(written(tmp_path, document), Columns(probabilities="probs,out.probs"))
        np.testing.assert_array_equal(table.values, ROWS)
        assert table.labels.tolist() == [1, -1, 0]


@pytest.mark.parametrize("orient", ["records", "columns", "index", "split", "table"])
def test_what_pandas_writes(tmp_path, orient):
    frame = pd.DataFrame({"prob_a": [0.25, 0.5], "prob_b": [0.75, 0.5], "label": ["b", "a"]})
    table = read_predictions(written(tmp_path, frame.to_json(orient=orient)))
    assert (table.values.tolist(), table.labels.tolist()) == ([[0.25, 0.75], [0.5, 0.5]], [1, 0])


def test_rows_without_a_value_for_each_column(tmp_path):
    path = written(tmp_path, {"columns": ["probs", "label"], "data": [[[0.5, 0.5], 1], [[0.5, 0.5]]]})
    assert "row 1 of 'data' has no value for each of the 2 'columns'" in refusal(path)


def test_scores_of_classes_in_any_order(tmp_path):
    rows = [scores((0.25, 0.75)), scores((0.9, 0.1), ("dog", "cat"))]
    document = [{"label": "dog", "prob": row} for row in rows]
    table = read_predictions(written(tmp_path, document))
    assert table.header.class_names == ("cat", "dog")
    assert table.values.tolist() == [[0.25, 0.75], [0.1, 0.9]]
    lines = "".join(f"{json.dumps(row)}\n" for row in document)
    assert read_predictions(written(tmp_path, lines, "p.jsonl")).values.tolist() == table.values.tolist()


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (scores((1,), ("cat",)), "row 1, column 'prob' has 0 scores of 'dog'"),
        ([*scores((0.5, 0.5)), *scores((0,), ("cat",))], "row 1, column 'prob' has 2 scores of 'cat'"),
        ([{"label": None, "score": 1}], "no label or no score"),
        (None, "row 1, column 'prob' has 0 scores of 'cat'"),
    ],
)
def test_scores_that_are_not_one_for_each_class_are_refused(tmp_path, row, wrong):
    assert wrong in refusal(
        written(tmp_path, [{"label": "cat", "prob": scores((0.5, 0.5))}, {"label": "cat", "prob": row}])
    )


@pytest.mark.slow
def test_many_rows(tmp_path):
    values = np.random.default_rng(0).dirichlet(np.ones(3), 25_000)
    path = written(tmp_path, {"probs": values.tolist(), "label": [0] * 25_000})
    np.testing.assert_array_equal(read_predictions(path).values, values)


@pytest.mark.slow
def test_what_is_no_table_is_refused(tmp_path):
    for text in (
        "",
        "{",
        "3",
        "[]",
        "{}",
        '"x"',
        '{"a": []}',
        "[[" * 5000,
        '[{"probs": [1, "x"]}]',
        '{"probs": [1, {}]}',
    ):
        assert refusal(written(tmp_path, text))
    (tmp_path / "p.json.gz").write_bytes(gzip.compress(b"[" + b" " * (1 << 28)))
    assert "refused" in refusal(tmp_path / "p.json.gz")


def test_documents_of_ours_are_not_predictions(tmp_path):
    path = written(tmp_path, {"schema": "counterpoise.scores", "schema_version": 1}, "scores.json")
    with pytest.raises(PredictionFileError, match=r"not a manifest of shards"):
        find_shards(path)


def test_settings_beside_shards_are_not_read(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        written(tmp_path, json.dumps({"probs": [0.5, 0.5], "label": 0}), name)
    written(tmp_path, {"epochs": 3}, "config.json")
    (tmp_path / "weights.pt").write_bytes(b"PK")
    assert [shard.path.name for shard in find_shards(tmp_path).shards] == ["a.jsonl", "b.jsonl"]
    write_manifest(tmp_path)
    assert len(find_shards(tmp_path / "manifest.json").shards) == 2
    assert [shard.path.name for shard in find_shards(str(tmp_path / "*.json")).shards] == [
        "config.json",
        "manifest.json",
    ]


@settings(max_examples=10, deadline=None)
@given(orders=st.lists(st.permutations(range(4)), min_size=3, max_size=3))
def test_objects_by_row_are_joined_by_their_keys(tmp_path_factory, orders):
    folder = tmp_path_factory.mktemp("json")
    columns = {"prob_0": [0.1, 0.2, 0.3, 0.4], "prob_1": [0.9, 0.8, 0.7, 0.6], "label": [0, 1, 1, 0]}
    document = {
        name: {f"image {row}": column[row] for row in order}
        for (name, column), order in zip(columns.items(), orders, strict=True)
    }
    table = read_predictions(written(folder, document))
    first = orders[0]
    np.testing.assert_array_equal(table.values[:, 0], np.array(columns["prob_0"])[[*first]])
    np.testing.assert_array_equal(table.values[:, 1], np.array(columns["prob_1"])[[*first]])
    np.testing.assert_array_equal(table.labels, np.array(columns["label"])[[*first]])


@pytest.mark.parametrize(
    "text",
    [
        '[{"probs": [0.5, 0.5], "label": 0, "label": 1}]',
        '{"probs": {"a": [0.5, 0.5]}, "label": {"a": 0, "a": 1}}',
        '{"label": [0], "probs": [[0.5, 0.5]], "label": [1]}',
        '{"columns": ["probs", "label", "label"], "data": [[[0.5, 0.5], 0, 1]]}',
    ],
)
def test_a_name_that_appears_twice_is_rejected(tmp_path, text):
    assert "more than once" in refusal(written(tmp_path, text))


def test_a_name_that_appears_twice_in_a_line_is_rejected(tmp_path):
    line = '{"probs": [0.5, 0.5], "label": 0, "label": 1}'
    assert "was specified twice" in refusal(written(tmp_path, line, "p.jsonl"))
