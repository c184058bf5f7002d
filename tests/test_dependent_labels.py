"""Intervals and floors of several labels a sample, which depend on each other."""

import numpy as np
import pytest

from counterpoise.functional.calibration import expected_calibration_error
from counterpoise.functional.intervals import wilson_interval
from counterpoise.metrics import Key
from counterpoise.metrics.jackknife import left_out
from counterpoise.metrics.standard import bin_sums_of
from test_forms import correlated, pooled


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "least"), [(30, 0.85), pytest.param(100, 0.9, marks=pytest.mark.long)])
def test_pooled_intervals_cover_though_the_labels_of_a_sample_are_dependent(runs, least):
    """Nominal 95% intervals of sets with 8 correlated labels: chance leaves most of them, and independence fewer."""
    rng, covered, naive = (
        np.random.default_rng(1),
        dict.fromkeys((Key.ACCURACY, Key.MEAN_GAP, Key.ECE), 0),
        0,
    )
    p = np.linspace(0.05, 0.95, 100_001)
    truth = {Key.ACCURACY: np.maximum(p, 1 - p).mean(), Key.MEAN_GAP: 0.0, Key.ECE: 0.0}
    for _ in range(runs):
        probabilities, labels = correlated(rng, 300, 8)
        headline = pooled(probabilities, labels)
        found, accuracy = (
            left_out(headline.grouped(), headline.ranks, clustered=True),
            ((probabilities > 0.5) == labels).mean(),
        )
        for key, value in truth.items():
            low, high = found[key].interval(accuracy, room=0.0, level=0.95)
            covered[key] += low <= value <= high
        low, high = wilson_interval(accuracy * labels.size, labels.size)
        naive += low <= truth[Key.ACCURACY] <= high
    assert min(covered.values()) >= least * runs, covered
    assert naive < 0.85 * runs


@pytest.mark.slow
def test_dependent_labels_raise_the_noise_floor():
    rng, errors, floors = np.random.default_rng(2), [], []
    for _ in range(40):
        headline = pooled(*correlated(rng, 400, 8))
        floors.append(left_out(headline.grouped(), headline.ranks, clustered=True)[Key.ECE].floor)
        errors.append(float(expected_calibration_error(bin_sums_of(headline.total(1)))))
    assert np.mean(errors) == pytest.approx(np.mean(floors), rel=0.15)
