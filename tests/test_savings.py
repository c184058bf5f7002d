"""What auxiliaries leave out as recipes have it: which options go together, and what is kept, saved and gone on with."""

import pytest
import safetensors.torch
import torch
import torchvision
from torch import nn

from counterpoise.cli.train import with_method
from counterpoise.objectives import Cached, MutualTransport, Seldom, SelfDistillation, SharedTrunk, halfway
from counterpoise.objectives.models import network_in
from counterpoise.recipes import METHODS, Recipe
from counterpoise.recipes.config import DataOptions
from counterpoise.recipes.savings import SavingOptions
from counterpoise.training import resume, train
from counterpoise.training.optimizers import trunk_parameters
from runs import ending, small_data, small_recipe
from test_auxiliaries import ALPHA, batches, perceptron
from test_resume import interrupt

SAVINGS = {
    "trunk": SavingOptions(trunk="half"),
    "seldom": SavingOptions(every=2),
    "cached": SavingOptions(every=3, cached=True),
    "own view": SavingOptions(own_view=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pskd", "mte-lite", *SAVINGS])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, name):
    recipe = small_recipe(name) if name in METHODS else small_recipe("mte1", savings=SAVINGS[name])
    train(recipe, tmp_path / "whole", data=small_data(recipe))
    interrupt(recipe, tmp_path / "broken", after=7)
    resume(tmp_path / "broken", data=small_data(recipe))
    assert ending(tmp_path / "broken") == ending(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trunk": "layer2", "own_view": True}, "savings.trunk has no images of its own"),
        ({"cached": True}, "savings.cached needs savings.every above 1"),
        ({"every": 0}, "savings.every must be positive"),
    ],
)
def test_savings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SavingOptions(**options)


@pytest.mark.parametrize("kind", [Seldom, Cached])
def test_what_learns_seldom_goes_on_where_it_was_and_counts_no_further(kind):
    """A number that only grows would make a compiled step another one each time."""
    model = MutualTransport(perceptron(), [kind(perceptron(), every=3)], ALPHA)
    auxiliary, again = model.auxiliaries[0], kind(perceptron(), every=3)
    learned = []
    for step, (inputs, labels) in enumerate(batches(9, shape=(6,), dtype=torch.float32)):
        model.zero_grad()
        model(inputs, labels=labels, ids=torch.arange(len(labels))).loss.backward()
        learned.append(any(each.grad is not None for each in auxiliary.parameters()))
        assert auxiliary.steps == (step + 1) % 3
        again.load_state_dict(auxiliary.state_dict())
        assert again.steps == auxiliary.steps
    assert learned == [True, False, False] * 3


@pytest.mark.parametrize(
    "make", [SelfDistillation, lambda net: MutualTransport(net, [Cached(perceptron(), every=2)], ALPHA)]
)
def test_kept_predictions_are_saved_as_any_tensor(make, tmp_path):
    objective, again = make(perceptron()), make(perceptron())
    (inputs, labels), ids = next(batches(1, shape=(6,), dtype=torch.float32)), torch.arange(12)
    safetensors.torch.save_file(objective.state_dict(), tmp_path / "empty.safetensors")
    objective(inputs, labels=labels, ids=ids)
    safetensors.torch.save_file(objective.state_dict(), tmp_path / "one.safetensors")
    again.load_state_dict(safetensors.torch.load_file(tmp_path / "one.safetensors"))
    kept = [getattr(each, "kept", None) or each.auxiliaries[0].kept for each in (objective, again)]
    for one, other in zip(*(each.read(ids, classes=5) for each in kept), strict=True):
        assert torch.equal(one, other)
    # As checkpoints of before have them.
    earlier = dict(kept[0].state_dict()) | {"steps": torch.tensor(7)}
    holder = again if hasattr(again, "kept") else again.auxiliaries[0]
    holder.set_extra_state(earlier)
    assert torch.equal(holder.kept.read(ids, classes=5)[0], kept[0].read(ids, classes=5)[0])


@pytest.mark.slow
def test_the_middle_of_networks_with_large_heads_or_a_single_list_of_blocks():
    assert halfway(torchvision.models.vgg11(num_classes=5)).startswith("features.")
    encoder = nn.Module()
    encoder.layer = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
    assert halfway(encoder) == "layer.1"
    with pytest.raises(ValueError, match="has no modules to be cut between"):
        halfway(nn.Linear(4, 4))


def test_a_part_that_is_called_network_is_a_part():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.head = perceptron(), nn.Linear(5, 5)

        def forward(self, inputs):
            return self.head(self.network(inputs))

    own = Own()
    assert network_in(own) is own
    trunk = {id(parameter) for parameter in trunk_parameters(own)}
    assert {name for name, each in own.named_parameters() if id(each) not in trunk} == {"head.weight", "head.bias"}
    assert network_in(Seldom(SharedTrunk(own, after="network"), every=2)) is own


def test_other_methods_of_a_comparison_take_the_savings_that_they_can():
    recipe = Recipe(method="mte1", savings=SavingOptions(every=4), hyper={"alpha": 1.0})
    for method in METHODS:
        other = with_method(recipe, method)
        assert (other.method, other.hyper) == (method, {})
        assert other.savings == (recipe.savings if method in ("mte1", "mte2") else SavingOptions())


def test_a_method_with_savings_takes_no_others():
    with pytest.raises(ValueError, match="mte-lite has savings of its own, which these would replace: take mte1"):
        Recipe(method="mte-lite", savings=SavingOptions(every=4))


def test_methods_without_auxiliaries_have_nothing_to_save():
    with pytest.raises(ValueError, match="dml has no auxiliaries that could save anything"):
        Recipe(method="dml", savings=SavingOptions(every=2))
    with pytest.raises(ValueError, match=r"savings\.cached keeps what was said of whole images"):
        Recipe(savings=SavingOptions(every=2, cached=True), data=DataOptions(mixup=0.2))
