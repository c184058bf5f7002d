"""Labels of samples that count, as places and as names; those of others may be anything."""

import numpy as np
import pandas as pd
import pytest
import torch

from counterpoise import evaluate
from counterpoise.integrations.sklearn import MutualTransportClassifier

NAN = float("nan")
PROBABILITIES = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]
FIRST_AND_LAST = [True, False, True]


@pytest.mark.parametrize(
    "labels",
    [
        [0.0, NAN, 2.0],
        [0, None, 2],
        pd.array([0, None, 2], dtype="Int64"),
        pd.Series([0, None, 2]),
        np.array([0, -100, 2]),
        np.array([[0], [7], [2]]),
        torch.tensor([0, -100, 2]),
        torch.tensor([0.0, NAN, 2.0]),
        ["a", None, "c"],
        ["a", "?", "c"],
    ],
    ids=repr,
)
def test_labels_of_rows_that_do_not_count_may_be_anything(labels):
    named = {"class_names": ["a", "b", "c"]} if isinstance(labels, list) and labels[0] == "a" else {}
    scores = evaluate(probabilities=PROBABILITIES, labels=labels, valid=FIRST_AND_LAST, **named)
    assert (scores.samples, scores["accuracy"].value) == (2, 1.0)


def test_rows_that_do_not_count_do_not_decide_whether_labels_are_names():
    table = pd.DataFrame(PROBABILITIES, columns=[1, 2, 3])
    with pytest.raises(ValueError, match="may be places of classes"):
        evaluate(probabilities=table, labels=[1, 2, -100], valid=[True, True, False])
    by_name = evaluate(probabilities=table, labels=[1, -100, 3], valid=FIRST_AND_LAST)
    assert by_name["accuracy"].value == 1.0


def test_what_is_no_label_is_blamed_and_not_the_numbers_before_it():
    with pytest.raises(ValueError, match=r"row 1 is None"):
        evaluate(probabilities=PROBABILITIES, labels=[0, None, 2])


def test_a_name_of_two_classes_is_no_label():
    with pytest.raises(ValueError, match="class_names has 'a' twice"):
        evaluate(probabilities=PROBABILITIES, labels=["a", "a", "b"], class_names=["a", "a", "b"])


def test_a_classifier_of_numbered_classes_is_measured_where_the_first_is_missing():
    generator = np.random.default_rng(0)
    features, classes = generator.normal(size=(60, 2)).astype(np.float32), generator.integers(1, 4, 60)
    classifier = MutualTransportClassifier(epochs=2, random_state=0).fit(features, classes)
    later = classes > 1
    scores = classifier.evaluate(features[later], classes[later])
    right = (classifier.predict(features[later]) == classes[later]).mean()
    assert scores["accuracy"].value == pytest.approx(right)


def test_what_would_be_passed_over_is_refused():
    with pytest.raises(ValueError, match="leave labels= out"):
        evaluate(confidence=[0.9, 0.8], correct=[True, False], labels=[5, 6])
    with pytest.raises(ValueError, match="a column 'label' already"):
        evaluate(
            probabilities=np.full((4, 2), 0.3), labels=np.eye(4, 2), multilabel=True, by={"label": ["x", "y", "x", "y"]}
        )
