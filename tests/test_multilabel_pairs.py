"""Paired differences of multilabel problems: decisions about one sample count for what they tell together."""

import numpy as np
import pytest

from counterpoise import compare

pytestmark = pytest.mark.slow


def test_a_label_that_is_asked_eight_times_tells_no_more_than_once():
    generator = np.random.default_rng(3)
    logits = 1.5 * generator.normal(size=(400, 1))
    labels = (generator.random((400, 1)) < 1 / (1 + np.exp(-logits))).astype(int)

    def differences(copies):
        models = {"calm": {"logits": logits.repeat(copies, 1)}, "sharp": {"logits": 1.6 * logits.repeat(copies, 1)}}
        found = compare(models, labels=labels.repeat(copies, 1), multilabel=True)
        return found.comparison.differences[0].estimates

    once, often = differences(1), differences(8)
    for key in ("accuracy", "nll", "ece", "positive_ece"):
        for limit in ("value", "low", "high"):
            assert getattr(often[key], limit) == pytest.approx(getattr(once[key], limit), abs=1e-9)
