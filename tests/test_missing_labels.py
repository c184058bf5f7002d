"""Texts that stand for no label, as other programs write them, unless they are the names of classes."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather

from counterpoise.predictions import AmbiguousInputError, Columns, PredictionFileError, read_predictions
from counterpoise.predictions.names import MISSING

ROWS = 40
RNG = np.random.default_rng(6)
P = RNG.dirichlet(np.ones(3), ROWS)
Y = RNG.integers(0, 3, ROWS)
LEFT = np.arange(ROWS) % 7 == 0
WANTED = np.where(LEFT, -1, Y)


def written(folder, form, names, labels, suffix, **more):
    columns = {form.format(name): P[:, k] for k, name in enumerate(names)} if form else {"probs": list(P)}
    frame = pd.DataFrame(columns | {"label": labels} | more)
    path = folder / f"p.{suffix}"
    if suffix == "csv":
        frame.to_csv(path, index=False)
    elif suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path, index=False)
    return path


def answered(path, reason):
    """The table after the question whether a word is a class, answered by the choice of this reason."""
    with pytest.raises(AmbiguousInputError, match="may be a class or a missing value") as asked:
        read_predictions(path)
    (choice,) = (choice for choice, why in asked.value.choices if re.fullmatch(reason, why))
    return read_predictions(path, Columns(**choice))


def with_gaps(labels, word):
    return [word if left else label for left, label in zip(LEFT, labels, strict=True)]


@pytest.mark.parametrize("word", MISSING)
@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize(
    ("form", "names"), [("prob_{}", "cat,dog,owl"), ("{}", "cat,dog,owl"), ("prob_{}", "0,1,2"), ("", "0,1,2")]
)
def test_they_are_missing(tmp_path, word, suffix, form, names):
    names = names.split(",")
    labels = with_gaps(np.array(names)[Y].tolist(), word)
    table = read_predictions(written(tmp_path, form, names, labels, suffix))
    np.testing.assert_array_equal(table.labels, WANTED)


@pytest.mark.parametrize("word", ["NA", "None", "nan", "N/A"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_class_may_be_called_so(tmp_path, word, suffix):
    names = ["EU", word, "US"]
    labels = np.array(names)[Y].tolist()
    for form in ("prob_{}", "{}", "logit_{}"):
        np.testing.assert_array_equal(read_predictions(written(tmp_path, form, names, labels, suffix)).labels, Y)
    path = written(tmp_path, "prob_{}", "012", labels, suffix)
    for columns in ({}, {"class_names": "a,b,c"}):
        with pytest.raises((AmbiguousInputError, PredictionFileError)):
            read_predictions(path, Columns(**columns))
    np.testing.assert_array_equal(read_predictions(path, Columns(class_names=",".join(names))).labels, Y)
    top = {"pred": np.array(names)[P.argmax(1)], "confidence": P.max(1), "label": labels}
    frame = pd.DataFrame(top)
    (frame.to_csv if suffix == "csv" else frame.to_parquet)(tmp_path / f"t.{suffix}", index=False)
    table = answered(tmp_path / f"t.{suffix}", "if '.*' is a class")
    np.testing.assert_array_equal(table.labels == 0, P.argmax(1) == Y)


def test_a_category_may_be_called_so(tmp_path):
    names = ["US", "NA", "EU"]
    labels = pd.Categorical(np.array(names)[Y], categories=names)
    path = written(tmp_path, "", names, labels, "parquet")
    with pytest.raises(AmbiguousInputError, match=r"'EU', 'NA', 'US'.*, and nothing says which of the 3 outputs"):
        read_predictions(path)  # the order of categories is that of the alphabet, as pandas makes them
    table = read_predictions(path, Columns(class_names=",".join(names)))
    np.testing.assert_array_equal(table.labels, Y)
    assert table.header.class_names == tuple(names)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_beside_predicted_classes_and_in_rows(tmp_path, suffix):
    names = ["cat", "dog", "owl"]
    top = {"pred": np.array(names)[P.argmax(1)], "confidence": P.max(1), "label": with_gaps(np.array(names)[Y], "NA")}
    frame = pd.DataFrame(top)
    (frame.to_csv if suffix == "csv" else frame.to_parquet)(tmp_path / f"t.{suffix}", index=False)
    labels = answered(tmp_path / f"t.{suffix}", "if 'NA' is a missing value").labels
    np.testing.assert_array_equal(labels == -1, LEFT)
    np.testing.assert_array_equal(labels[~LEFT] == 0, (P.argmax(1) == Y)[~LEFT])
    rows = {f"label_{name}": with_gaps((k == Y).astype(int).astype(str), "NA") for k, name in enumerate(names)}
    frame = pd.DataFrame({f"prob_{name}": P[:, k] for k, name in enumerate(names)} | rows)
    (frame.to_csv if suffix == "csv" else frame.to_parquet)(tmp_path / f"r.{suffix}", index=False)
    np.testing.assert_array_equal(read_predictions(tmp_path / f"r.{suffix}", Columns(one_hot=True)).labels, WANTED)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_every_type_of_text(tmp_path, kind):
    labels = pa.array(with_gaps(np.array(["cat", "dog", "owl"])[Y].tolist(), "NA"))
    labels = labels.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else labels.cast(kind)
    columns = {f"prob_{name}": P[:, k] for k, name in enumerate(["cat", "dog", "owl"])}
    feather.write_feather(pa.table(columns | {"label": labels}), tmp_path / "p.feather", compression="uncompressed")
    np.testing.assert_array_equal(read_predictions(tmp_path / "p.feather").labels, WANTED)


def test_other_words_are_refused(tmp_path):
    names = ["cat", "dog", "owl"]
    path = written(tmp_path, "prob_{}", names, with_gaps(np.array(names)[Y], "unknown"), "csv")
    with pytest.raises(PredictionFileError, match="row 0, column 'label' is 'unknown', neither"):
        read_predictions(path)
