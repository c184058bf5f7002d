"""Separators and decimal points are those of the lines, whatever names, prices and the first row look like."""

import numpy as np
import pandas as pd
import pytest

from counterpoise.predictions import read_predictions
from prediction_tables import csv_file

ROWS = 30
RNG = np.random.default_rng(1)
P = RNG.dirichlet(np.ones(3), ROWS).round(6)
P[0] = [1, 0, 0]
Y = RNG.integers(0, 3, ROWS)
NAMES = ["cat", "dog", "hamster"]


def comma(number):
    return f"{number:.6f}".rstrip("0").rstrip(".").replace(".", ",")


@pytest.mark.parametrize("separator", [";", "\t", "|"])
@pytest.mark.parametrize("whole", [1, 5])
def test_a_first_row_of_whole_numbers_tells_no_decimal_point(tmp_path, separator, whole):
    values = P.copy()
    values[:whole] = [0, 1, 0]
    rows = "".join(separator.join([*map(comma, row), str(label)]) + "\n" for row, label in zip(values, Y, strict=True))
    table = read_predictions(csv_file(tmp_path, separator.join(["prob_0", "prob_1", "prob_2", "label"]) + "\n" + rows))
    np.testing.assert_allclose(table.values, values, atol=1e-6)


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize("decimal", [".", ","])
def test_a_column_that_is_written_otherwise_is_no_matter(tmp_path, separator, decimal):
    other = {".": "0,5", ",": "0.5"}[decimal]
    frame = pd.DataFrame({f"prob_{name}": P[:, k] for k, name in enumerate(NAMES)})
    frame = pd.concat([pd.DataFrame({"price": [other] * ROWS}), frame.assign(label=np.array(NAMES)[Y])], axis=1)
    frame.to_csv(tmp_path / "p.csv", sep=separator, decimal=decimal, index=False)
    table = read_predictions(tmp_path / "p.csv")
    np.testing.assert_allclose(table.values, P, atol=1e-5)
    np.testing.assert_array_equal(table.labels, Y)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize(
    "names", [["a,b,c,d", "e,f,g,h", "i,j,k,l"], ["a;b;c", "d;e;f", "g;h;i"], ["a|b", "c|d", "e|f"]]
)
def test_names_with_another_separator_in_them(tmp_path, separator, names):
    frame = pd.DataFrame({f"prob_{name}": P[:, k] for k, name in enumerate(names)})
    frame.assign(label=np.array(names)[Y]).to_csv(tmp_path / "p.csv", sep=separator, index=False)
    table = read_predictions(tmp_path / "p.csv")
    assert table.header.class_names == tuple(names)
    np.testing.assert_allclose(table.values, P, atol=1e-5)
    np.testing.assert_array_equal(table.labels, Y)


def test_a_text_that_is_too_long_to_be_a_name_is_passed_over(tmp_path):
    frame = pd.DataFrame({f"prob_{name}": P[:, k] for k, name in enumerate(NAMES)} | {"label": np.array(NAMES)[Y]})
    frame["note"] = ["x"] * (ROWS - 1) + ["y," * 100_000]
    frame.to_csv(tmp_path / "p.csv", index=False)
    np.testing.assert_array_equal(read_predictions(tmp_path / "p.csv").labels, Y)
