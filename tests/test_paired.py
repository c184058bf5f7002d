"""Intervals of paired differences: against SciPy, and coverage by enumeration and simulation."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from counterpoise.functional.paired import (
    jackknife_interval,
    paired_accuracy_interval,
    paired_mean_interval,
    power_sums,
)

SAMPLES = 2_000
LARGEST = 60
"""Discordant samples of either kind; more than these have no probability that matters in what is enumerated."""


@pytest.fixture(scope="module")
def limits():
    """Lower and upper limits `[LARGEST, LARGEST]` for every pair of discordant counts."""
    table = [[paired_accuracy_interval(b, c, SAMPLES) for c in range(LARGEST)] for b in range(LARGEST)]
    return np.moveaxis(np.array(table), -1, 0)


@pytest.mark.parametrize("gained", [0.0, 0.2, 1.0, 4.0, 10.0, 25.0])
@pytest.mark.parametrize("lost", [0.0, 0.05, 0.5, 2.0, 5.0, 25.0])
def test_the_paired_difference_in_accuracy_is_covered_whatever_the_rates(limits, gained, lost):
    """Counts expected in 2,000 samples: Wald's interval covers 2% of them where they are small."""
    low, high = limits
    counts = np.arange(LARGEST)
    given_gained = [stats.binom.pmf(counts, SAMPLES - b, lost / (SAMPLES - gained)) for b in counts]
    joint = stats.binom.pmf(counts, SAMPLES, gained / SAMPLES)[:, None] * np.stack(given_gained)
    truth = (gained - lost) / SAMPLES
    assert joint.sum() == pytest.approx(1, abs=1e-6)
    assert joint[(low <= truth) & (truth <= high)].sum() >= 0.949


@pytest.mark.slow
def test_the_paired_difference_in_accuracy_agrees_with_mcnemar(limits):
    """It excludes 0 only where the mid-p test does, and wherever the exact test does."""
    low, _ = limits
    for b in range(LARGEST):
        for c in range(b):
            exact = stats.binomtest(b, b + c).pvalue
            mid = exact - stats.binom.pmf(b, b + c, 0.5)
            assert low[b, c] <= 0 or mid < 0.05, (b, c)
            assert low[b, c] > 0 or exact >= 0.05, (b, c)


def test_four_against_none_is_within_chance():
    low, high = paired_accuracy_interval(4, 0, SAMPLES)
    assert low < 0 < high


def test_models_that_never_differed_may_differ():
    """As much as a rate of which none was seen, which is Wilson's."""
    high = stats.binomtest(0, SAMPLES).proportion_ci(0.95, method="wilson").high
    assert paired_accuracy_interval(0, 0, SAMPLES) == pytest.approx((-high, high))


@pytest.mark.parametrize(("gained", "lost", "count"), [(3, 1, 10), (0, 10, 10), (5, 5, 10), (40, 2, 300)])
def test_exchanging_the_models_changes_the_sign(gained, lost, count):
    low, high = paired_accuracy_interval(gained, lost, count)
    assert paired_accuracy_interval(lost, gained, count) == pytest.approx((-high, -low))
    assert -1 <= low <= (gained - lost) / count <= high <= 1


def test_a_paired_mean_takes_the_kurtosis_of_scipy():
    difference = torch.tensor(stats.t(3).rvs(500, random_state=0))
    kurtosis = stats.kurtosis(difference.numpy(), fisher=False)
    half = 1.959963984540054 * stats.sem(difference.numpy()) * math.sqrt(1 + 1.959963984540054**2 * kurtosis / 500)
    mean = float(difference.mean())
    assert paired_mean_interval(power_sums(difference)) == pytest.approx((mean - half, mean + half), rel=1e-9)


def test_a_paired_mean_moves_with_its_differences():
    """Powers are of the differences as they are; the moments that count are about the mean."""
    difference = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    low, high = paired_mean_interval(power_sums(difference))
    assert paired_mean_interval(power_sums(difference + 20)) == pytest.approx((low + 20, high + 20), abs=1e-6)


def test_power_sums_add_up():
    difference = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = sum(power_sums(part) for part in difference.split(7))
    assert torch.allclose(parts, power_sums(difference), rtol=1e-12, atol=0)


def test_a_paired_mean_of_one_sample_has_no_interval_and_of_equal_ones_no_width():
    assert all(math.isnan(limit) for limit in paired_mean_interval(power_sums(torch.ones(1))))
    assert paired_mean_interval(power_sums(torch.full((3,), 0.5))) == (0.5, 0.5)


@pytest.mark.parametrize("expected", [1.5, 4.0, 12.0])
def test_a_paired_mean_covers_with_few_differences(expected):
    """Two thirds of a few differences are gains, of sizes that vary; all others are nearly 0."""
    generator = torch.Generator().manual_seed(0)
    repetitions, covered, normal = 400, 0, 0
    truth = expected / SAMPLES / 3
    for _ in range(repetitions):
        size = 0.5 + torch.rand(SAMPLES, generator=generator, dtype=torch.float64)
        sign = torch.where(torch.rand(SAMPLES, generator=generator) < 2 / 3, 1.0, -1.0)
        differs = torch.rand(SAMPLES, generator=generator) < expected / SAMPLES
        difference = torch.where(differs, size * sign, 1e-3 * (size - 1))
        low, high = paired_mean_interval(power_sums(difference))
        half = 1.96 * float(difference.std()) / math.sqrt(SAMPLES)
        covered += low <= truth <= high
        normal += abs(float(difference.mean()) - truth) <= half
    assert covered / repetitions >= min(0.935, 1 - math.exp(-expected)) - 0.02
    assert covered >= normal


def test_the_jackknife_of_a_mean_is_students_interval():
    values = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left_out = (values.sum() - values) / 39
    expected = stats.t.interval(0.95, 39, loc=float(values.mean()), scale=stats.sem(values.numpy()))
    assert jackknife_interval(float(values.mean()), left_out) == pytest.approx(expected, rel=1e-4)


def test_the_jackknife_leaves_room_for_a_step_that_no_sample_shows():
    assert jackknife_interval(0.1, torch.full((100,), 0.1), room=0.2) == pytest.approx((-0.1, 0.3))
    undefined = torch.full((100,), 0.1).index_fill(0, torch.tensor([3]), math.nan)
    assert all(math.isnan(limit) for limit in jackknife_interval(0.1, undefined, room=0.2))
