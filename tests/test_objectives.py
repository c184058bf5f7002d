"""Objectives: the contract, inputs and outputs of every kind, and what ships."""

import copy
import re
import threading
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo.testing
from torch import nn

from counterpoise import DeepMutualLearning, MutualTransport, ObjectiveOutput, SupervisedObjective, linear_warmup
from counterpoise.functional.losses import cross_entropy, focal
from counterpoise.objectives.supervised import LossSum
from counterpoise.recipes import METHODS
from counterpoise.testing import check_objective

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


class Wrapped(nn.Module):
    """Takes keyword inputs and returns an object or a mapping with logits."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.kind = net(), kind

    def forward(self, values, scale=None):
        logits = self.body(values if scale is None else values * scale)
        return {
            "tensor": logits,
            "mapping": {"logits": logits, "hidden": values},
            "object": SimpleNamespace(logits=logits),
            "nothing": SimpleNamespace(hidden=values),
            "tuple": (logits,),
        }[self.kind]


OBJECTIVES = {
    "supervised": lambda: SupervisedObjective(net(), partial(focal, gamma=2.0)),
    "mte_0": lambda: MutualTransport(net(), [], 0.8),
    "mte_1": lambda: MutualTransport(net(), [net()], 0.8),
    "mte_3": lambda: MutualTransport(net(), [net(), net(), net()], linear_warmup(0.8, fraction=0.5)),
    "dml_2": lambda: DeepMutualLearning([net(), net()], 1.0),
    "dml_3": lambda: DeepMutualLearning([net(), net(), net()], 1.0),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_keeps_the_contract(name):
    check_objective(OBJECTIVES[name](), X, Y)


@pytest.mark.parametrize("kind", ["tensor", "mapping", "object"])
def test_keyword_inputs_and_every_kind_of_output(kind):
    objective = MutualTransport(Wrapped(kind), [Wrapped("tensor")], 0.8)
    inputs = {"values": X, "scale": torch.tensor(2.0)}
    check_objective(objective, inputs, Y)


@pytest.mark.parametrize("kind", ["nothing", "tuple"])
def test_output_without_logits_is_refused(kind):
    with pytest.raises(ValueError, match=r"Wrapped returned .* 'logits'"):
        MutualTransport(Wrapped(kind), [net()], 0.8)(X, labels=Y)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_table_trains(name):
    method = METHODS[name]
    choice = {key: values[0] for key, values in method.grid.items()}
    objective = method.build([net() for _ in range(method.models)], **method.choice(choice))
    check_objective(objective, X, Y)


def test_sequences_of_tokens():
    objective = MutualTransport(nn.Linear(4, 3), [nn.Linear(4, 3)], 0.8)
    labels = torch.tensor([[0, 1, -100], [2, -100, -100]])
    output = objective(X.view(2, 3, 4), labels=labels)
    flat = objective(X[labels.view(-1) >= 0], labels=labels[labels >= 0])
    torch.testing.assert_close(output.loss, flat.loss)


def test_soft_labels():
    soft = 0.7 * nn.functional.one_hot(Y, 3) + 0.3 * nn.functional.one_hot(Y.roll(1), 3)
    assert torch.isfinite(MutualTransport(net(), [net()], 0.8)(X, labels=soft).loss)


def test_any_function_is_a_loss():
    model = net()
    output = SupervisedObjective(model, nn.functional.cross_entropy)(X, labels=Y)
    torch.testing.assert_close(output.loss, cross_entropy(output.logits, Y))


def test_each_model_runs_once_a_step():
    models = [net(), net(), net()]
    runs = [0, 0, 0]
    for index, model in enumerate(models):
        model.register_forward_hook(lambda *_, index=index: runs.__setitem__(index, runs[index] + 1))
    MutualTransport(models[0], models[1:], 0.8)(X, labels=Y).loss.backward()
    assert runs == [1, 1, 1]


def test_alpha_follows_its_schedule():
    objective = MutualTransport(net(), [net()], linear_warmup(0.8, fraction=0.5))
    losses = {}
    for progress in (0.0, 0.25, 1.0):
        objective.set_progress(progress)
        parts = objective(X, labels=Y).parts
        losses[progress] = (parts["alpha"].item(), parts)
    assert [losses[p][0] for p in losses] == pytest.approx([0.0, 0.4, 0.8])
    with pytest.raises(ValueError, match="fraction"):
        linear_warmup(0.8, fraction=0.0)


def test_alpha_can_be_set():
    objective = MutualTransport(net(), [net()], 0.8)
    objective.alpha = 0.5
    assert objective(X, labels=Y).parts["alpha"].item() == 0.5
    objective.set_progress(1.0)
    assert objective.alpha.item() == 0.5
    objective.alpha = linear_warmup(0.8, fraction=0.5)
    assert objective.alpha.item() == 0.0
    objective.set_progress(0.25)
    assert objective.alpha.item() == pytest.approx(0.4)


@pytest.mark.parametrize("ignored", [255, 0])
def test_positions_to_ignore_are_ignored_in_evaluation_too(ignored):
    objective = SupervisedObjective(nn.Linear(4, 3), cross_entropy, ignore_index=ignored)
    labels = torch.where(torch.arange(len(Y)) % 2 == 0, ignored, torch.where(ignored == Y, 1, Y))
    counted = labels != ignored
    expected = nn.functional.cross_entropy(objective.primary(X)[counted], labels[counted]).item()
    assert objective(X, labels=labels).loss.item() == pytest.approx(expected)
    assert objective.eval()(X, labels=labels).loss.item() == pytest.approx(expected)


def test_a_sum_of_plain_functions_is_a_loss():
    loss = LossSum(nn.functional.cross_entropy, lambda logits, labels: logits.square().mean(), weight=2.0)
    objective = SupervisedObjective(net(), loss)
    logits = objective.primary(X)
    expected = nn.functional.cross_entropy(logits, Y) + 2 * logits.square().mean()
    assert objective(X, labels=Y).loss.item() == pytest.approx(expected.item())


def test_the_check_leaves_an_objective_as_it_was():
    model = net()
    model[2].eval()
    objective = SupervisedObjective(model, cross_entropy)
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    check_objective(objective, X, Y)
    assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items())
    assert [module.training for module in model] == [True, True, False]


@pytest.mark.parametrize("name", ["mte1", "mte2"])
def test_a_recipe_may_let_alpha_grow(name):
    method = METHODS[name]
    choice = method.choice({"alpha": 0.6, "alpha_warmup": 0.25})
    growing = method.build([net() for _ in range(method.models)], **choice)
    constant = method.build([net() for _ in range(method.models)], **method.choice({"alpha": 0.6}))
    found = []
    for progress in (0.0, 0.125, 0.25, 1.0):
        growing.set_progress(progress)
        constant.set_progress(progress)
        found.append((growing.alpha.item(), constant.alpha.item()))
    assert found == [(0.0, 0.6), (0.3, 0.6), (0.6, 0.6), (0.6, 0.6)]


def test_alpha_is_not_rounded_by_casting_the_model():
    objective = MutualTransport(net(), [net()], 0.8).to(torch.bfloat16)
    assert objective.alpha.item() == 0.8


@pytest.mark.slow
def test_changing_alpha_does_not_compile_again():
    objective = MutualTransport(nn.Linear(4, 3), [nn.Linear(4, 3)], linear_warmup(0.8, fraction=0.5))
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(objective, backend=counter, fullgraph=True)
    for progress in (0.0, 0.1, 0.3, 0.5):
        objective.set_progress(progress)
        assert compiled(X, labels=Y)["loss"].item() == pytest.approx(objective(X, labels=Y).loss.item())
    assert counter.frame_count == 1


@pytest.mark.parametrize("single", [nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), nn.Linear(4, 3)])
def test_one_model_in_the_place_of_a_list_is_refused(single):
    with pytest.raises(
        ValueError, match=r"auxiliaries is one (Sequential|Linear).*give a list: auxiliaries=\[\.\.\.\]"
    ):
        MutualTransport(nn.Linear(4, 3), single, 0.8)
    with pytest.raises(ValueError, match=r"give a list: models=\[\.\.\.\]"):
        DeepMutualLearning(single, 1.0)
    models = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    assert len(MutualTransport(nn.Linear(4, 3), models, 0.8).auxiliaries) == len(DeepMutualLearning(models, 1.0).models)


def test_auxiliaries_may_come_from_a_generator():
    objective = MutualTransport(nn.Linear(4, 3), (nn.Linear(4, 3) for _ in range(2)), 0.8)
    assert [group["name"] for group in objective.parameter_groups(lr=0.1, auxiliary_lr=0.1)] == [
        "primary",
        "auxiliaries",
    ]
    assert len(objective.auxiliaries) == 2
    assert len(DeepMutualLearning((nn.Linear(4, 3) for _ in range(2)), 1.0).models) == 2


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf")])
def test_alpha_that_is_no_weight_is_refused(alpha):
    objective = MutualTransport(nn.Linear(4, 3), [nn.Linear(4, 3)], 0.0)
    peers = DeepMutualLearning([nn.Linear(4, 3), nn.Linear(4, 3)], 0.0)
    for attempt in (
        lambda: MutualTransport(nn.Linear(4, 3), [nn.Linear(4, 3)], alpha),
        lambda: setattr(objective, "alpha", alpha),
        lambda: setattr(objective, "alpha", lambda _: alpha),
        lambda: setattr(peers, "alpha", alpha),
        lambda: DeepMutualLearning([nn.Linear(4, 3), nn.Linear(4, 3)], alpha),
        lambda: linear_warmup(alpha, fraction=0.5),
    ):
        with pytest.raises(ValueError, match="alpha must be a finite number of at least 0"):
            attempt()
    assert objective.schedule == float(objective.alpha) == peers.alpha == 0


def test_shared_parameters_are_refused():
    shared = nn.Linear(4, 3)
    with pytest.raises(ValueError, match=r"primary\.weight and auxiliaries\.0\.0\.weight are one parameter"):
        MutualTransport(shared, [nn.Sequential(shared)], 0.8)
    with pytest.raises(ValueError, match=r"models\.0\.weight and models\.1\.weight"):
        DeepMutualLearning([shared, shared], 1.0)


def test_tied_weights_inside_one_model_stand_in_one_group_once():
    first = nn.Linear(3, 3)
    second = nn.Linear(3, 3)
    second.weight = first.weight
    groups = MutualTransport(nn.Sequential(first, second), [nn.Linear(3, 3)], 0.8).parameter_groups(
        lr=1, auxiliary_lr=1
    )
    assert [len(group["params"]) for group in groups] == [3, 2]


def test_groups_are_named_and_rated():
    groups = MutualTransport(net(), [net()], 0.8).parameter_groups(lr=0.1, auxiliary_lr=0.01)
    assert [(group["name"], group["lr"]) for group in groups] == [("primary", 0.1), ("auxiliaries", 0.01)]


@pytest.mark.parametrize(
    "build", [lambda f: MutualTransport(f, [net()], 0.8), lambda f: SupervisedObjective(f, cross_entropy)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_primary_that_ends_in_softmax_is_warned_of_once(build, dtype):
    found = {}
    for end in (nn.Softmax(-1), nn.LogSoftmax(-1), nn.Identity(), nn.Sigmoid()):
        objective = build(nn.Sequential(net(), end)).to(dtype)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                objective(torch.randn(5, 4, dtype=dtype), labels=torch.tensor([0, 1, 2, 0, 1])).loss.backward()
        found[type(end).__name__] = [str(each.message) for each in caught]
    (message,) = found.pop("Softmax")
    assert re.search("Sequential returns rows that .* sum to 1.* Remove the softmax", message)
    assert not any(found.values())


def test_what_ships_is_the_primary_alone():
    primary = net()
    before = set(primary.state_dict())
    objective = MutualTransport(primary, [net()], 0.8)
    assert set(objective.primary.state_dict()) == before
    assert objective.primary is primary


def test_module_copies_and_pickles_with_its_schedule(tmp_path):
    objective = MutualTransport(net(), [net()], linear_warmup(0.8, fraction=0.5))
    copy.deepcopy(objective).set_progress(1.0)
    assert objective.alpha == 0.0
    torch.save(objective.state_dict(), tmp_path / "state.pt")
    objective.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


@pytest.mark.parametrize(
    "build",
    [
        lambda group: MutualTransport(net(), [net()], 0.8, process_group=group),
        lambda group: DeepMutualLearning([net(), net()], 0.8, process_group=group),
        lambda group: SupervisedObjective(net(), cross_entropy, process_group=group),
    ],
)
def test_a_copy_has_the_same_process_group_and_its_own_weights(build):
    """A group cannot be copied, as a lock cannot."""
    objective = build(threading.Lock())
    duplicate = copy.deepcopy(objective)
    assert duplicate.process_group is objective.process_group
    pairs = zip(duplicate.parameters(), objective.parameters(), strict=True)
    assert all(ours is not theirs and torch.equal(ours, theirs) for ours, theirs in pairs)


def test_alpha_stays_on_the_host_whatever_the_default_device_is():
    """Large models are made on the meta device, and filled afterwards."""
    with torch.device("meta"):
        objective = MutualTransport(net(), [net()], 0.8)
    objective.to_empty(device="cpu")
    assert objective.alpha.device.type == "cpu"
    assert objective(X, labels=Y).loss.device.type == "cpu"


def test_deep_mutual_learning_has_no_schedule():
    with pytest.raises(ValueError, match="takes a number for alpha, not a schedule"):
        DeepMutualLearning([net(), net()], alpha=linear_warmup(0.8, fraction=0.5))


def test_output_is_a_pytree_that_engines_can_take_apart():
    output = MutualTransport(net(), [net()], 0.8)(X, labels=Y)
    leaves, spec = torch.utils._pytree.tree_flatten(output)
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    assert isinstance(again, ObjectiveOutput)
    assert again.loss is output.loss
    assert list(output) == ["loss", "logits", "parts"]
    assert isinstance(output, dict)


def test_evaluation_output_has_only_what_engines_collect():
    objective = MutualTransport(net(), [net()], 0.8).eval()
    assert list(objective(X, labels=Y)) == ["loss", "logits"]
    assert list(objective(X)) == ["logits"]
