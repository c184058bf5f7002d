"""What is known of samples is found however its column is called, and read whatever type it has."""

import re

import pandas as pd
import pytest

from counterpoise.predictions import Columns, PredictionFileError, open_predictions, read_predictions
from counterpoise.scoring import score_files

SPELLED = {
    "in_distribution": ["in_distribution", "In_Distribution", "inDistribution", "in distribution", "IN-DISTRIBUTION"],
    "severity": ["severity", "Severity", "SEVERITY "],
    "corruption": ["corruption", "Corruption"],
    "domain": ["domain", "Domain"],
    "split": ["split", "Split"],
    "data_set": ["data_set", "Data Set", "dataSet"],
}
VALUES = {
    "in_distribution": [True, False, True, True],
    "severity": [0, 3, 1, 0],
    "corruption": [None, "fog", "snow", None],
    "domain": ["eu", "us", "us", "eu"],
    "split": ["test"] * 4,
    "data_set": ["a", "b", "a", "b"],
}


def written(folder, suffix="csv", **columns):
    frame = pd.DataFrame(
        {"prob_0": [0.25, 0.5, 1.0, 0.0], "prob_1": [0.75, 0.5, 0.0, 1.0], "label": [1, 0, 0, 1]} | columns
    )
    path = folder / f"p.{suffix}"
    (frame.to_csv if suffix == "csv" else frame.to_parquet)(path, index=False)
    return path


def values_of(table, known):
    column = getattr(table, known)
    return column.texts() if known not in ("in_distribution", "severity") else column.tolist()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(("known", "name"), [(known, name) for known, names in SPELLED.items() for name in names])
def test_capitals_and_separators_do_not_matter(tmp_path, suffix, known, name):
    table = read_predictions(written(tmp_path, suffix, **{name: VALUES[known]}))
    assert values_of(table, known) == VALUES[known]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("known", "written_as", "read_as"),
    [
        ("severity", [0.0, 3.0, None, 1.0], [0, 3, -1, 1]),
        ("severity", ["0", "3", None, "1.0"], [0, 3, -1, 1]),
        ("domain", [1, 2, 2, 1], ["1", "2", "2", "1"]),
        ("split", [0, 0, 0, 0], ["0"] * 4),
        ("in_distribution", ["True", "no", "yes", "TRUE"], [True, False, True, True]),
    ],
)
def test_types(tmp_path, suffix, known, written_as, read_as):
    assert values_of(read_predictions(written(tmp_path, suffix, **{known: written_as})), known) == read_as


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_severities_in_words_are_no_severities(tmp_path, suffix):
    file = open_predictions(written(tmp_path, suffix, Severity=["low", "high", "low", "low"]))
    (table,) = file.batches()
    assert table.severity is None
    assert "ignored: 'Severity'" in file.notices[0]
    with pytest.raises(
        PredictionFileError, match=r"column 'Severity' \(--by\) holds text, not whole numbers; rename it"
    ):
        score_files([written(tmp_path, suffix, Severity=["low", "high", "low", "low"])], by="severity")
    path = written(tmp_path, suffix, severity=["none", "3", "1", "none"])
    with pytest.raises(PredictionFileError, match="row 0, column 'severity' is none; it is 0 for clean samples"):
        read_predictions(path)


def test_two_columns_of_one_meaning(tmp_path):
    path = written(tmp_path, domain=VALUES["domain"], Domain=["x"] * 4)
    assert values_of(read_predictions(path), "domain") == VALUES["domain"]
    path = written(tmp_path, DOMAIN=VALUES["domain"], Domain=["x"] * 4)
    with pytest.raises(PredictionFileError, match="'DOMAIN' and 'Domain' are both called 'domain'; rename one"):
        read_predictions(path)


@pytest.mark.slow
def test_what_they_mean_for_scores_is_the_same(tmp_path, few_resamples):
    columns = {"in_distribution": [True, True, True, False], "severity": [0, 3, 0, 0], "domain": VALUES["domain"]}
    plain = score_files([written(tmp_path, **columns)]).models[0]
    spelled = {re.sub("_", " ", name).title(): values for name, values in columns.items()}
    for by in ((), ("domain",), ("Domain",)):
        found = score_files([written(tmp_path, **spelled)], by=by).models[0]
        assert (found.estimates, found.groups, found.ood) == (plain.estimates, plain.groups, plain.ood)
    path = written(tmp_path, Model=["m", "m", "n", "n"])
    assert [model.source.name for model in score_files([path], read_as="models").models] == ["m", "n"]


def test_a_class_may_be_called_so(tmp_path):
    (tmp_path / "p.csv").write_text("prob_severity,prob_domain,label\n0.25,0.75,domain\n")
    table = read_predictions(tmp_path / "p.csv")
    assert (table.labels.tolist(), table.domain, table.severity) == ([1], None, None)
    (tmp_path / "p.csv").write_text("severity,domain,kind\n0.25,0.75,domain\n")
    table = read_predictions(tmp_path / "p.csv", Columns(probabilities="severity,domain", label="kind"))
    assert (table.labels.tolist(), table.domain, table.severity) == ([1], None, None)
