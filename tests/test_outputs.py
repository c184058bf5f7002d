"""Tables in memory: their columns and rows are read by the rules that files are read by."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise import evaluate
from counterpoise.predictions import AmbiguousInputError, read_predictions

ROWS = 40
NAMES = {
    "prefix": [f"prob_{k}" for k in range(12)],
    "digits": [str(k) for k in range(12)],
    "integers": [*range(12)],
    "class": [f"class_{k}" for k in range(12)],
    "within": [f"P(y={k})" for k in range(12)],
    "truth": ["False", "True"],
    "answers": ["neg", "pos"],
}


@pytest.mark.parametrize("names", NAMES)
@given(data=st.data())
@settings(max_examples=2, deadline=None)
def test_columns_that_have_numbers_are_in_their_order(names, data):
    classes = len(NAMES[names])
    p = np.random.default_rng(1).dirichlet(np.ones(classes), ROWS)
    y = np.random.default_rng(2).integers(0, classes, ROWS)
    order = data.draw(st.permutations(range(classes)))
    frame = pd.DataFrame(p[:, order], columns=[NAMES[names][k] for k in order])
    tables = [frame] if names == "integers" else [frame, pa.Table.from_pandas(frame)]
    wanted = evaluate(probabilities=p, labels=y)
    labels = y.astype(bool) if names == "truth" else y
    for table in tables:
        found = evaluate(probabilities=table, labels=labels)
        assert found["accuracy"].value == wanted["accuracy"].value
        assert found["nll"].value == pytest.approx(wanted["nll"].value)


@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_named_classes_in_memory_and_in_a_file(tmp_path_factory, data):
    names = ["cat", "dog", "emu"]
    p = np.random.default_rng(1).dirichlet(np.ones(3), ROWS)
    y = np.random.default_rng(2).integers(0, 3, ROWS)
    order = data.draw(st.permutations(range(3)))
    form = data.draw(st.sampled_from(["{}", "prob_{}", "P(y={})"]))
    frame = pd.DataFrame(p[:, order], columns=[form.format(names[k]) for k in order])
    wanted = evaluate(probabilities=p, labels=y)["nll"].value
    assert evaluate(probabilities=frame, labels=np.array(names)[y])["nll"].value == pytest.approx(wanted)
    assert evaluate(probabilities=frame, labels=y, class_names=names)["nll"].value == pytest.approx(wanted)
    with pytest.raises(ValueError, match="nothing says which number each of the classes"):
        evaluate(probabilities=frame, labels=y)
    with pytest.raises(ValueError, match="nothing says which number each of the classes"):
        evaluate(probabilities=frame, labels=pd.Series(np.array(names)[y]).astype("category").cat.codes)
    if form == "prob_{}":
        path = tmp_path_factory.mktemp("p") / "p.parquet"
        frame.assign(label=y).to_parquet(path)
        with pytest.raises(AmbiguousInputError, match="nothing says which number each of the classes"):
            read_predictions(path)


def test_rows_are_matched_by_index_or_rejected():
    p = np.random.default_rng(1).dirichlet(np.ones(3), ROWS)
    y = np.random.default_rng(2).integers(0, 3, ROWS)
    turned = np.random.default_rng(3).permutation(ROWS)
    wanted = evaluate(probabilities=p, labels=y)["nll"].value
    labels = pd.Series(y)
    for index in (range(ROWS), [f"s{row}" for row in range(ROWS)]):
        frame, own = pd.DataFrame(p, index=index), pd.Series(y, index=index)
        for more in ({"labels": own.iloc[turned]}, {"labels": own, "by": {"group": own.iloc[turned]}}):
            with pytest.raises(ValueError, match=r"has the index of the predictions in another order; pass .*\.loc\["):
                evaluate(probabilities=frame, **more)
        assert evaluate(probabilities=frame, labels=own.iloc[turned].loc[frame.index])["nll"].value == wanted
    with pytest.raises(ValueError, match="labels has another index than the predictions"):
        evaluate(
            probabilities=pd.DataFrame(p, index=[f"s{row}" for row in range(ROWS)]),
            labels=pd.Series(y, index=range(7, 7 + ROWS)),
        )
    # An index that only counts rows says nothing: predict_proba has lost that of the features.
    labels.index = labels.index + 1000
    assert evaluate(probabilities=pd.DataFrame(p), labels=labels)["nll"].value == wanted


def test_a_single_column_called_after_the_class_zero_is_rejected():
    p, y = np.linspace(0.1, 0.9, ROWS), np.arange(ROWS) % 2
    for table in (pd.DataFrame({"prob_0": p}), pd.Series(p, name="prob_neg")):
        with pytest.raises(ValueError, match="is called after the class 0; pass 1 - probabilities"):
            evaluate(probabilities=table, labels=y)
    for table in (pd.DataFrame({"prob_1": p}), pd.Series(p, name="score"), pd.Series(p), pd.DataFrame(p)):
        evaluate(probabilities=table, labels=y)


def test_labels_whose_type_cannot_number_the_classes():
    p = np.full((300, 300), 1 / 300)
    for kind, classes in ((np.uint8, 300), (np.int8, 200)):
        with pytest.raises(ValueError, match="cannot number"):
            evaluate(probabilities=p[:, :classes] * 300 / classes, labels=np.zeros(300, kind))
        evaluate(probabilities=p[:, :100] * 3, labels=np.zeros(300, kind))
