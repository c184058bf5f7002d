"""Auxiliaries that cost less, against the formula computed plainly; and PS-KD against a loop by hand."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

from counterpoise.models import Backbone, build_model
from counterpoise.objectives import (
    MutualTransport,
    OwnView,
    Seldom,
    SharedTrunk,
    Step,
    halfway,
)
from counterpoise.testing import check_objective

ALPHA = 0.8
EXACT = {torch.float32: 1e-6, torch.float64: 1e-12}


def resnet(dtype=torch.float32):
    return build_model(Backbone("resnet10", width=4), classes=5).to(dtype)


def perceptron(dtype=torch.float32):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5)).to(dtype)


def batches(steps, *, shape, dtype, count=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        images = torch.randn(count, *shape, generator=generator, dtype=dtype)
        yield images, torch.randint(0, 5, (count,), generator=generator)


def divergence(target, logits):
    """KL(t || p), a mean, with t constant."""
    return functional.kl_div(
        logits.log_softmax(-1), target.detach().log_softmax(-1), reduction="batchmean", log_target=True
    )


def step_of(images):
    return Step((images,), {}, nn.Identity(), torch.zeros(len(images), 5), {})


# A shared trunk


@pytest.mark.slow
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize(
    ("make", "after", "shape", "lr"),
    [(perceptron, "1", (6,), 0.05), (resnet, "layer2", (3, 8, 8), 0.002)],  # BatchNorm makes much of rounding errors
    ids=["perceptron", "resnet"],
)
def test_a_shared_trunk_takes_the_steps_of_the_formula(make, after, shape, lr, dtype):
    """Two losses, two backward passes and two optimizers, over one trunk and two rests."""
    torch.manual_seed(0)
    primary, own = make(dtype), make(dtype)
    plain, rest = copy.deepcopy(primary), copy.deepcopy(own)
    names = [name for name, _ in rest.named_children()]
    tail = nn.Sequential(*(rest.get_submodule(name) for name in names[names.index(after) + 1 :]))
    if make is resnet:
        tail = nn.Sequential(rest.layer3, rest.layer4, rest.avgpool, nn.Flatten(), rest.fc)
    features = []
    plain.get_submodule(after).register_forward_hook(lambda _, __, output: features.append(output.detach()))
    optimizers = [
        torch.optim.SGD(plain.parameters(), lr=lr, momentum=0.9),
        torch.optim.SGD(tail.parameters(), lr=lr / 2, momentum=0.9),
    ]
    model = MutualTransport(primary, [SharedTrunk(own, after=after)], ALPHA)
    optimizer = torch.optim.SGD(model.parameter_groups(lr=lr, auxiliary_lr=lr / 2), momentum=0.9)
    for images, labels in batches(50, shape=shape, dtype=dtype):
        loss = model(images, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        f = plain(images)
        g = tail(features.pop())
        own_losses = functional.cross_entropy(f, labels) + ALPHA * divergence(g, f), divergence(f, g)
        for each, by_hand in zip(optimizers, own_losses, strict=True):
            each.zero_grad()
            by_hand.backward()
            each.step()
        assert loss.item() == pytest.approx(sum(own_losses).item(), rel=EXACT[dtype])
    for mine, theirs in zip(primary.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=EXACT[dtype])
    for mine, theirs in zip(model.auxiliaries.parameters(), tail.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=EXACT[dtype])


def timm_model(name, **settings):
    import timm  # takes seconds

    return timm.create_model(name, num_classes=5, **settings)


NETWORKS = {
    "timm ResNet": (lambda: timm_model("resnet10t"), "layer2"),
    "timm ViT": (lambda: timm_model("test_vit", img_size=32), "blocks.2"),
    "timm ConvNeXt": (lambda: timm_model("test_convnext"), "stages.1"),
    "timm EfficientNet": (lambda: timm_model("test_efficientnet"), "blocks.1"),
    "torchvision ResNet": (lambda: torchvision.models.resnet18(num_classes=5), "layer2"),
    "torchvision ViT": (
        lambda: torchvision.models.VisionTransformer(
            image_size=32, patch_size=8, num_layers=4, num_heads=2, hidden_dim=16, mlp_dim=16, num_classes=5
        ),
        "encoder.layers.encoder_layer_1",
    ),
    "cnn": (lambda: build_model(Backbone("cnn", width=4), classes=5), "4"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_the_trunk_gets_the_gradient_of_the_primarys_loss_alone(name):
    make, after = NETWORKS[name]
    torch.manual_seed(0)
    primary, own = make().double(), make().double()
    assert halfway(primary) == after
    before = set(primary.state_dict())
    model = MutualTransport(primary, [SharedTrunk(own, after=after)], ALPHA)
    images, labels = next(iter(batches(1, shape=(3, 32, 32), dtype=torch.float64)))
    check_objective(model, images, labels)
    torch.manual_seed(1)
    model(images, labels=labels).loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in primary.named_parameters()}
    seen = []
    handle = model.auxiliaries[0].register_forward_hook(lambda _, __, logits: seen.append(logits.detach()))
    torch.manual_seed(1)
    model(images, labels=labels)
    handle.remove()
    primary.zero_grad()
    torch.manual_seed(1)
    f = primary(images)
    (functional.cross_entropy(f, labels) + ALPHA * divergence(seen[0], f)).backward()
    for name, parameter in primary.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-9, atol=1e-12)
    assert set(primary.state_dict()) == before
    assert not any(module._forward_hooks for module in primary.modules())


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        for layer in (*self.stem, *self.blocks):
            x = torch.tanh(layer(x))
        return self.head(x)


def test_lists_of_modules_are_shared_too():
    model = MutualTransport(Listed(), [SharedTrunk(Listed(), after="blocks.0")], ALPHA)
    check_objective(model, torch.randn(4, 6), torch.tensor([0, 1, 2, 3]))
    assert [name for name, _ in model.auxiliaries[0].named_parameters()] == [
        f"network.{name}.{kind}" for name in ("blocks.1", "head") for kind in ("weight", "bias")
    ]
    check_objective(copy.deepcopy(model), torch.randn(4, 6), torch.tensor([0, 1, 2, 3]))


class Backwards(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.last(self.first(x)))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ("first", "does not run its modules in the order in which it defines them: 'last' is on the other side"),
        ("last", "'first' is on the other side of 'last'"),
        ("middle", "has no module 'middle'; it begins with last, first, head"),
        ("head", "after 'head' Backwards has nothing to train; cut it earlier"),
    ],
)
def test_networks_that_cannot_be_cut_there_are_refused(after, message):
    with pytest.raises(ValueError, match=message):
        MutualTransport(Backwards(), [SharedTrunk(Backwards(), after=after)], ALPHA)(
            torch.zeros(2, 4), labels=torch.tensor([0, 1])
        )


def test_the_primary_must_have_the_modules_of_the_trunk():
    model = MutualTransport(nn.Linear(4, 5), [SharedTrunk(perceptron(), after="1")], ALPHA)
    with pytest.raises(ValueError, match="the primary has no module '0'"):
        model(torch.zeros(2, 4), labels=torch.tensor([0, 1]))


def test_an_auxiliary_of_another_width_is_refused_with_what_to_do():
    wider = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
    model = MutualTransport(wider, [SharedTrunk(perceptron(), after="1")], ALPHA)
    with pytest.raises(
        ValueError, match=r"features of \[2, 16\] after '1': .*; it must be of the primary's width there"
    ):
        model(torch.zeros(2, 6), labels=torch.tensor([0, 1]))


# Seldom, smaller, elsewhere


def test_an_auxiliary_learns_from_every_so_many_steps():
    auxiliary = Seldom(perceptron(), every=3)
    model = MutualTransport(perceptron(), [auxiliary], ALPHA)
    optimizer = torch.optim.SGD(model.parameter_groups(lr=0.1, auxiliary_lr=0.1), momentum=0.9, weight_decay=0.1)
    moved = []
    for images, labels in batches(7, shape=(6,), dtype=torch.float32):
        before = copy.deepcopy(auxiliary.state_dict())
        optimizer.zero_grad()
        model(images, labels=labels).loss.backward()
        optimizer.step()
        after = auxiliary.state_dict()
        moved.append(any(not torch.equal(before[name], after[name]) for name in before if "weight" in name))
    assert moved == [True, False, False, True, False, False, True]


def test_images_by_keyword_are_changed_too():
    auxiliary = partial(OwnView, view=lambda x: x[..., ::2, ::2])

    class Images(nn.Module):
        def forward(self, *, note, pixel_values):
            seen.append((note, pixel_values.shape[-2:]))
            return pixel_values.mean((-2, -1))

    seen = []
    model = MutualTransport(Images(), [auxiliary(Images())], ALPHA)
    model(note="n", pixel_values=torch.zeros(2, 5, 4, 4), labels=torch.tensor([0, 1]))
    assert seen == [("n", (4, 4)), ("n", (2, 2))]
    with pytest.raises(ValueError, match="no input is a tensor: give them as the first"):
        auxiliary(Images())(replace(step_of(torch.zeros(2, 5, 4, 4)), inputs=(), named_inputs={"note": "n"}))


def test_a_view_of_its_own_mirrors_some_images():
    torch.manual_seed(0)
    images = torch.randn(20, 1, 2, 3)
    found = OwnView(nn.Identity())(step_of(images))
    mirrored = [torch.equal(mine, given.flip(-1)) for mine, given in zip(found, images, strict=True)]
    kept = [torch.equal(mine, given) for mine, given in zip(found, images, strict=True)]
    assert all(one != other for one, other in zip(mirrored, kept, strict=True))
    assert 4 < sum(mirrored) < 16
