"""The networks that methods begin with: the primary's weights depend on the seed alone, auxiliaries' also on their place."""

import itertools

import pytest
import torch
from torch import nn

from counterpoise.models import Backbone, build_model
from counterpoise.recipes import Recipe
from counterpoise.training.networks import recipe_models
from counterpoise.training.run import member_seeds

SEEDS = (0, 1, 7)
METHODS = ("ce", "mte1", "mte2", "dml", "de3")
SMALL = Backbone("cnn", width=4)


def recipe(method: str, seed: int, rule: str = "by-seed") -> Recipe:
    return Recipe(method=method, seed=seed, primary=SMALL, auxiliary=SMALL, initial_weights=rule)


def networks(found: Recipe) -> list[nn.Module]:
    """Of the run, or of an ensemble's first member."""
    return list(recipe_models(found, classes=3, channels=3)(member_seeds(found)[0]))


def built(seed: int) -> nn.Module:
    return build_model(SMALL, classes=3, channels=3, seed=seed)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_primary_of_every_method_begins_with_the_same_weights(seed):
    for method in METHODS:
        assert same(networks(recipe(method, seed))[0], built(seed)), method


def test_an_auxiliary_keeps_its_weights_when_another_joins_it():
    for seed in SEEDS:
        one, two = networks(recipe("mte1", seed)), networks(recipe("mte2", seed))
        assert same(one[1], two[1])


def test_no_two_networks_of_any_run_begin_with_the_same_weights():
    found = [network for seed in range(20) for network in networks(recipe("mte2", seed))]
    assert not any(same(one, other) for one, other in itertools.combinations(found, 2))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("method", "count"), [("ce", 1), ("mte1", 2), ("dml", 2), ("mte2", 3)])
def test_by_count_weights_depend_on_how_many_networks_a_method_has(method, count, seed):
    for index, network in enumerate(networks(recipe(method, seed, "by-count"))):
        assert same(network, built(count * seed + index))


def test_by_count_members_keep_their_seeds():
    assert member_seeds(recipe("de3", 7, "by-count")) == [1_000_010, 2_000_013, 3_000_016]
    assert member_seeds(recipe("ce", 7, "by-count")) == [7]
