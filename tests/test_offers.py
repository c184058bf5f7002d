"""Predictions whose names do not tell what they are: what is offered is right, and what is there is not thrown away."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoise.predictions import AmbiguousInputError, Columns, PredictionFileError, read_predictions

ROWS, NAMES = 80, ("cat", "dog", "hamster")
RNG = np.random.default_rng(9)
P = RNG.dirichlet(np.ones(3), ROWS)
Y = np.array([RNG.choice(3, p=row) for row in P])
TEXT, ANSWERS = np.array(NAMES)[Y], np.array(NAMES)[P.argmax(1)]
Q = RNG.uniform(0.01, 0.99, ROWS)
YES = (RNG.uniform(size=ROWS) < Q).astype(int)
WIDE = {name: P[:, k] for k, name in enumerate(NAMES)}
BESIDE = {
    "nothing": {},
    "confidence and answer": {"confidence": P.max(1), "pred": ANSWERS},
    "confidence": {"confidence": P.max(1)},
    "loss and answer": {"loss": -np.log(P[np.arange(ROWS), Y]), "pred": ANSWERS},
    "weight": {"weight": 0.3},
    "score and entropy": {"score": P.max(1), "entropy": -(P * np.log(P)).sum(1)},
    "probability of the answer": {"prob": P.max(1), "pred": ANSWERS},
}


def written(folder, columns):
    pd.DataFrame(columns).to_csv(folder / "p.csv", index=False)
    return folder / "p.csv"


def offered(path, columns=None):
    with pytest.raises(AmbiguousInputError) as asked:
        read_predictions(path, columns)
    return [dict(choice) for choice, _ in asked.value.choices]


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("first", [True, False])
def test_a_distribution_is_read_whatever_stands_beside_it(tmp_path, beside, first):
    columns = BESIDE[beside] | WIDE if first else WIDE | BESIDE[beside]
    table = read_predictions(written(tmp_path, columns | {"label": TEXT}))
    np.testing.assert_allclose(table.values, P)
    np.testing.assert_array_equal(table.labels, Y)
    numbered = {str(k): P[:, k] for k in range(3)} | BESIDE[beside]
    if "prob" not in numbered:
        numbered |= {"pred": P.argmax(1)} if "pred" in numbered else {}
        np.testing.assert_allclose(read_predictions(written(tmp_path, numbered | {"label": Y})).values, P)


def test_columns_that_sum_to_one_are_offered_together(tmp_path):
    choices = offered(written(tmp_path, {"weight": 0.3} | WIDE | {"loss": 2.5, "label": Y}))
    assert choices[0] == {"probabilities": "cat,dog,hamster"}
    # A column of hardly anything may be a class or not: it is not left out without a question.
    choices = offered(written(tmp_path, WIDE | {"rest": 0.001, "loss": 2.5, "label": TEXT}))
    assert {"probabilities": "cat,dog,hamster,rest"} in choices
    assert {"probabilities": "cat,dog,hamster"} in choices


SINGLE = {
    "margins": ({"decision_function": np.log(Q / (1 - Q))}, [{"logits": "decision_function"}]),
    "of y = 0": ({"prob_0": 1 - Q}, [{"probabilities": "prob_0", "class_names": "1,0"}]),
    "called a prediction": ({"y_pred": Q}, [{"probabilities": "y_pred"}]),
    "called y_hat": ({"y_hat": Q}, [{"probabilities": "y_hat"}]),
    "beside a constant": ({"score": Q, "threshold": 0.5}, [{"probabilities": "score"}]),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_number_of_two_classes(tmp_path, name):
    columns, choices = SINGLE[name]
    path = written(tmp_path, {"label": YES} | columns)
    assert offered(path) == choices
    table = read_predictions(path, Columns(**choices[0]))
    values = table.values if table.kind == "probabilities" else 1 / (1 + np.exp(-np.diff(table.values)))
    own = (
        values[np.arange(ROWS), table.labels] if values.shape[1] == 2 else np.where(YES, values[:, 0], 1 - values[:, 0])
    )
    np.testing.assert_allclose(own, np.where(YES, Q, 1 - Q))


def test_what_a_pipeline_answers_is_a_prediction_beside_labels(tmp_path):
    rows = [{"label": ANSWERS[row], "score": P[row].max(), "gold": TEXT[row]} for row in range(ROWS)]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (choice,) = offered(path, Columns(label="gold"))
    assert choice == {"confidence": "score", "prediction": "label"}
    table = read_predictions(path, Columns(label="gold", **choice))
    np.testing.assert_array_equal(table.labels == 0, ANSWERS == TEXT)
    np.testing.assert_allclose(table.values[:, 0], P.max(1))


def test_numbers_are_not_compared_with_names(tmp_path):
    columns = {"label": Y, "prediction": [f"LABEL_{k}" for k in P.argmax(1)], "confidence": P.max(1)}
    with pytest.raises(
        PredictionFileError, match=r"row 0, column 'label' is '.' and column 'prediction' is 'LABEL_.', .* write labels"
    ):
        read_predictions(written(tmp_path, columns))
    columns["prediction"] = [f"{k}.0" for k in P.argmax(1)]
    table = read_predictions(written(tmp_path, columns))
    np.testing.assert_array_equal(table.labels == 0, P.argmax(1) == Y)


def test_scores_in_parquet_are_no_lists_of_numbers(tmp_path):
    scores = [[{"label": name, "score": value} for name, value in zip(NAMES, row, strict=True)] for row in P.tolist()]
    pq.write_table(pa.table({"probs": scores, "label": TEXT}), tmp_path / "p.parquet")
    with pytest.raises(PredictionFileError, match=r"not lists of numbers; give each class a column .* as JSON lines"):
        read_predictions(tmp_path / "p.parquet", Columns(class_names=",".join(NAMES)))
