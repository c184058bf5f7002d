"""The losses of every method are those in the repository: a refactoring changes none."""

import pytest

from benchmarks import traces
from counterpoise.recipes import METHODS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", METHODS)
def test_the_first_epoch_has_the_golden_losses(real_data, method):
    """The short form of `python -m benchmarks.traces`."""
    real_data("cifar10")
    found, expected = traces.trace(method, epochs=1), traces.golden(method)
    assert len(expected) == METHODS[method].members * 100 or METHODS[method].prunes
    members, steps = METHODS[method].members, traces.STEPS_AN_EPOCH
    whole = len(expected) // members
    beginnings = [loss for member in range(members) for loss in expected[member * whole : member * whole + steps]]
    assert traces.difference(found, beginnings) < traces.TOLERANCE
