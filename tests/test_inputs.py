"""Bad input to measures: each case is a `ValueError` that says what is wrong and where."""

import numpy as np
import pytest
import torch

from counterpoise import Stream, evaluate
from counterpoise.metrics import ClasswiseCalibration, OodDetection, Performance, TopLabelCalibration

NAN, INF = float("nan"), float("inf")
GOOD = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]
LABELS = [0, 1, 2]


def put(row: int, column: int, value: float, *, dtype: type = np.float64) -> np.ndarray:
    table = np.array(GOOD, dtype=dtype)
    table[row, column] = value
    return table


BAD: dict[str, tuple[dict[str, object], str]] = {
    "NaN logit": ({"logits": put(1, 2, NAN), "labels": LABELS}, "logits row 1, column 2 is nan"),
    "NaN logit as list": ({"logits": [[NAN, 0.0], [0.0, 1.0]], "labels": [0, 1]}, "logits row 0, column 0 is nan"),
    "NaN float16 logit": ({"logits": put(2, 0, NAN, dtype=np.float16), "labels": LABELS}, "row 2, column 0"),
    "NaN logit in a tensor": ({"logits": torch.tensor(put(0, 1, NAN)), "labels": LABELS}, "row 0, column 1"),
    "NaN in pixels": ({"logits": torch.tensor(put(2, 1, NAN)).view(1, 3, 3), "labels": [LABELS]}, "row 2, column 1"),
    "+inf logit": ({"logits": put(2, 1, INF), "labels": LABELS}, "logits row 2, column 1 is inf"),
    "logits all -inf": ({"logits": [[0.0, 1.0], [-INF, -INF]], "labels": [0, 1]}, "row 1, columns 0 to 1 are all -inf"),
    "NaN probability": ({"probabilities": put(0, 2, NAN), "labels": LABELS}, "probabilities row 0, column 2 is nan"),
    "inf probability": ({"probabilities": put(1, 0, INF), "labels": LABELS}, "probabilities row 1, column 0 is inf"),
    "-inf probability": ({"probabilities": put(1, 0, -INF), "labels": LABELS}, "probabilities row 1, column 0 is -inf"),
    "negative probability": (
        {"probabilities": [[0.5, 0.5], [1.2, -0.2]], "labels": [0, 1]},
        "probabilities row 1, column 1 is -0.2",
    ),
    "sum above 1": ({"probabilities": put(1, 1, 0.9), "labels": LABELS}, "probabilities row 1 sums to 1.1, not 1"),
    "sum below 1": ({"probabilities": put(2, 2, 0.34), "labels": LABELS}, "row 2 sums to 0.94.* column 2"),
    "all zero": ({"probabilities": [[0.0, 0.0]], "labels": [0]}, "row 0 sums to 0"),
    "logits passed as probabilities": ({"probabilities": [[2.0, 0.5], [0.1, 3.0]], "labels": [0, 1]}, "pass logits="),
    "percentages": ({"probabilities": [[70.0, 30.0]], "labels": [0]}, r"row 0 sums to 100.*divide them by 100 \(.*--percent\)"),
    "label K": ({"probabilities": GOOD, "labels": [0, 3, 1]}, r"labels row 1, column 0 is 3, outside \[0, 3\)"),
    "label -1": ({"probabilities": GOOD, "labels": [0, 1, -1]}, r"labels row 2, column 0 is -1, outside"),
    "label -100": ({"probabilities": GOOD, "labels": [-100, 1, 1]}, "labels row 0, .*valid="),
    "labels of a later block": (
        {"logits": np.zeros((3_000_000, 2), np.float32), "labels": np.r_[np.zeros(2_900_000, int), np.full(100_000, 9)]},
        "labels row 2900000, column 0 is 9",
    ),
    "labels too few": ({"probabilities": GOOD, "labels": [0, 1]}, r"labels must have shape \[3\].*got \[2\]"),
    "labels too many": ({"probabilities": GOOD, "labels": [0, 1, 2, 0]}, r"labels must have shape \[3\]"),
    "labels one-hot": ({"probabilities": GOOD, "labels": np.eye(3, dtype=int)}, r"one class index a sample, got \[3, 3\]; .*argmax"),
    "labels float": ({"probabilities": GOOD, "labels": [0.0, 1.5, 2.0]}, "labels row 1 is 1.5; .*class indices"),
    "labels NaN": ({"probabilities": GOOD, "labels": [0.0, NAN, 2.0]}, "labels row 1 is nan; .*valid="),
    "labels from 1": ({"probabilities": GOOD, "labels": [1, 2, 3]}, "labels row 2.*pass labels - 1"),
    "labels -1 and 1": ({"probabilities": [0.2, 0.9], "labels": [-1, 1]}, r"\(labels \+ 1\) // 2"),
    "labels boolean": ({"probabilities": GOOD, "labels": [True, False, True]}, "integer class indices, got bool"),
    "labels text": ({"probabilities": GOOD, "labels": ["cat", "dog", "cow"]}, "got text such as 'cat'; pass class_names="),
    "labels None": ({"probabilities": GOOD, "labels": None}, "labels"),
    "labels beyond int64": (
        {"probabilities": GOOD, "labels": np.array([0, 1, 2**64 - 1], dtype=np.uint64)},
        "labels hold integers above",
    ),
    "labels ragged": ({"probabilities": GOOD, "labels": [[0], [1, 2], [0]]}, "labels are not a rectangular array"),
    "integer logits": ({"logits": [[1, 2], [3, 4]], "labels": [0, 1]}, "logits must be floating point, got int64"),
    "boolean logits": ({"logits": torch.ones(2, 2, dtype=torch.bool), "labels": [0, 1]}, "floating point, got bool"),
    "complex logits": ({"logits": np.ones((2, 2), complex), "labels": [0, 1]}, "real numbers, got an array of dtype complex"),
    "complex tensor": ({"logits": torch.ones(2, 2, dtype=torch.complex64), "labels": [0, 1]}, "floating point, got complex64"),
    "object array": ({"logits": np.array([[1.0, None]], dtype=object), "labels": [0]}, "dtype object"),
    "text": ({"logits": "0.1 0.9", "labels": [0]}, "must hold real numbers"),
    "dictionary": ({"logits": {"a": 1}, "labels": [0]}, "dtype object"),
    "dates": ({"logits": np.zeros((2, 2), "datetime64[s]"), "labels": [0, 1]}, "dtype datetime64"),
    "long double": ({"logits": np.zeros((2, 2), np.longdouble), "labels": [0, 1]}, "convert them to float64"),
    "sparse": ({"logits": torch.eye(2).to_sparse(), "labels": [0, 1]}, "dense tensor"),
    "masked array": ({"probabilities": np.ma.masked_less(GOOD, 0.15), "labels": LABELS}, "masked array"),
    "ragged": ({"logits": [[0.1, 0.2], [0.3]], "labels": [0, 1]}, "not a rectangular array"),
    "one dimension, three classes": ({"logits": [0.1, 0.9], "labels": [0, 2]}, "two classes have the labels 0 and 1"),
    "P(y = 1) above 1": ({"probabilities": [0.1, 1.2], "labels": [0, 1]}, r"row 1 is 1.2, outside \[0, 1\]; .*pass logits="),
    "no dimension": ({"logits": 0.5, "labels": 0}, r"got \[\]"),
    "K = 0": ({"logits": np.zeros((3, 0)), "labels": LABELS}, "K = 0 classes"),
    "empty": ({"logits": np.zeros((0, 3)), "labels": np.zeros(0, int)}, "empty"),
    "empty list": ({"logits": [], "labels": []}, r"shape \[0\]"),
    "neither": ({"labels": LABELS}, "either logits or probabilities"),
    "both": ({"logits": GOOD, "probabilities": GOOD, "labels": LABELS}, "never told apart by their values"),
    "valid not boolean": ({"probabilities": GOOD, "labels": LABELS, "valid": [1, 1, 0]}, "valid must be boolean"),
    "valid too short": ({"probabilities": GOOD, "labels": LABELS, "valid": [True]}, r"valid must have shape \[3\]"),
}  # fmt: skip


def test_there_are_enough_cases():
    assert len(BAD) >= 40


@pytest.mark.parametrize("name", BAD)
def test_evaluate_refuses(name):
    arguments, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        evaluate(**arguments)


@pytest.mark.parametrize(
    "measure", [Performance(), TopLabelCalibration(), ClasswiseCalibration(num_classes=3)], ids=repr
)
@pytest.mark.parametrize("name", BAD)
def test_streams_refuse(name, measure):
    arguments, message = BAD[name]
    stream = Stream(measure)
    with pytest.raises(ValueError, match=message):
        stream.update(**arguments)
    with pytest.raises(ValueError, match="no samples"):
        stream.compute()


EVALUATE_ONLY: dict[str, tuple[dict[str, object], str]] = {
    "names too few": (
        {"probabilities": GOOD, "labels": LABELS, "class_names": ["a", "b"]},
        "there are 2 class_names for 3 classes",
    ),
    "nothing valid": ({"probabilities": GOOD, "labels": LABELS, "valid": [False] * 3}, "valid= is False for every row"),
    "no bins": (
        {"probabilities": GOOD, "labels": LABELS, "bins": 0},
        "bins must be a whole number of at least 1, got 0",
    ),
    "level": ({"probabilities": GOOD, "labels": LABELS, "level": 95}, "level must lie between 0 and 1"),
    "unknown score": ({"probabilities": GOOD, "labels": LABELS, "score": "msp"}, "unknown confidence score 'msp'"),
    "score of logits": ({"probabilities": GOOD, "labels": LABELS, "score": "energy"}, "energy needs logits"),
    "foreign kind": ({"probabilities": GOOD, "labels": LABELS, "ood_logits": GOOD}, "pass ood_probabilities="),
    "foreign classes": (
        {"probabilities": GOOD, "labels": LABELS, "ood_probabilities": [[0.5, 0.5]]},
        "predictions for OOD samples have 2 classes, the others 3",
    ),
    "foreign NaN": ({"logits": GOOD, "labels": LABELS, "ood_logits": put(1, 1, NAN)}, "logits row 1, column 1 is nan"),
}


@pytest.mark.parametrize("name", EVALUATE_ONLY)
def test_evaluate_refuses_its_own(name):
    arguments, message = EVALUATE_ONLY[name]
    with pytest.raises(ValueError, match=message):
        evaluate(**arguments)


def test_measures_say_what_they_need():
    with pytest.raises(ValueError, match="needs labels"):
        Stream(Performance()).update(probabilities=GOOD)
    with pytest.raises(ValueError, match="pass in_distribution="):
        Stream(OodDetection()).update(probabilities=GOOD)
    with pytest.raises(ValueError, match="3 classes, the metric was made for 5"):
        Stream(ClasswiseCalibration(num_classes=5)).update(probabilities=GOOD, labels=LABELS)


class TestAccepted:
    """What looks odd and is right."""

    @pytest.mark.parametrize(
        "labels",
        [
            np.array(LABELS, np.uint8),
            np.array(LABELS, np.int16),
            torch.tensor(LABELS, dtype=torch.int32),
            tuple(LABELS),
        ],
        ids=["uint8", "int16", "int32 tensor", "tuple"],
    )
    def test_integer_labels_of_every_kind(self, labels):
        assert evaluate(probabilities=GOOD, labels=labels)["accuracy"].value == 1

    @pytest.mark.parametrize("dtype", [">f4", "<f8", "f2"])
    def test_arrays_of_every_byte_order(self, dtype):
        assert evaluate(probabilities=np.array(GOOD).astype(dtype), labels=LABELS)["accuracy"].value == 1

    def test_reversed_and_strided_arrays(self):
        wide = np.zeros((6, 6))
        wide[::2, ::2] = GOOD
        assert evaluate(probabilities=wide[::2, ::2], labels=LABELS)["accuracy"].value == 1
        assert evaluate(probabilities=np.array(GOOD)[::-1], labels=np.array(LABELS)[::-1])["accuracy"].value == 1

    def test_an_array_that_must_not_be_written_to(self):
        table = np.array(GOOD)
        table.flags.writeable = False
        assert evaluate(probabilities=table, labels=LABELS)["accuracy"].value == 1

    def test_an_impossible_class(self):
        scores = evaluate(logits=[[1.0, 0.0, -INF], [0.0, 2.0, -INF]], labels=[0, 0])
        assert scores["accuracy"].value == 0.5

    def test_a_label_that_the_model_thought_impossible(self):
        scores = evaluate(probabilities=[[1.0, 0.0], [0.5, 0.5]], labels=[1, 0])
        assert scores["nll"].value == INF

    def test_predictions_that_require_grad(self):
        assert evaluate(logits=torch.tensor(GOOD, requires_grad=True), labels=LABELS)["accuracy"].value == 1

    def test_bfloat16_probabilities(self):
        p = torch.softmax(torch.randn(50, 100, generator=torch.Generator().manual_seed(0)), -1).bfloat16()
        assert evaluate(probabilities=p, labels=[0] * 50).samples == 50

    def test_rows_left_out_may_hold_anything(self):
        table = put(1, 1, NAN)
        scores = evaluate(logits=table, labels=[0, 99, 2], valid=[True, False, True])
        assert scores.samples == 2

    def test_input_is_not_changed(self):
        logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
        before = logits.clone()
        evaluate(logits=logits, labels=[0, 1, 2, 0, 1])
        assert torch.equal(logits, before)
