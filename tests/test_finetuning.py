"""Fine-tuning through the engine against loops written by hand with timm and torch; early stopping; Ctrl-C."""

import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy, kl_div

from counterpoise.data.memory import MemoryLoader
from counterpoise.models import Backbone, build_model, normalisation_of
from counterpoise.recipes.config import Recipe
from counterpoise.training import load_run, resume, train
from counterpoise.training import run as runs_of_recipes
from counterpoise.training.checkpoints import read_manifest
from counterpoise.training.engine import fit
from counterpoise.training.folder import EPOCH_COLUMNS, STEP_COLUMNS, RowLog, RunFolder
from counterpoise.training.networks import recipe_models
from counterpoise.training.optimizers import trunk_parameters
from runs import Stop, Tell, ending, small_data, small_recipe

pytestmark = pytest.mark.slow

NETWORK = "test_efficientnet"
ALPHA = 0.8


def created(name, **settings):
    import timm  # takes seconds

    return timm.create_model(name, **settings)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Weights of a network with ten classes, whose images have a normalisation of their own."""
    path = tmp_path_factory.mktemp("weights") / "ten.safetensors"
    torch.manual_seed(3)
    model = created(NETWORK, num_classes=10)
    save_file(model.state_dict(), path, metadata={"mean": "[0.4, 0.4, 0.4]", "std": "[0.3, 0.3, 0.3]"})
    return path


def in_double(model: nn.Module) -> nn.Module:
    """AdamW divides gradients by their size, rounding errors too: in float32 two right loops soon differ."""
    model.register_forward_pre_hook(lambda module, inputs: (inputs[0].to(next(module.parameters()).dtype),))
    return model.double()


def recipe(file, method="mte1", **changes) -> Recipe:
    network = Backbone(f"timm/{NETWORK}", small_images=False, weights=str(file))
    plain = {"optimizer__name": "adamw", "optimizer__lr": 3e-4, "optimizer__schedule": "cosine", "epochs": 4}
    return replace(small_recipe(method, **(plain | changes)), primary=network, auxiliary=network)


def by_hand(file, found: Recipe, *, groups, optimizer=torch.optim.AdamW, factor=None) -> list[float]:
    """The losses of MTE-1, written with timm and torch alone; images come from the loader, which has its own tests."""
    models = []
    for seed in (found.seed, int(np.random.SeedSequence([found.seed, 1]).generate_state(1)[0])):
        torch.manual_seed(seed)
        model = created(NETWORK, num_classes=3)
        trained = load_file(file)
        head = {f"classifier.{name}" for name in ("weight", "bias")}
        model.load_state_dict({name: value for name, value in trained.items() if name not in head}, strict=False)
        model.classifier.reset_parameters()
        models.append(in_double(model.train().to(memory_format=torch.channels_last)))
    options = found.optimizer
    rates = [options.lr, 0.01 if factor is None else factor * options.lr]
    parts = []
    for model, rate, scheduled in zip(models, rates, (True, factor is not None), strict=True):
        for group in groups(model):
            parts.append(group | {"lr": rate, "base": rate * group.get("lr_scale", 1.0), "scheduled": scheduled})
    stepper = optimizer(parts, weight_decay=options.weight_decay)
    loader = small_data(found).training(found.seed, 0, 1)
    assert isinstance(loader, MemoryLoader)
    losses, steps = [], len(loader)
    for epoch in range(found.epochs):
        loader.set_epoch(epoch)
        for model in models:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(epoch >= options.frozen_epochs or name.startswith("classifier."))
        for index, batch in enumerate(loader):
            progress = (epoch + index / steps) / found.epochs
            for group in stepper.param_groups:
                group["lr"] = group["base"] * (0.5 * (1 + math.cos(math.pi * progress)) if group["scheduled"] else 1.0)
            primary, auxiliary = (model(batch.images) for model in models)
            ours, theirs = primary.log_softmax(-1), auxiliary.log_softmax(-1)
            pull = kl_div(ours, theirs.detach(), reduction="batchmean", log_target=True)
            follow = kl_div(theirs, ours.detach(), reduction="batchmean", log_target=True)
            loss = cross_entropy(primary, batch.labels) + ALPHA * pull + follow
            stepper.zero_grad()
            loss.backward()
            stepper.step()
            losses.append(loss.item())
    return losses


def losses_of(folder) -> list[float]:
    return [float(row["loss"]) for row in RowLog(RunFolder(folder).steps, STEP_COLUMNS).rows()]


def everything(model):
    return [{"params": list(model.parameters())}]


def grouped_by(name, **settings):
    """The groups that a function of timm makes."""

    def groups(model):
        from timm import optim

        return getattr(optim, name)(model, **settings)

    return groups


@pytest.mark.parametrize(
    ("changes", "groups", "factor"),
    [
        ({}, everything, None),
        ({"optimizer__auxiliary_factor": 0.5}, everything, 0.5),
        ({"optimizer__frozen_epochs": 2}, everything, None),
        ({"optimizer__decay_norms": False}, grouped_by("param_groups_weight_decay", weight_decay=0.05), None),
        (
            {"optimizer__decay_norms": False, "optimizer__layer_decay": 0.7},
            grouped_by("param_groups_layer_decay", weight_decay=0.05, layer_decay=0.7),
            None,
        ),
    ],
    ids=["adamw and a new head", "auxiliary follows", "frozen trunk", "norms do not decay", "layer decay"],
)
def test_twenty_steps_have_the_losses_of_a_loop_by_hand(tmp_path, file, changes, groups, factor):
    found = recipe(file, hyper={"alpha": ALPHA}, optimizer__weight_decay=0.05, **changes)
    build = recipe_models(found, classes=3, channels=3)
    models = partial(map, in_double)
    train(found, tmp_path / "run", data=small_data(found), models=lambda seed: [*models(build(seed))], page=False)
    expected = by_hand(file, found, groups=groups, factor=factor)
    assert len(expected) == 20
    assert losses_of(tmp_path / "run") == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_images_take_the_normalisation_of_the_primarys_weights(tmp_path, file):
    found = recipe(file, "ce", epochs=1)
    assert small_data(found).validation.mean == (0.4, 0.4, 0.4)
    train(found, tmp_path / "run", data=small_data(found), page=False)
    moved = file.rename(file.with_name("moved.safetensors"))
    try:
        trained = load_run(tmp_path / "run")  # a trained run needs the file no longer
    finally:
        moved.rename(file)
    assert (trained.mean, trained.std) == ((0.4, 0.4, 0.4), (0.3, 0.3, 0.3))


def test_an_auxiliary_with_another_normalisation_gets_images_as_it_expects_them(tmp_path, file):
    other = tmp_path / "other.safetensors"
    save_file(created(NETWORK, num_classes=3).state_dict(), other)  # ImageNet's, as timm says
    found = recipe(file, epochs=1, optimizer__layer_decay=0.7)
    found = replace(found, auxiliary=replace(found.auxiliary, weights=str(other)))
    train(found, tmp_path / "run", data=small_data(found), page=False)
    assert len(losses_of(tmp_path / "run")) == 5


@pytest.mark.parametrize("name", ["lamb", "lion", "nadamw", "adan", "sgdp"])
def test_optimizers_of_timm_go_on_with_the_same_bits(tmp_path, name, monkeypatch):
    found = small_recipe("mte1", optimizer__name=name, optimizer__lr=1e-3)
    train(found, tmp_path / "whole", data=small_data(found), page=False)
    with monkeypatch.context() as patched:
        patched.setattr(runs_of_recipes, "fit", partial(fit, callbacks=[Stop(6)]))
        with pytest.raises(RuntimeError, match="stopped by the test"):
            train(found, tmp_path / "killed", data=small_data(found), page=False)
    resume(tmp_path / "killed", data=small_data(found), page=False)
    assert ending(tmp_path / "killed") == ending(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "message"), [("adamx", "there is no optimizer 'adamx'"), ("adahessian", "second derivatives")]
)
def test_an_optimizer_that_cannot_train_is_refused(tmp_path, name, message):
    found = small_recipe("ce", optimizer__name=name)
    with pytest.raises(ValueError, match=message):
        train(found, tmp_path / "run", data=small_data(found))


def test_layer_decay_of_a_network_without_layers_is_refused(tmp_path):
    found = small_recipe("ce", optimizer__layer_decay=0.7)
    with pytest.raises(ValueError, match="says what its layers are"):
        train(found, tmp_path / "run", data=small_data(found))


def validation_nll(folder) -> list[float]:
    return [float(row["validation_nll"]) for row in RowLog(RunFolder(folder).epochs, EPOCH_COLUMNS).rows()]


def early() -> Recipe:
    """A rate so high that the validation soon gets worse."""
    schedule = {"optimizer__milestones": (1000,), "optimizer__lr": 0.2}
    return small_recipe("ce", epochs=30, patience=2, engine__checkpoint_epochs=10, **schedule)


def test_training_stops_after_the_best_epoch_and_ships_that(tmp_path):
    found = early()
    train(found, tmp_path / "run", data=small_data(found), page=False)
    values = validation_nll(tmp_path / "run")
    assert len(values) < found.epochs
    best = min(range(len(values)), key=values.__getitem__)
    assert len(values) == best + 1 + found.patience
    entry = read_manifest(RunFolder(tmp_path / "run").checkpoints).best
    assert (entry.epoch, entry.value) == (best, values[best])
    last = replace(found, epochs=best + 1, patience=None)
    train(last, tmp_path / "last", data=small_data(last), page=False)
    shipped, expected = (load_run(tmp_path / name).model.state_dict() for name in ("run", "last"))
    assert all(torch.equal(shipped[name], expected[name]) for name in expected)


def test_a_run_that_had_stopped_early_trains_no_further_when_it_is_resumed(tmp_path):
    found = early()
    train(found, tmp_path / "run", data=small_data(found), page=False)
    before, run = ending(tmp_path / "run"), RunFolder(tmp_path / "run")
    shipped = load_file(run.primary)
    run.primary.unlink()
    resume(tmp_path / "run", data=small_data(found), page=False)
    assert ending(tmp_path / "run") == before
    assert all(torch.equal(value, shipped[name]) for name, value in load_file(run.primary).items())


def test_ctrl_c_saves_the_step_and_a_second_one_does_not_wait(tmp_path, monkeypatch):
    found = small_recipe(engine__checkpoint_steps=None, engine__checkpoint_epochs=2)
    train(found, tmp_path / "whole", data=small_data(found), page=False)
    tell = Tell(3, signalled=signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(runs_of_recipes, "fit", partial(fit, callbacks=[tell]))
        with pytest.raises(KeyboardInterrupt):
            train(found, tmp_path / "told", data=small_data(found), page=False)
    assert tell.left is signal.default_int_handler
    assert read_manifest(RunFolder(tmp_path / "told").checkpoints).last.step == 3
    resume(tmp_path / "told", data=small_data(found), page=False)
    assert ending(tmp_path / "told") == ending(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("deit_tiny_distilled_patch16_224", ("head.", "head_dist.")),
        ("levit_128s", ("head.linear.", "head_dist.linear.")),
    ],
)
def test_networks_with_two_heads_take_new_classes(tmp_path, name, heads):
    torch.manual_seed(3)
    trained = created(name, num_classes=5).state_dict()
    save_file(trained, tmp_path / "five.safetensors")
    backbone = Backbone(f"timm/{name}", small_images=False, weights=str(tmp_path / "five.safetensors"))
    model = build_model(backbone, classes=3, seed=0)
    found = model.state_dict()
    new = {key for key in found if key.startswith(heads) and not torch.equal(found[key], trained[key])}
    assert all(any(key.startswith(head) for key in new) for head in heads)
    assert all(torch.equal(found[key], trained[key]) for key in found if not key.startswith(heads))
    assert model.eval()(torch.zeros(1, 3, 224, 224)).shape == (1, 3)
    trunk = {id(parameter) for parameter in trunk_parameters(model)}
    assert {key for key, parameter in model.named_parameters() if id(parameter) not in trunk} == {
        key for key, _ in model.named_parameters() if key.startswith(heads)
    }


def test_pretrained_weights_come_from_the_hubs_cache_without_a_network(tmp_path):
    model = created(NETWORK)
    repository = f"models--{model.pretrained_cfg['hf_hub_id'].replace('/', '--')}"
    snapshot = tmp_path / "hub" / repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "hub" / repository / "refs").mkdir()
    (tmp_path / "hub" / repository / "refs" / "main").write_text("abc")
    save_file(model.state_dict(), snapshot / "model.safetensors")
    code = (
        "from counterpoise.models import Backbone, build_model\n"
        f"network = Backbone('timm/{NETWORK}', small_images=False, weights='pretrained')\n"
        "model = build_model(network, classes=3, seed=0, say=print)\n"
        "print(model.conv_stem.weight.double().sum().item())\n"
    )
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert found[0].endswith(f"weights of timm's {model.pretrained_cfg['hf_hub_id']}, with a new head of 3 classes")
    assert float(found[1]) == pytest.approx(model.conv_stem.weight.double().sum().item(), abs=1e-9)


@pytest.mark.parametrize(
    ("weights", "name", "message"),
    [
        ("ten", "timm/test_efficientnet_gn", "bn1.running_mean is unexpected; .*and [0-9]+ more"),
        ("ten", "timm/test_resnet", "do not fit timm/test_resnet: .* is missing; .* is missing; .* is missing; and"),
        ("nothing.safetensors", f"timm/{NETWORK}", "there are no weights nothing.safetensors"),
        ("model.pth", f"timm/{NETWORK}", "may hold code, which is not loaded; convert it once"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(file, weights, name, message):
    network = Backbone(name, small_images=False, weights=str(file) if weights == "ten" else weights)
    with pytest.raises(ValueError, match=message):
        build_model(network, classes=3)


def test_what_was_exported_to_share_is_fine_tuned_further(tmp_path, file):
    found = recipe(file, "ce", epochs=1)
    train(found, tmp_path / "run", data=small_data(found), page=False)
    shared = tmp_path / "shared"
    shared.mkdir()
    shutil.copy(RunFolder(tmp_path / "run").primary, shared / "model.safetensors")
    lines = []
    network = replace(found.primary, weights=str(shared))
    again = build_model(network, classes=3, say=lines.append)
    assert lines[0].endswith("its head of 3 classes too")
    expected = load_run(tmp_path / "run").model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in again.state_dict().items())
    assert normalisation_of(again) == ((0.4, 0.4, 0.4), (0.3, 0.3, 0.3))


def test_pretrained_weights_of_a_network_without_any_are_refused():
    with pytest.raises(ValueError, match="name a network of timm or torchvision, such as timm/resnet18"):
        Backbone("resnet18", weights="pretrained")
    with pytest.raises(ValueError, match=r"--primary\.no-small-images"):
        Backbone("timm/resnet18", weights="pretrained")
