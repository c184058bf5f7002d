"""Prediction sets against MAPIE's and TorchCP's, which are kept in `golden/conformal`."""

from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoise.calibrators import ConformalSets
from counterpoise.functional.conformal import aps_scores, conformal_threshold, raps_scores

GOLDEN = Path(__file__).parent / "golden" / "conformal"
INPUTS, MAPIE, TORCHCP = (dict(np.load(GOLDEN / f"{name}.npz")) for name in ("inputs", "mapie", "torchcp"))
ALPHAS = INPUTS["alphas"].tolist()

cases = pytest.mark.parametrize(("index", "alpha"), list(enumerate(ALPHAS)))
problems = pytest.mark.parametrize("name", ["few", "many"])


def samples(name):
    """Probabilities and labels to fit to, and probabilities to apply to."""
    p, labels = torch.from_numpy(INPUTS[f"{name}_probabilities"]).double(), torch.from_numpy(INPUTS[f"{name}_labels"])
    n = int(INPUTS[f"{name}_n"])
    return p[:n], labels[:n], p[n:]


def of_labels(scores, labels):
    return scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


@problems
@cases
def test_lac_is_that_of_mapie(name, index, alpha):
    p, labels, test = samples(name)
    sets = ConformalSets.fit(p.log(), labels, alpha=alpha)
    assert np.array_equal(sets(test.log()), MAPIE[f"{name}_lac"][..., index])


@problems
@cases
def test_randomised_aps_is_that_of_mapie_with_its_random_numbers(name, index, alpha):
    """MAPIE subtracts u p of the sum with p in it."""
    p, labels, test = samples(name)
    sets = ConformalSets.fit(p.log(), labels, alpha=alpha, score="aps", u=1 - MAPIE[f"{name}_u_calibration"])
    assert np.array_equal(sets(test.log(), u=1 - MAPIE[f"{name}_u_test"]), MAPIE[f"{name}_aps_randomized"][..., index])


@problems
@cases
def test_both_ways_to_round_aps_are_those_of_mapie(name, index, alpha):
    """Its threshold is of randomised scores in all cases; its sets have at least one label."""
    p, labels, test = samples(name)
    u = torch.from_numpy(1 - MAPIE[f"{name}_u_calibration"])
    threshold = conformal_threshold(of_labels(aps_scores(p, u=u), labels), alpha)
    top = test == test.amax(-1, keepdim=True)
    assert np.array_equal(top | (aps_scores(test) <= threshold), MAPIE[f"{name}_aps_false"][..., index])
    without_own = aps_scores(test, u=torch.zeros(len(test), dtype=torch.float64))
    assert np.array_equal(without_own < threshold, MAPIE[f"{name}_aps_true"][..., index])


@problems
@cases
def test_raps_is_that_of_mapie_with_the_settings_it_chose(name, index, alpha):
    p, labels, test = samples(name)
    penalty, free_ranks = MAPIE[f"{name}_raps_{index}_chosen"].tolist()
    rows = MAPIE[f"{name}_raps_rows"]
    u = torch.from_numpy(1 - MAPIE[f"{name}_u_calibration"][: len(rows)])
    scores = raps_scores(p[rows], penalty=penalty, free_ranks=int(free_ranks), u=u)
    threshold = conformal_threshold(of_labels(scores, labels[rows]), alpha)
    top = test == test.amax(-1, keepdim=True)
    found = top | (raps_scores(test, penalty=penalty, free_ranks=int(free_ranks)) <= threshold)
    assert np.array_equal(found, MAPIE[f"{name}_raps_{index}"])


@problems
@cases
@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
@pytest.mark.parametrize("by", ["all", "class"])
def test_sets_are_those_of_torchcp(name, index, alpha, score, by):
    p, labels, test = samples(name)
    penalty, free_ranks = TORCHCP["raps_chosen"].tolist()
    sets = ConformalSets.fit(
        p.log(), labels, alpha=alpha, score=score, by_class=by == "class", penalty=penalty, free_ranks=int(free_ranks)
    )
    found, theirs = sets(test.log()), torch.from_numpy(TORCHCP[f"{name}_{score}_{by}"][..., index])
    # TorchCP's sums over all labels are 1 give or take a rounding error, ours 1: where that is the threshold, its sets
    # have some of the least likely labels, and ours all.
    tied = (sets.scores(test.log()) - torch.tensor(sets.thresholds, dtype=torch.float64)).abs() < 1e-9
    assert torch.equal(found & ~tied, theirs & ~tied)
    assert bool(found[tied].all())
    assert score != "lac" or not bool(tied.any())
