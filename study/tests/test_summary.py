"""Statistics over seeds: SciPy's numbers, and marks only where differences allow them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from counterpoise_study.summary import Marks, adjusted_level, marks, paired_difference, student_quantile, summarise

VALUES = st.floats(0, 1, allow_nan=False, width=32)


def tables(seeds: int = 3):
    row = st.lists(st.one_of(VALUES, st.just(math.nan)), min_size=seeds, max_size=seeds)
    return st.lists(row, min_size=1, max_size=5)


@pytest.mark.parametrize("degrees", [1, 2, 4, 30])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.9958])
def test_quantile_is_exact(level, degrees):
    assert student_quantile(level, degrees) == pytest.approx(stats.t.interval(level, degrees)[1], rel=1e-12)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_summary_is_that_of_scipy(count):
    values = np.random.default_rng(count).normal(size=count)
    found = summarise(list(values))
    assert (found.mean, found.deviation) == pytest.approx((values.mean(), values.std(ddof=1)))
    expected = stats.t.interval(0.95, count - 1, loc=values.mean(), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)


def test_missing_values_do_not_count_and_one_value_has_no_interval():
    assert summarise([math.nan, 1.0, 2.0]) == summarise([1.0, 2.0])
    one, none = summarise([0.5, math.nan]), summarise([math.nan])
    assert (one.count, one.mean) == (1, 0.5)
    assert math.isnan(one.deviation)
    assert math.isnan(one.low)
    assert none.count == 0
    assert math.isnan(none.mean)


@pytest.mark.slow
@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=6))
def test_paired_interval_excludes_zero_exactly_where_the_t_test_rejects(pairs):
    first, second = np.array(pairs).T
    difference = second - first
    if difference.std() < 1e-6:
        return
    found, tested = paired_difference(list(first), list(second)), stats.ttest_rel(second, first)
    assert (found.low > 0 or found.high < 0) == (tested.pvalue < 0.05)


@given(tables(), st.booleans(), st.randoms(use_true_random=False))
def test_marks_do_not_depend_on_the_order(rows, higher, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    plain, shuffled = (marks(each, higher_is_better=higher) for each in (rows, [rows[index] for index in order]))
    for before, after in ((plain.best, shuffled.best), (plain.second, shuffled.second)):
        assert before == (None if after is None else order[after])


@given(tables(seeds=1), st.booleans())
def test_one_seed_marks_nothing(rows, higher):
    assert marks(rows, higher_is_better=higher) == Marks()


@given(st.lists(VALUES, min_size=3, max_size=3), st.integers(2, 5), VALUES, st.booleans())
def test_rows_that_differ_by_nothing_or_by_a_constant_are_not_marked(row, count, step, higher):
    same = [row] * count
    apart = [[value + index * step for value in row] for index in range(count)]
    assert marks(same, higher_is_better=higher) == marks(apart, higher_is_better=higher) == Marks()


def test_differences_that_are_all_the_same_have_no_interval():
    found = paired_difference([0.1, 0.2], [1.1, 1.2])
    assert (found.count, found.mean) == (2, pytest.approx(1.0))
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_best_and_second_are_marked_where_they_are_clear():
    rows = [[0.10, 0.11, 0.12], [0.50, 0.52, 0.51], [0.90, 0.91, 0.93], [math.nan] * 3]
    assert marks(rows, higher_is_better=True) == Marks(2, 1)
    assert marks(rows, higher_is_better=False) == Marks(0, 1)
    assert marks(rows, higher_is_better=None) == Marks()


def test_there_is_no_second_without_a_best_and_none_of_two():
    clear, tied = [0.10, 0.11, 0.12], [0.9, 0.91, 0.93]
    other = [0.92, 0.90, 0.91]
    assert marks([clear, tied, other], higher_is_better=True) == Marks()
    assert marks([clear, tied, other], higher_is_better=False) == Marks(0, None)
    assert marks([clear, tied], higher_is_better=False) == Marks(0, None)


def test_level_is_that_of_bonferroni():
    assert adjusted_level(13) == pytest.approx(1 - 0.05 / 12)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4, 4))
    rows[2] += 3
    found = marks(rows.tolist(), higher_is_better=True).best
    tests = [stats.ttest_rel(rows[2], rows[other]) for other in (0, 1, 3)]
    assert (found == 2) == all(each.pvalue < 0.05 / 3 and each.statistic > 0 for each in tests)
