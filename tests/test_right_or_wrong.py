"""Labels, predictions and whether they are right, as files spell them; and numbers that are something else."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoise.predictions import AmbiguousInputError, Columns, PredictionFileError, read_predictions
from counterpoise.scoring import score_files

RIGHT_OR_WRONG = {
    "spaces after commas": "label, prediction, confidence\ncat, cat, 0.9\ncat, dog, 0.6\n",
    "decimal commas": "label;prediction;confidence\n1,0;1;0,9\n2,0;1;0,6\n",
    "decimal points": "label,prediction,confidence\n1.0,1,0.9\n2.0,1,0.6\n",
}


@pytest.mark.parametrize("form", RIGHT_OR_WRONG)
def test_predictions_are_right_however_they_are_written(tmp_path, form):
    path = tmp_path / "p.csv"
    path.write_text(RIGHT_OR_WRONG[form])
    assert score_files([path]).models[0]["accuracy"].value == 0.5


ONE_OR_TWO = {
    "capitals": "a,A\nA,A\nb,b\n",
    "truth of numbers": "1,True\n1,1\n0,0\n",
    "leading zeros": "7,007\n7,7\n8,8\n",
    "zeros at the end": "250.1,250.10\n7,7\n8,8\n",
    "large numbers": "9007199254740993.0e0,9007199254740993\n7,7\n8,8\n",
}


@pytest.mark.parametrize("form", ONE_OR_TWO)
def test_texts_that_may_be_one_class_or_two_are_asked_about(tmp_path, form):
    path = tmp_path / "p.csv"
    path.write_text("label,prediction,confidence\n" + ONE_OR_TWO[form].replace("\n", ",0.9\n"))
    with pytest.raises(AmbiguousInputError, match=r"row 0, column 'label' is .* may be one class or two") as asked:
        score_files([path])
    found = [score_files([path], columns=Columns(**choice)) for choice, _ in asked.value.choices]
    wanted = [2 / 3] if "." in ONE_OR_TWO[form] else [2 / 3, 1]
    assert [each.models[0]["accuracy"].value for each in found] == pytest.approx(wanted)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_classes_are_compared_as_texts(tmp_path, form):
    classes = ["250.1", "250.2", "cat", "9007199254740992", "9007199254740993", "0x10", "1_000", "tru"]
    frame = pd.DataFrame({"label": classes * 2, "prediction": classes + classes[::-1], "confidence": 0.5})
    path = tmp_path / f"p.{form}"
    (frame.to_csv if form == "csv" else frame.to_parquet)(path, index=False)
    assert score_files([path]).models[0]["accuracy"].value == 0.5


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


@pytest.mark.parametrize("form", ["log_prob_{}", "log_softmax_{}", "log_probs"])
@pytest.mark.parametrize(
    ("factor", "cure"),
    [(1 / np.log(2), "0.6931472"), (1 / np.log(10), "2.302585"), (-1, "-1"), (3, "call them logits")],
)
def test_log_probabilities_have_natural_logarithms(tmp_path, form, factor, cure):
    p = np.random.default_rng(0).dirichlet(np.ones(3), 20)
    for each in (1, factor):
        z = np.log(p) * each
        values = {"log_probs": z.tolist()} if form == "log_probs" else {form.format(k): z[:, k] for k in range(3)}
        pq.write_table(pa.table(values | {"label": [0] * 20}), tmp_path / f"{each}.parquet")
    np.testing.assert_allclose(np.exp(read_predictions(tmp_path / "1.parquet").values), p)
    with pytest.raises(PredictionFileError, match=f"row 0, 'log_.*whose exponentials sum to .*, not 1; .*{cure}"):
        read_predictions(tmp_path / f"{factor}.parquet")


@pytest.mark.parametrize("labels", ["text", "number"])
@pytest.mark.parametrize("odd", ["scale", "max", "margin"])
def test_columns_that_may_be_no_class_are_asked_about(tmp_path, odd, labels):
    names, rng = ["cat", "dog", "emu"], np.random.default_rng(0)
    z, y = rng.normal(size=(20, 4)), rng.integers(0, 3, 20)
    columns = {f"logit_{name}": z[:, k] for k, name in enumerate([*names, odd])}
    given = np.array(names)[y] if labels == "text" else y
    pq.write_table(pa.table(columns | {"label": given}), tmp_path / "p.parquet")
    with pytest.raises(AmbiguousInputError, match=f"'{odd}' may not be one") as asked:
        read_predictions(tmp_path / "p.parquet")
    for (choice, _), width in zip(asked.value.choices, (3, 4), strict=True):
        table = read_predictions(tmp_path / "p.parquet", Columns(**choice))
        np.testing.assert_array_equal(table.labels, y)
        np.testing.assert_array_equal(table.values, z[:, :width])


def test_labels_whose_type_cannot_number_the_classes(tmp_path):
    for kind, rows in ((pa.uint8(), 300), (pa.int8(), 200), (pa.bool_(), 3)):
        p = np.eye(rows)
        label = pa.array([k % 100 for k in range(rows)], kind) if kind != pa.bool_() else pa.array([True] * rows)
        pq.write_table(pa.table({"probs": p.tolist(), "label": label}), tmp_path / "p.parquet")
        with pytest.raises(PredictionFileError, match=r"write int64|write the class; true or false"):
            read_predictions(tmp_path / "p.parquet")


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("names", [("malignant", "benign"), ("emu", "cat", "dog")])
def test_named_classes_and_numbers_are_asked_about(tmp_path, form, names):
    k = len(names)
    p = np.random.default_rng(0).dirichlet(np.ones(k), 30)
    frame = pd.DataFrame(
        {f"prob_{name}": p[:, place] for place, name in enumerate(names)} | {"label": np.arange(30) % k}
    )
    path = tmp_path / f"p.{form}"
    writers = {"csv": frame.to_csv, "parquet": frame.to_parquet}
    if form == "jsonl":
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    else:
        writers[form](path, index=False)
    with pytest.raises(AmbiguousInputError, match="nothing says which number each of the classes") as asked:
        read_predictions(path)
    for choice, _ in asked.value.choices:
        order = choice["class_names"].split(",")
        table = read_predictions(path, Columns(**choice))
        assert table.header.class_names == tuple(order)
        np.testing.assert_allclose(table.values, p[:, [names.index(name) for name in order]])
        np.testing.assert_array_equal(table.labels, np.arange(30) % k)
