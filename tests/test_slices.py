"""Groups whose intervals hold together: which are surely worse than the rest."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

import counterpoise
from counterpoise import Scores
from counterpoise.functional.proportions import clopper_pearson
from counterpoise.metrics.comparison import Evaluation, as_evaluation
from counterpoise.metrics.slices import against_whole, worst_slices
from counterpoise.report import numbers, slices, terminal
from counterpoise.report.data import severities
from counterpoise.report.page import write_report
from counterpoise.scoring import score_files


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 1)), min_size=1, max_size=5), st.floats(1e-6, 0.4))
def test_exact_limits_are_quantiles_of_beta_distributions(cases, error):
    trials = np.array([trial for trial, _ in cases])
    hits = np.array([round(trial * share) for trial, share in cases])
    low, high = clopper_pearson(torch.tensor(hits), torch.tensor(trials), error=error)
    with np.errstate(invalid="ignore"):
        expected_low = np.where(hits > 0, beta.ppf(error, hits, trials - hits + 1), 0.0)
        expected_high = np.where(hits < trials, beta.ppf(1 - error, hits + 1, trials - hits), 1.0)
    np.testing.assert_allclose(low, expected_low, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(high, expected_high, rtol=1e-7, atol=1e-12)


def sliced(sizes, wrong, *, columns=("region",)):
    """Slices of so many samples of confidence 0.8, of which so many are wrong; columns repeat the slice's parts."""
    names = [name for name, size in sizes.items() for _ in range(size)]
    labels = [int(row < wrong[name]) for name, size in sizes.items() for row in range(size)]
    by = {column: [name[place] for name in names] for place, column in enumerate(columns)}
    return counterpoise.evaluate(probabilities=[[0.8, 0.2]] * len(names), labels=labels, by=by)


def test_surely_bad_comes_before_perhaps_bad():
    scores = sliced({"a": 1000, "b": 1, "c": 500}, {"a": 150, "b": 1, "c": 200})
    assert [group.columns["region"] for group in worst_slices(scores)] == ["c", "a", "b"]
    assert [group.columns["region"] for group in worst_slices(scores, most=1)] == ["c"]
    signs = {group.columns["region"]: against_whole(scores, group, "accuracy") for group in scores.groups}
    assert signs == {"a": 1, "b": 0, "c": -1}


def test_simultaneous_intervals_are_wider_and_of_the_same_values():
    scores = sliced({"a": 100, "b": 400, "c": 50}, {"a": 20, "b": 60, "c": 10})
    for group in scores.groups:
        assert {"accuracy", "mean_gap", "ece", "positive_ece"} <= set(group.simultaneous) < set(group.estimates)
        for key, wide in group.simultaneous.items():
            own = group.estimates[key]
            assert wide.value == pytest.approx(own.value)
            assert wide.low <= own.low
            assert own.high <= wide.high
    assert Scores.from_json(scores.to_json()) == scores


def test_metrics_without_such_intervals_are_refused_by_name():
    scores = sliced({"a": 10, "b": 10}, {"a": 1, "b": 2})
    with pytest.raises(ValueError, match="no metric 'nll' with simultaneous intervals; they have accuracy"):
        worst_slices(scores, "nll")
    assert worst_slices(replace(scores, groups=[])) == []


def test_tables_put_the_worst_first_and_mark_it():
    scores = sliced({"a": 1000, "b": 500}, {"a": 150, "b": 200})
    first, second = slices.slice_table(scores).rows
    assert first[0].text == "region b"
    assert first[2].worse
    assert first[2].heat == slices.HEAT
    assert second[2].heat == 0
    assert first[3].text == f"{scores.groups[1].estimates['nll'].value:.4f}"  # no interval that holds for both
    text = terminal.as_text(counterpoise.Evaluation([scores]), risk=0.1)
    assert "hold for all 2 groups together" in text
    assert "1 is less accurate" in text


@pytest.mark.slow
def test_two_columns_make_a_table_by_both(tmp_path):
    sizes = dict.fromkeys(["ax", "ay", "bx", "by", "cx"], 100)
    scores = sliced(sizes, dict(zip(sizes, (10, 20, 30, 60, 20), strict=True)), columns=("region", "device"))
    accuracy, ece = slices.crossed_tables(scores)
    assert accuracy.columns == ("region", "device x", "device y")
    assert [[cell.text for cell in row] for row in accuracy.rows] == [
        ["a", "90.00", "80.00"],
        ["b", "70.00", "40.00"],
        ["c", "80.00", ""],
    ]
    assert max(cell.heat for row in accuracy.rows for cell in row) == slices.HEAT
    assert ece.title == "ECE, %, by region and device"
    assert slices.crossed_tables(sliced({"a": 10, "b": 10}, {"a": 1, "b": 2})) == []
    write_report(tmp_path / "page.html", counterpoise.Evaluation([scores]))
    page = (tmp_path / "page.html").read_text()
    assert 'class="worse heat4">40.00' in page


def test_missing_values_are_a_group_of_their_own_in_every_table():
    regions = ["north"] * 100 + [None] * 60 + ["south"] * 40
    sizes = (["small"] * 10 + [None] * 10) * 10
    right = torch.arange(200) % 3 != 0
    by = {"region": regions, "size": sizes}
    scores = counterpoise.evaluate(confidence=[0.7] * 200, correct=right, by=by)
    names = {row[0].text: row[1].text for row in slices.slice_table(scores).rows}
    expected = {
        f"region {region or 'not stated'}, size {size or 'not stated'}": str(count)
        for (region, size), count in Counter(zip(regions, sizes, strict=True)).items()
    }
    assert names == expected
    assert len(names) == len(scores.groups)
    written = numbers.estimates_csv(as_evaluation(scores))
    assert all(f'"Group: {name}"' in written for name in names)
    assert Evaluation.from_json(as_evaluation(scores).to_json()).models[0].groups == scores.groups
    (accuracy, _) = slices.crossed_tables(scores)
    assert [row[0].text for row in accuracy.rows] == ["north", "not stated", "south"]


@pytest.mark.slow
def test_nullable_columns_of_pandas_group_as_others_do():
    pandas = pytest.importorskip("pandas")
    plain = ["a", None, "b", "a"]
    given = {"confidence": [0.9, 0.8, 0.7, 0.6], "correct": [True, False, True, True]}
    expected = counterpoise.evaluate(**given, by={"part": plain}).groups
    for dtype in ("string", object, "category"):
        assert counterpoise.evaluate(**given, by={"part": pandas.Series(plain, dtype=dtype)}).groups == expected
    numbered = counterpoise.evaluate(**given, by={"part": pandas.Series([1, None, 2, 1], dtype="Int64")}).groups
    assert [group.columns["part"] for group in numbered] == ["1", "2", None]


def test_columns_that_mark_corrupted_samples_in_files_are_refused():
    given = {"confidence": [0.9, 0.8], "correct": [True, False]}
    with pytest.raises(ValueError, match=r"'severity' tells corrupted samples .* by=\{'severity_': \.\.\.\}"):
        counterpoise.evaluate(**given, by={"severity": ["mild", "grave"]})


@pytest.mark.slow
def test_a_screen_shows_the_worst_ten():
    sizes = {(str(number),): 20 for number in range(14)}
    scores = sliced(sizes, dict.fromkeys(sizes, 3))
    assert "4 more groups: --all" in terminal.as_text(counterpoise.Evaluation([scores]), risk=0.1)
    assert "more groups" not in terminal.as_text(counterpoise.Evaluation([scores]), risk=0.1, everything=True)


def grouped_file(tmp_path, rows):
    path = tmp_path / "p.csv"
    head = "prob_0,prob_1,label,region,device,domain,corruption,severity"
    path.write_text("\n".join([head, *(f"0.8,0.2,{label},{rest}" for label, rest in rows)]))
    return path


def test_two_columns_beside_a_domain_make_no_table_of_one_domain(tmp_path):
    rows = [
        (int(place % 10 < wrong), f"{region},{device},{domain},,")
        for domain, wrong in (("photo", 1), ("sketch", 6))
        for region in ("north", "south")
        for device in ("old", "new")
        for place in range(50)
    ]
    (scores,) = score_files([grouped_file(tmp_path, rows)], by=["region", "device"]).models
    assert {round(group.estimates["accuracy"].value, 1) for group in scores.groups} == {0.4, 0.9}
    assert slices.crossed_tables(scores) == []


def test_severities_of_groups_keep_their_names(tmp_path):
    rows = [
        (int(place % 10 < wrong), f"{region},,,{corruption},{severity}")
        for region, wrong in (("north", 1), ("south", 6))
        for corruption, severity in (("", 0), ("fog", 1), ("fog", 3))
        for place in range(50)
    ]
    (scores,) = score_files([grouped_file(tmp_path, rows)], by=["region"]).models
    found = severities(scores)
    assert {level: sorted(name for name, _ in each) for level, each in found.items()} == {
        0: ["clean, region north", "clean, region south"],
        1: ["fog, region north", "fog, region south"],
        3: ["fog, region north", "fog, region south"],
    }
    table = numbers.severity_table(scores)
    assert len(table.rows) == 4
    assert len({row[2].text for row in table.rows[:2]} | {row[2].text for row in table.rows[2:]}) == 3
    assert numbers.severity_means(scores).columns[1] == "groups"
