"""Calibrators beside classes that a model rules out, with a logit of -inf."""

import numpy as np
import pytest

from test_calibrators import MAKE, TAKES_MASKED, example, fitted


@pytest.mark.parametrize("name", TAKES_MASKED)
def test_a_masked_class_stays_impossible(name):
    logits, labels = example(0, k=5)
    masked = np.random.default_rng(0).random(logits.shape) < 0.3
    masked[:, 4] = True  # and one class is masked everywhere
    labels = labels % 4
    masked[np.arange(len(labels)), labels] = False
    z = np.where(masked, -np.inf, logits)
    log_p = MAKE[name]().fit(z, labels)(z).numpy()
    assert not np.isnan(log_p).any()
    np.testing.assert_array_equal(np.isneginf(log_p), masked)
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1.0)
    # The class that is never possible changes nothing for the others.
    np.testing.assert_allclose(MAKE[name]().fit(z[:, :4], labels)(z[:, :4]), log_p[:, :4], atol=1e-6)


@pytest.mark.parametrize("name", ["matrix", "dirichlet"])
def test_a_masked_class_is_refused_where_classes_mix(name):
    calibrator, logits, labels = fitted(name)
    z = logits.copy()
    z[7, (labels[7] + 1) % 4] = -np.inf
    for call in (lambda: calibrator(z), lambda: MAKE[name]().fit(z, labels)):
        with pytest.raises(ValueError, match=rf"logits row 7, column {(labels[7] + 1) % 4} is -inf.*VectorScaling"):
            call()
