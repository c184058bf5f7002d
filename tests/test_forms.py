"""Predictions in memory as people have them: each form is read rightly, or refused with what to do; none is misread."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from scipy import sparse

from counterpoise import Scores, evaluate
from counterpoise.metrics import Key, ScoreOptions
from counterpoise.metrics.comparison import compare
from counterpoise.metrics.headline import Headline
from counterpoise.metrics.inputs import prediction_table
from counterpoise.predictions import Header, Layout, PredictionFile, Predictions
from counterpoise.predictions.digest import Source
from counterpoise.scoring.batches import BatchScorer, FileBatch
from outside_metric import TopTwoAccuracy

OPTIONS = ScoreOptions(clustered=True)
RNG = np.random.default_rng(0)
N, NAMES = 60, ["cow", "cat", "dog"]
P = RNG.dirichlet([1.0, 2.0, 1.5], N)
Y = np.array([RNG.choice(3, p=row) for row in P])
TEXT = np.array(NAMES)[Y]
P1 = RNG.uniform(0.02, 0.98, N)
Y1 = (RNG.uniform(size=N) < P1).astype(int)
Z1 = np.log(P1 / (1 - P1))
PL = RNG.uniform(0.02, 0.98, (N, 3))
YL = (RNG.uniform(size=(N, 3)) < PL).astype(int)
ROUNDED = np.round(P, 2)


def frame(**options):
    return pd.DataFrame(P, columns=options.get("columns", NAMES))


def column_of_lists():
    return pd.Series(list(P))


def dataset():
    return pytest.importorskip("datasets").Dataset.from_dict({"p": P.tolist(), "y": Y.tolist(), "name": TEXT.tolist()})


def of_hub(column):
    return lambda: dataset()[column]


def polars(kind, *arguments):
    return lambda: getattr(pytest.importorskip("polars"), kind)(*arguments)


def predicted(library):
    """What a fitted model of another library gives, with its labels."""

    def fitted():
        x = np.c_[Z1, RNG.normal(size=N)]
        if library == "scikit-learn":
            from sklearn.linear_model import LogisticRegression

            return LogisticRegression().fit(x, TEXT).predict_proba(x)
        if library == "xgboost":
            xgboost = pytest.importorskip("xgboost")
            data = xgboost.DMatrix(x, label=Y1)
            return xgboost.train({"objective": "binary:logistic"}, data, 3).predict(data)
        lightgbm = pytest.importorskip("lightgbm")
        data = lightgbm.Dataset(x, label=Y1, params={"verbose": -1, "min_data_in_leaf": 3})
        return lightgbm.train({"objective": "binary", "verbose": -1}, data, 3).predict(x)

    return fitted


class OnADevice:
    """An array of a library that NumPy cannot read, such as CuPy."""

    def __init__(self, values):
        self.values = torch.tensor(values)

    def __array__(self, dtype=None, copy=None):
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


MULTICLASS = {
    "pandas table": (frame, Y),
    "pandas table, text labels": (frame, TEXT),
    "pandas table, Series of text": (frame, pd.Series(TEXT)),
    "pandas table, Categorical in another order": (frame, pd.Categorical(TEXT, categories=sorted(NAMES))),
    "pandas table, nullable": (lambda: frame().convert_dtypes(), pd.Series(Y, dtype="Int64")),
    "pandas table of Arrow": (lambda: frame().astype("float64[pyarrow]"), pd.Series(Y, dtype="int64[pyarrow]")),
    "pandas table of objects": (lambda: frame().astype(object), pd.Series(Y, dtype=object)),
    "pandas table with rows in another order": (lambda: frame().set_index(np.arange(N)[::-1]), pd.Series(Y, index=np.arange(N)[::-1])),
    "columns counted from 0": (lambda: frame(columns=[0, 1, 2]), Y),
    "columns named by labels": (lambda: frame(columns=[3, 5, 7]), 2 * Y + 3),
    "columns named by labels as text": (lambda: frame(columns=["3", "5", "7"]), 2 * Y + 3),
    "a Series of lists": (column_of_lists, Y),
    "an array of lists": (lambda: np.array([*P.tolist(), None], dtype=object)[:-1], Y),
    "Arrow table": (lambda: pa.table(dict(zip(NAMES, P.T, strict=True))), pa.array(TEXT)),
    "Arrow record batch": (lambda: pa.record_batch(dict(zip(NAMES, P.T, strict=True))), pa.array(Y)),
    "Arrow dictionary labels": (lambda: pa.table(dict(zip(NAMES, P.T, strict=True))), pa.array(TEXT).dictionary_encode()),
    "Arrow chunked labels": (lambda: P, pa.chunked_array([Y[:20], Y[20:]])),
    "polars table": (polars("DataFrame", P, NAMES), TEXT),
    "polars Series labels": (lambda: P, polars("Series", "y", Y)),
    "polars table, Series of text": (polars("DataFrame", P, NAMES), polars("Series", "y", TEXT.tolist())),
    "Hugging Face columns": (of_hub("p"), of_hub("y")),
    "Hugging Face table": (lambda: dataset().add_column("z", Y.tolist()).select_columns("p")["p"], of_hub("y")),
    "integral floats": (lambda: P, Y.astype(float)),
    "labels [n, 1]": (lambda: P, Y[:, None]),
    "labels [n, 1] of floats": (lambda: P, Y[:, None].astype(np.float32)),
    "a tensor and a list": (lambda: torch.tensor(P), Y.tolist()),
    "a list of tensors": (lambda: list(torch.tensor(P, requires_grad=True)), list(torch.tensor(Y))),
    "an array on a device": (lambda: OnADevice(P), Y),
    "rows as tuples": (lambda: [tuple(row) for row in P], tuple(Y)),
}  # fmt: skip


NUMBERED = (
    "pandas table",
    "pandas table, nullable",
    "pandas table of Arrow",
    "pandas table of objects",
    "pandas table with rows in another order",
    "Arrow record batch",
)
"""Named columns beside labels that are numbers."""


def given(value):
    return value() if callable(value) else value


@pytest.mark.parametrize("name", MULTICLASS)
def test_classes(name):
    probabilities, labels = map(given, MULTICLASS[name])
    stated = {}
    if name in NUMBERED:
        with pytest.raises(ValueError, match="nothing says which number each of the classes"):
            evaluate(probabilities=probabilities, labels=labels)
        stated = {"class_names": NAMES}
    scores = evaluate(probabilities=probabilities, labels=labels, **stated)
    assert scores[Key.ACCURACY].value == pytest.approx((P.argmax(1) == Y).mean())
    assert scores[Key.NLL].value == pytest.approx(-np.log(P[np.arange(N), Y]).mean(), abs=1e-6)


@pytest.mark.parametrize("names", [NAMES, tuple(NAMES), np.array(NAMES), pd.Index(NAMES)], ids=type)
def test_text_labels_are_looked_up_in_the_names(names):
    scores = evaluate(probabilities=P, labels=TEXT.tolist(), class_names=names)
    assert scores == evaluate(probabilities=P, labels=Y, class_names=NAMES)
    assert scores.class_names == NAMES


BINARY = {
    "[n]": ({"probabilities": P1}, Y1),
    "[n] float32": ({"probabilities": P1.astype(np.float32)}, Y1),
    "[n, 1]": ({"probabilities": P1[:, None]}, Y1[:, None]),
    "[n] logits": ({"logits": Z1}, Y1),
    "[n, 1] logits in a tensor": ({"logits": torch.tensor(Z1)[:, None]}, torch.tensor(Y1)),
    "a Series": ({"probabilities": pd.Series(P1, name="score")}, pd.Series(Y1)),
    "a table of one column": ({"probabilities": pd.DataFrame({"score": P1})}, pd.DataFrame({"y": Y1})),
    "two columns": ({"probabilities": np.c_[1 - P1, P1]}, Y1),
    "boolean labels": ({"probabilities": P1}, Y1.astype(bool)),
    "a nullable boolean Series": ({"probabilities": P1}, pd.Series(Y1.astype(bool), dtype="boolean")),
    "text labels": ({"probabilities": P1, "class_names": ["no", "yes"]}, np.array(["no", "yes"])[Y1]),
    "a polars Series": ({"probabilities": polars("Series", "p", P1)}, Y1),
    "pixels": ({"probabilities": P1.reshape(3, 4, 5)[..., None]}, Y1.reshape(3, 4, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_one_column_is_the_probability_of_the_class_1(name):
    arguments, labels = BINARY[name]
    scores = evaluate(**{key: given(value) for key, value in arguments.items()}, labels=given(labels))
    assert scores.classes == 2
    assert scores[Key.ACCURACY].value == pytest.approx(((P1 > 0.5) == Y1).mean())
    assert scores[Key.NLL].value == pytest.approx(-np.log(np.where(Y1, P1, 1 - P1)).mean(), abs=1e-5)
    places = np.ceil(15 * P1).astype(int) - 1
    error = sum(abs((Y1 - P1)[places == place].sum()) for place in range(15)) / N
    assert scores[Key.POSITIVE_ECE].value == pytest.approx(error, abs=1e-6)
    assert sum(scores.positive.hits) == Y1.sum()
    assert Scores.from_json(scores.to_json()) == scores


@pytest.mark.parametrize("library", ["scikit-learn", "xgboost", "lightgbm"])
def test_what_other_libraries_predict(library):
    found = predicted(library)()
    if library == "scikit-learn":  # its columns are in the order of its classes
        scores = evaluate(probabilities=found, labels=TEXT, class_names=np.unique(TEXT))
        assert scores[Key.ACCURACY].value == (np.unique(TEXT)[found.argmax(1)] == TEXT).mean()
    else:
        assert evaluate(probabilities=found, labels=Y1)[Key.ACCURACY].value == ((found > 0.5) == Y1).mean()


@pytest.mark.parametrize(
    "correct",
    [P.argmax(1) == Y, (P.argmax(1) == Y).astype(int), (P.argmax(1) == Y).astype(float), pd.Series(P.argmax(1) == Y)],
    ids=["boolean", "0 and 1", "floats", "Series"],
)
def test_a_confidence_alone(correct):
    whole, scores = evaluate(probabilities=P, labels=Y), evaluate(confidence=P.max(1), correct=correct)
    for key, estimate in scores.estimates.items():
        assert estimate == whole[key], key
    assert scores.misclassification == whole.misclassification
    assert scores.top_label == whole.top_label
    assert set(scores.estimates) | set(scores.missing) == set(whole.estimates)
    assert (scores.classes, scores.by_class.ece, scores.positive) == (1, [], None)
    with pytest.raises(KeyError, match="no metric 'nll': only the confidence"):
        scores["nll"]
    assert Scores.from_json(scores.to_json()) == scores


MULTILABEL = {
    "arrays": ({"probabilities": PL}, YL),
    "logits": ({"logits": np.log(PL / (1 - PL))}, YL),
    "boolean": ({"probabilities": torch.tensor(PL)}, YL.astype(bool)),
    "tables": ({"probabilities": pd.DataFrame(PL, columns=NAMES)}, pd.DataFrame(YL.astype(float), columns=NAMES)),
    "names": ({"probabilities": PL.tolist(), "class_names": NAMES}, YL.tolist()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MULTILABEL)
def test_several_labels_a_sample(name):
    arguments, labels = MULTILABEL[name]
    scores = evaluate(**arguments, labels=labels, multilabel=True)
    assert scores[Key.ACCURACY].value == pytest.approx(((PL > 0.5) == YL).mean())
    assert scores[Key.NLL].value == pytest.approx(-np.log(np.where(YL, PL, 1 - PL)).mean(), abs=1e-6)
    assert [group.columns["label"] for group in scores.groups] == (
        sorted(NAMES) if name in ("tables", "names") else ["0", "1", "2"]
    )
    for group in scores.groups:
        place = NAMES.index(group.columns["label"]) if name in ("tables", "names") else int(group.columns["label"])
        alone = evaluate(probabilities=PL[:, place], labels=YL[:, place])
        for key in (Key.ACCURACY, Key.NLL, Key.BRIER, Key.POSITIVE_ECE):
            assert group.estimates[key].value == pytest.approx(alone[key].value, abs=1e-6)
            assert group.estimates[key].low == pytest.approx(alone[key].low, abs=1e-6)
    assert Scores.from_json(scores.to_json()).to_json() == scores.to_json()


def test_labels_of_a_sample_that_are_not_known_are_left_out():
    valid = RNG.uniform(size=PL.shape) < 0.7
    scores = evaluate(probabilities=PL, labels=np.where(valid, YL, -1), valid=valid, multilabel=True)
    assert scores.samples == valid.sum()
    assert scores[Key.ACCURACY].value == pytest.approx(((PL > 0.5) == YL)[valid].mean())


def test_rounded_rows_are_renormalised_and_counted():
    scores = evaluate(probabilities=ROUNDED, labels=Y)
    rounded = (np.abs(ROUNDED.sum(1) - 1) > 1e-3).sum()
    whole = ROUNDED / ROUNDED.sum(1, keepdims=True)
    assert scores[Key.NLL].value == pytest.approx(-np.log(whole[np.arange(N), Y]).mean(), abs=1e-9)
    assert scores.source.notices[0].startswith(
        f"{rounded} rows of probabilities were rounded: they summed to 1 within 0.05"
    )
    assert not evaluate(probabilities=P, labels=Y).source.notices


ASKED = {
    "percentages": ({"probabilities": 100 * P, "labels": Y}, "divide them by 100"),
    "a percentage": ({"probabilities": 100 * P1, "labels": Y1}, "divide by 100"),
    "a row off by a tenth": ({"probabilities": P * np.where(np.arange(N) == 5, 1.1, 1)[:, None], "labels": Y}, "row 5 sums to 1.1"),
    "text without names": ({"probabilities": P, "labels": TEXT}, "pass class_names="),
    "text that no class has": ({"probabilities": frame(), "labels": ["owl", *TEXT[1:]]}, "row 0 is 'owl', which is none of the classes"),
    "names or places": ({"probabilities": frame(columns=[1, 2, 3]), "labels": np.clip(Y + 1, 1, 2)}, "if names, pass them as text"),
    "a label column among the classes": ({"probabilities": frame().assign(label=TEXT), "labels": Y}, "row 0 in column 'label' is"),
    "a missing label": ({"probabilities": P, "labels": [None, *Y[1:]]}, "row 0 is None.*valid="),
    "a missing text": ({"probabilities": frame(), "labels": [None, *TEXT[1:]]}, "row 0 is None.*valid="),
    "a missing nullable label": ({"probabilities": P, "labels": pd.Series([pd.NA, *Y[1:]], dtype="Int64")}, "row 0 is (<NA>|nan).*valid="),
    "one-hot labels": ({"probabilities": P, "labels": np.eye(3)[Y]}, r"labels\.argmax\(-1\)"),
    "several labels unsaid": ({"probabilities": PL / PL.sum(1, keepdims=True), "labels": YL}, "multilabel=True"),
    "sparse labels": ({"probabilities": PL, "labels": sparse.csr_matrix(YL), "multilabel": True}, r"call \.toarray\(\)"),
    "outputs of each label": ({"probabilities": [np.c_[1 - p, p] for p in PL.T], "labels": YL, "multilabel": True}, r"np\.stack"),
    "a label above 1": ({"probabilities": PL, "labels": YL + 1, "multilabel": True}, "labels row 0, column . is 2, outside"),
    "several labels of logits": ({"probabilities": 5 * PL, "labels": YL, "multilabel": True}, "row 0, column . is .*pass logits="),
    "predicted classes": ({"probabilities": P.argmax(1), "labels": Y}, "predicted classes are not enough"),
    "confidence with labels": ({"confidence": P.max(1), "labels": Y}, "with correct= beside it"),
    "confidence alone": ({"confidence": P.max(1)}, "pass correct="),
    "confidence of classes": ({"confidence": P, "correct": Y == 0}, "pass what is known of all classes as probabilities="),
    "confidence above 1": ({"confidence": 100 * P.max(1), "correct": Y == 0}, r"confidence row 0 is .*divide by 100"),
    "correct as classes": ({"confidence": P.max(1), "correct": Y}, "correct must be boolean"),
    "correct beside classes": ({"probabilities": P, "labels": Y, "correct": Y == 0}, "correct= belongs to confidence="),
    "a margin of one number": ({"confidence": P.max(1), "correct": Y == 0, "score": "margin"}, "use max_softmax"),
    "OOD samples of several labels": ({"probabilities": PL, "labels": YL, "multilabel": True, "ood_probabilities": P}, "leave the OOD samples out"),
    "a dictionary": ({"probabilities": dict(zip(NAMES, P.T, strict=True)), "labels": Y}, "must hold real numbers"),
    "a single number": ({"probabilities": 0.5, "labels": 1}, r"shape \[\.\.\., K\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_what_could_be_misread_is_asked_about(name):
    arguments, message = ASKED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        evaluate(**arguments)


def test_there_are_enough_forms():
    assert len(MULTICLASS) + len(BINARY) + len(MULTILABEL) + len(ASKED) >= 40


def correlated(rng, samples, labels):
    """Calibrated probabilities of labels that mostly apply together."""
    p = np.repeat(rng.uniform(0.05, 0.95, (samples, 1)), labels, 1)
    shared, own = rng.uniform(size=(samples, 1)), rng.uniform(size=(samples, labels))
    together = rng.uniform(size=(samples, labels)) < 0.7
    return p, (np.where(together, shared, own) < p).astype(int)


def pooled(probabilities, labels):
    """The sums of all decisions by jackknife group, as `evaluate` makes them."""
    samples, decisions = labels.shape
    headline = Headline(classes=2, options=OPTIONS)
    batch = prediction_table(probabilities=probabilities, labels=labels, multilabel=True).checked_rows()
    keys = np.repeat(np.arange(samples, dtype=np.uint64), decisions)
    headline.add(batch, keys, np.zeros_like(keys), options=OPTIONS)
    return headline


def scored(table):
    """The state and the marks of a table, as if it had been read from a file."""
    layout = Layout(table.kind, ("x",), table.classes, id="id")
    source = Source(Path("x"), None, 1, ())
    file = PredictionFile(layout, len(table), (), table.header, source, (), lambda _: iter([table]), list)
    options = ScoreOptions(clustered=table.multilabel, paired=True)
    scorer = BatchScorer(2 if table.multilabel else table.classes, options, 1.0, "ood", labels_known=False)
    return scorer.score(FileBatch(file, table, 0, 0, None))


def same(found, expected):
    assert found.keys() == expected.keys()
    for key, estimate in expected.items():
        limits = (estimate.value, estimate.low, estimate.high)
        assert (found[key].value, found[key].low, found[key].high) == pytest.approx(limits, abs=1e-9, nan_ok=True), key


@pytest.mark.slow
def test_tables_of_every_kind_score_as_in_memory():
    top, _ = scored(Predictions.of(confidence=P.max(1), correct=P.argmax(1) == Y))
    same(top.compute().estimates, evaluate(confidence=P.max(1), correct=P.argmax(1) == Y).estimates)
    header = Header(class_names=tuple(NAMES))
    unknown = np.where(np.arange(N)[:, None] % 7 == 0, -1, YL)
    several, _ = scored(Predictions.of(multilabel=PL, labels=unknown, header=header))
    expected = evaluate(probabilities=PL, labels=unknown, valid=unknown >= 0, multilabel=True, class_names=NAMES)
    found = several.compute()
    same(found.estimates, expected.estimates)
    assert [group.columns for group in found.groups] == [group.columns for group in expected.groups]
    for group, other in zip(found.groups, expected.groups, strict=True):
        same(group.estimates, other.estimates)
    assert several.unlabelled == (unknown < 0).sum()


def test_a_confidence_alone_is_compared_by_what_both_models_have():
    whole, marks = scored(Predictions.of(probabilities=P, labels=Y))
    top, others = scored(Predictions.of(confidence=P.max(1) ** 2, correct=P.argmax(1) == Y))
    assert marks[0].keys.tolist() == others[0].keys.tolist()
    scores = [whole.compute(), top.compute()]
    found = compare(scores, [whole.headline, top.headline], level=0.95).differences[0].estimates
    assert found[Key.ACCURACY].value == 0
    assert found[Key.MEAN_GAP].high < 0
    assert not {Key.NLL, Key.BRIER, Key.CLASSWISE_ECE}.intersection(found)


@pytest.mark.slow
@pytest.mark.parametrize(("needs", "there"), [("probabilities", False), ("confidence", True)])
def test_a_metric_from_outside_is_measured_or_named_as_missing(needs, there):
    class Own(TopTwoAccuracy):
        def sums(self, batch):
            return super().sums(batch) if needs != "confidence" else {"count": torch.tensor(1), "hits": torch.tensor(1)}

    Own.needs = needs
    scores = evaluate(confidence=P.max(1), correct=P.argmax(1) == Y, metrics=[Own()])
    assert ("top2_accuracy" in scores.estimates, "top2_accuracy" in scores.missing) == (there, not there)
    assert evaluate(probabilities=P1, labels=Y1, metrics=[Own()])["top2_accuracy"].value == 1
    assert evaluate(probabilities=PL, labels=YL, multilabel=True, metrics=[Own()])["top2_accuracy"].value == 1
