"""A column of labels for each class: one of K, or several labels a sample; and choices that would have no effect."""

import numpy as np
import pandas as pd
import pytest

from counterpoise.predictions import AmbiguousInputError, Columns, PredictionFileError, read_predictions

ROWS, NAMES = 50, ("cow", "ant", "bee")
RNG = np.random.default_rng(2)
P = RNG.dirichlet(np.ones(3), ROWS)
Y = RNG.integers(0, 3, ROWS)
SEVERAL = RNG.integers(0, 2, (ROWS, 3))


def written(folder, labels, *, form="label_{}", values=P, order=(2, 0, 1), kind="prob", suffix="csv"):
    """Labels stand in another order than predictions."""
    columns = {f"{kind}_{name}": values[:, k] for k, name in enumerate(NAMES)}
    frame = pd.DataFrame(columns | {form.format(NAMES[k]): labels[:, k] for k in order})
    path = folder / f"p.{suffix}"
    (frame.to_csv if suffix == "csv" else frame.to_parquet)(path, index=False)
    return path


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("dtype", [int, bool, float])
@pytest.mark.parametrize(
    ("form", "label"), [("label_{}", None), ("{}", "bee,ant,cow"), ("is {}", "is *"), ("target_{}", "target_*")]
)
def test_one_hot_columns(tmp_path, suffix, dtype, form, label):
    path = written(tmp_path, np.eye(3)[Y].astype(dtype), form=form, suffix=suffix)
    table = read_predictions(path, Columns(one_hot=True, label=label))
    np.testing.assert_array_equal(table.labels, Y)
    np.testing.assert_allclose(table.values, P)


@pytest.mark.parametrize("kind", ["prob", "logit"])
@pytest.mark.parametrize("form", ["label_{}", "{}"])
def test_what_may_be_either_is_asked(tmp_path, kind, form):
    path = written(tmp_path, np.eye(3, dtype=int)[Y], form=form, kind=kind)
    with pytest.raises(AmbiguousInputError, match="a single 1 for the class, or a yes or no for each class") as asked:
        read_predictions(path)
    one_hot, several = (Columns(**choice) for choice, _ in asked.value.choices)
    np.testing.assert_array_equal(read_predictions(path, one_hot).labels, Y)
    table = read_predictions(path, several)
    assert table.multilabel
    np.testing.assert_array_equal(table.labels, np.eye(3)[Y])


def test_several_labels_need_no_question(tmp_path):
    for labels, values in ((SEVERAL, P), (np.eye(3, dtype=int)[Y], RNG.uniform(size=(ROWS, 3)))):
        table = read_predictions(written(tmp_path, labels, values=values))
        assert table.multilabel
        np.testing.assert_array_equal(table.labels, labels)
    table = read_predictions(written(tmp_path, SEVERAL, form="{}"), Columns(label="ant,bee,cow", multilabel=True))
    np.testing.assert_array_equal(table.labels, SEVERAL)


def test_rows_that_are_not_one_hot_are_refused(tmp_path):
    labels = np.eye(3, dtype=int)[Y]
    labels[7] = [1, 0, 1]
    with pytest.raises(PredictionFileError, match=r"row 7, columns 'label_cow' to 'label_bee' are not a row with a"):
        read_predictions(written(tmp_path, labels), Columns(one_hot=True))
    labels = labels.astype(object)
    labels[7] = None
    assert read_predictions(written(tmp_path, labels), Columns(one_hot=True)).labels[7] == -1
    with pytest.raises(PredictionFileError, match="--label names 2 columns, 'label_cow', 'label_bee', for 3 classes"):
        read_predictions(written(tmp_path, labels), Columns(one_hot=True, label="label_cow,label_bee"))


@pytest.mark.parametrize(
    ("columns", "choice", "message"),
    [
        (
            "logit_0,logit_1,label",
            {"percent": True},
            "--percent is about probabilities, and 'logit_0' to 'logit_1' are",
        ),
        (
            "prob_0,prob_1,label",
            {"one_hot": True},
            "--one-hot is about rows of labels, and 'label' holds one label a row",
        ),
        ("prob_0,prob_1,label", {"multilabel": True}, "a multilabel table needs a column of labels for each class"),
        ("prob_0,prob_1,label", {"correct": "x"}, "it has no column 'x' .--correct."),
        ("prob_0,prob_1,label", {"correct": "label"}, "--correct is about the confidence of a prediction"),
        ("prob_0,prob_1,label", {"probabilities": "prob_*", "prediction": "x"}, "it has no column 'x' .--prediction."),
        ("confidence,correct", {"one_hot": True}, "--one-hot is about rows of labels, and no labels are known"),
    ],
)
def test_choices_without_effect_are_refused(tmp_path, columns, choice, message):
    row = ",".join({"label": "1", "correct": "1", "confidence": "0.5"}.get(name, "0.5") for name in columns.split(","))
    (tmp_path / "p.csv").write_text(f"{columns}\n{row}\n")
    read_predictions(tmp_path / "p.csv")
    with pytest.raises(PredictionFileError, match=message):
        read_predictions(tmp_path / "p.csv", Columns(**choice))
