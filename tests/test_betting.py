"""E-processes by betting: against plain products, exact limits, and Ville's inequality by simulation."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.functional.betting import (
    BETS,
    log_wealth,
    mean_limits,
    share_log_wealth,
    start_weight,
)
from counterpoise.monitoring.evidence import (
    ERROR_ON_REFERENCE,
    PARTS,
    Fortunes,
    Tallies,
    alarm_threshold,
    bounds_of,
    log_products,
    reference_error,
)


@given(st.lists(st.sampled_from([0.0, 0.25, 0.6, 1.0]), min_size=1, max_size=12), st.floats(0.05, 1.0))
def test_wealth_is_the_product_of_single_bets(seen, mean):
    values = torch.tensor([0.0, 0.25, 0.6, 1.0], dtype=torch.float64)
    counts = torch.tensor([[seen.count(float(value)) for value in values]], dtype=torch.float64)
    found = log_wealth(counts, values, torch.tensor(mean, dtype=torch.float64))[0].exp()
    for place, bet in enumerate(BETS):
        assert float(found[place]) == pytest.approx(math.prod(1 - bet + bet * x / mean for x in seen))


def test_wealth_of_shares_is_that_of_ones_and_zeros():
    hits, trials = torch.tensor([[3.0, 0.0]]).double(), torch.tensor([[7.0]]).double()
    share = torch.tensor([0.2, 0.5]).double()
    found = share_log_wealth(hits, trials, share)
    for place in range(2):
        counts = torch.tensor([[7 - hits[0, place], hits[0, place]]]).double()
        assert torch.allclose(found[0, place], log_wealth(counts, torch.tensor([0.0, 1.0]).double(), share[place])[0])


def test_one_window_with_the_null_mean_is_fair():
    """Over all outcomes of one sample, the mean of the wealth is 1 where the mean is m, and less where it is lower."""
    values = torch.linspace(0, 1, 11).double()
    chances = torch.softmax(torch.arange(11).double() / 4, 0)
    mean = chances @ values
    wealth = log_wealth(torch.eye(11).double(), values, mean).exp()
    assert torch.allclose(chances @ wealth, torch.ones(len(BETS)).double())
    assert bool((chances @ log_wealth(torch.eye(11).double(), values, mean + 0.05).exp() < 1).all())


def test_limits_of_a_mean_hold_as_often_as_they_say():
    generator = torch.Generator().manual_seed(0)
    values = torch.linspace(0, 1, 21).double()
    chances = torch.softmax(5 * values, 0)
    for samples in (20, 500):
        drawn = torch.multinomial(chances, 500 * samples, replacement=True, generator=generator).reshape(500, -1)
        counts = torch.nn.functional.one_hot(drawn, 21).sum(1).double()
        low, high = mean_limits(counts, values, error=0.05)
        truth = float(chances @ values)
        assert float((low > truth).double().mean()) <= 0.05
        assert float((high < truth).double().mean()) <= 0.05
    # With many samples, not much wider than normal limits at the level that eight bets leave.
    deviation = math.sqrt(float(chances @ (values - truth) ** 2) / samples)
    assert float((high - low).mean()) < 2 * 3.6 * deviation


def test_start_weights_are_a_share_of_one():
    weights = [start_weight(n + 1) - start_weight(n) for n in range(5000)]
    assert all(first > second > 0 for first, second in pairwise(weights))
    assert start_weight(0) == 0
    assert sum(weights) == pytest.approx(start_weight(5000))
    assert start_weight(10**9) < 1


def test_fortunes_are_the_sum_over_starts_of_plain_products():
    generator = torch.Generator().manual_seed(0)
    products = 0.3 * torch.randn(6, 2, len(BETS), generator=generator).double()
    indices = [0, 1, 4, 5, 9, 10]  # windows without samples lie between
    fortunes = Fortunes.none((2, len(BETS)))
    for index, product in zip(indices, products, strict=True):
        fortunes.pass_window(index, product)
    total = torch.zeros(2, len(BETS)).double()
    best = torch.zeros(2, len(BETS)).double()
    for start in range(11):
        own = (start_weight(start + 1) - start_weight(start)) * products[
            [place for place, index in enumerate(indices) if index >= start]
        ].sum(0).exp()
        total += own
        best = torch.maximum(best, own)
    expected = total.mean() + 1 - start_weight(11)
    assert float(fortunes.log_evidence().exp()) == pytest.approx(float(expected))
    assert float(fortunes.log_best.exp().max()) >= float(best.max()) - 1e-12


def test_the_error_is_split_once():
    for level in (0.9, 0.95, 0.99):
        spent = len(PARTS) * (reference_error(level) + 1 / alarm_threshold(level))
        assert spent == pytest.approx(1 - level)
    assert 0 < ERROR_ON_REFERENCE < 1


def simulated(shape, generator, *, samples, right, share):
    """Counts of a model with confidences 0.5 to 0.95 in ten cells, right with the probabilities that are given."""
    chances = torch.cat([share * right, share * (1 - right)])
    drawn = torch.multinomial(chances, math.prod(shape) * samples, replacement=True, generator=generator)
    outcomes = torch.nn.functional.one_hot(drawn.reshape(-1, samples), 20).sum(1).double()
    classes = torch.randint(0, 3, (len(outcomes), samples), generator=generator)
    classes = torch.nn.functional.one_hot(classes, 3).sum(1).double()
    hits, misses = outcomes[:, :10], outcomes[:, 10:]
    return Tallies(*(part.reshape(*shape, -1) for part in (classes, hits + misses, hits, misses)))


VALUES = (0.5 + torch.arange(10) * 0.05).double()
SHARE = torch.softmax(torch.arange(10).double() / 3, 0)


def ever(*, streams, windows, samples, right, level=0.95):
    generator = torch.Generator().manual_seed(0)
    reference = simulated((streams,), generator, samples=500, right=VALUES, share=SHARE)
    bounds = bounds_of(reference, VALUES, level=level)
    products = log_products(simulated((streams, windows), generator, samples=samples, right=right, share=SHARE), bounds)
    raised = {}
    for part, logs in products.items():
        fortunes, found = Fortunes.none(tuple(logs[:, 0].shape)), torch.zeros(streams, dtype=torch.bool)
        for window in range(windows):
            fortunes.pass_window(window, logs[:, window])
            found |= fortunes.log_evidence() >= math.log(alarm_threshold(level))
        raised[part] = found
    return raised


@pytest.mark.slow
def test_without_a_change_few_streams_ever_alarm():
    raised = ever(streams=200, windows=150, samples=20, right=VALUES, level=0.8)
    assert set(raised) == set(PARTS)
    assert float(torch.stack([*raised.values()]).any(0).double().mean()) <= 0.2


def test_with_a_change_the_right_alarm_is_raised():
    raised = ever(streams=50, windows=100, samples=20, right=VALUES - 0.25)
    assert bool(raised["accuracy"].all())
    assert bool(raised["calibration"].all())
    assert not bool(raised["classes"].any())
    assert not bool(raised["confidence"].any())


@pytest.mark.slow
@settings(max_examples=20)
@given(st.permutations(range(6)))
def test_the_order_within_a_window_does_not_matter(order):
    generator = torch.Generator().manual_seed(1)
    bounds = bounds_of(simulated((), generator, samples=200, right=VALUES, share=SHARE), VALUES, level=0.95)
    parts = simulated((6,), generator, samples=5, right=VALUES, share=SHARE)
    summed = [Tallies(*(column[list(order)].sum(0, keepdim=True) for column in parts)) for order in (order, range(6))]
    first, second = (log_products(each, bounds) for each in summed)
    assert all(torch.equal(first[part], second[part]) for part in first)
    # And a window's product is that of its parts.
    apart = log_products(parts, bounds)
    assert all(torch.allclose(apart[part].sum(0), first[part][0]) for part in first)
