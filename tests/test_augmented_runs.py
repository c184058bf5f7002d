"""Runs with transforms, mixup, CutMix and balanced classes: the losses of a plain loop, the same after a kill."""

import multiprocessing
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from torchvision.transforms import v2

from counterpoise.data import hold_out
from counterpoise.data.balance import label_weights
from counterpoise.data.keyed import MIXING, TRANSFORM, keyed_bits, permutation
from counterpoise.data.transforms import Mixing
from counterpoise.recipes import METHODS, DataOptions
from counterpoise.recipes.config import Recipe
from counterpoise.training import resume, train
from counterpoise.training.networks import recipe_models
from runs import ending, small_data, small_recipe, striped_images
from test_augment import BOTH, memory
from test_resume import interrupt


def by_hand(recipe, *, transform=None, mix=None, weights=None):
    """The losses of a recipe by a plain loop of torch and torchvision."""
    images, options = striped_images(), recipe.optimizer
    kept, _ = hold_out(len(images), size=recipe.data.validation, seed=recipe.seed)
    primary, *auxiliaries = recipe_models(recipe, classes=3, channels=3)(recipe.seed)
    groups = [{"params": list(primary.parameters()), "lr": options.lr}]
    groups += [{"params": list(model.parameters()), "lr": options.first_auxiliary_lr} for model in auxiliaries]
    optimizer = torch.optim.SGD(groups, momentum=options.momentum, weight_decay=options.weight_decay)
    losses = []
    for epoch in range(recipe.epochs):
        order = kept[permutation(recipe.seed, epoch, kept)]
        for number, rows in enumerate(order.split(recipe.batch)):
            pixels = images.pixels[rows]
            if transform is not None:
                pixels = []
                for row in rows:
                    torch.manual_seed(int(keyed_bits(recipe.seed, epoch, row, TRANSFORM)))
                    pixels.append(transform(images.pixels[row]))
                pixels = torch.stack(pixels)
            scaled = v2.functional.to_dtype(pixels, torch.float32, scale=True)
            inputs, labels = v2.functional.normalize(scaled, images.mean, images.std), images.labels[rows]
            if mix is not None:
                torch.manual_seed(int(keyed_bits(recipe.seed, epoch, torch.tensor(number), MIXING)))
                inputs, labels = v2.RandomChoice([mix])(inputs, labels)
            logits = primary(inputs)
            loss = F.cross_entropy(logits, labels, weight=weights)
            for auxiliary in auxiliaries:
                f, g = logits.log_softmax(-1), auxiliary(inputs).log_softmax(-1)
                loss = loss + recipe.choice["alpha"] * F.kl_div(f, g.detach().exp(), reduction="batchmean")
                loss = loss + F.kl_div(g, f.detach().exp(), reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


CROPPED = v2.Compose([v2.RandomResizedCrop((8, 8), scale=(0.7, 1.0)), v2.RandAugment()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "loop"),
    [
        ("ce", {"mixup": 0.4}, {"mix": v2.MixUp(alpha=0.4, num_classes=3)}),
        ("ce", {"cutmix": 1.0}, {"mix": v2.CutMix(alpha=1.0, num_classes=3)}),
        ("ce", {"augment": BOTH, "workers": 2}, {"transform": CROPPED}),
        ("mte1", {"augment": BOTH, "mixup": 0.4}, {"transform": CROPPED, "mix": v2.MixUp(alpha=0.4, num_classes=3)}),
    ],
)
def test_losses_are_those_of_a_plain_loop(tmp_path, method, options, loop):
    data = {"padding": 0, "flip": False, "validation": 20, "workers": 0} | options
    recipe = small_recipe(method, epochs=4, optimizer__milestones=(), data=DataOptions(**data))
    train(recipe, tmp_path, data=small_data(recipe))
    losses = [float.fromhex(loss) for loss in ending(tmp_path)[1]]
    assert len(losses) == 20
    assert losses == pytest.approx(by_hand(recipe, **loop), abs=1e-6)


def test_weights_are_those_of_torchs_cross_entropy(tmp_path):
    recipe = small_recipe("ce", optimizer__milestones=())
    recipe = replace(recipe, data=DataOptions(validation=20, padding=0, flip=False, balance="weights"))
    data = small_data(recipe)
    train(recipe, tmp_path, data=data)
    losses = [float.fromhex(loss) for loss in ending(tmp_path)[1]]
    assert losses == pytest.approx(by_hand(recipe, weights=data.class_weights), abs=1e-6)
    soft = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]])
    expected = soft @ data.class_weights
    assert torch.allclose(label_weights(soft, data.class_weights), expected)
    assert label_weights(torch.tensor([2]), data.class_weights) == expected[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("mte1", {"augment": BOTH, "mixup": 0.4, "cutmix": 1.0, "workers": 2}),
        ("dml", {"augment": ("TrivialAugment",), "mixup": 0.2, "balance": "weights", "workers": 1}),
        ("fl", {"balance": "sampler", "cutmix": 0.5}),
    ],
)
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, method, options):
    recipe = small_recipe(method, data=DataOptions(**({"validation": 20, "padding": 1} | options)))
    train(recipe, tmp_path / "whole", data=small_data(recipe))
    interrupt(recipe, tmp_path / "broken", after=7)
    resume(tmp_path / "broken", data=small_data(recipe))
    assert ending(tmp_path / "broken") == ending(tmp_path / "whole")


@pytest.mark.slow
def test_workers_end_with_their_run(tmp_path):
    """Those that are left to the garbage collector are waited for, five seconds each."""
    recipe = small_recipe("ce", data=DataOptions(validation=20, padding=1, augment=BOTH, workers=2))
    before = set(multiprocessing.active_children())
    train(recipe, tmp_path / "whole", data=small_data(recipe))
    assert set(multiprocessing.active_children()) <= before
    interrupt(recipe, tmp_path / "broken", after=7)
    assert set(multiprocessing.active_children()) <= before


# Recipes


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("mmce", {"mixup": 0.2}, "mmce needs one class for each image, .* methods that take mixed images are ce, ls"),
        ("fl-dtdp", {"cutmix": 1.0}, "fl-dtdp needs one class for each image"),
        ("fl-dtdp", {"balance": "sampler"}, "fl-dtdp prunes its samples, which leaves no choice to data.balance"),
        ("ce", {"balance": "sampler", "pipeline": "stream"}, "data.balance sampler needs data.pipeline memory"),
        ("ce", {"augment": ("RandAugmnet",)}, "data.augment: there is no RandAugmnet; there are RandomResizedCrop"),
        ("ce", {"mixup": -0.1}, "data.mixup must not be negative, got -0.1"),
        ("ce", {"cutmix": float("inf")}, "data.cutmix must be finite, got inf"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_recipe(method, options, message):
    with pytest.raises(ValueError, match=message):
        Recipe(method=method, data=DataOptions(**options))


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.soft_labels])
def test_methods_that_take_soft_labels_train_on_them(method):
    recipe = small_recipe(method, data=DataOptions(mixup=0.2))
    networks = recipe_models(recipe, classes=3, channels=3)(0)
    loader = memory(striped_images(12), mixing=Mixing(0.2, 0.0, 3))
    batch = next(iter(loader))
    METHODS[method].build(networks, **recipe.choice)(batch.images, labels=batch.labels).loss.backward()
    assert all(torch.isfinite(p.grad).all() for network in networks for p in network.parameters())
