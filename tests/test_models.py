"""Backbones: sizes, seeds, stems, and names that do not exist."""

import importlib
import sys

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from counterpoise.models import Backbone, build_model, list_models

OWN = ("cnn", "resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def size_after_first_stage(model: nn.Module, pixels: int) -> int:
    sizes = []
    model.layer1.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[-1]))
    model.eval()(torch.zeros(1, 3, pixels, pixels))
    return sizes[0]


@pytest.mark.parametrize(
    ("name", "count"), [("resnet18", 11_173_962), ("resnet34", 21_282_122), ("resnet50", 23_520_842)]
)
def test_small_image_form_has_the_well_known_number_of_parameters(name, count):
    assert parameters(build_model(Backbone(name), classes=10)) == count


def test_resnet10_is_resnet18_with_one_block_a_stage():
    ten, eighteen = (build_model(Backbone(name, width=8), classes=10).state_dict() for name in ("resnet10", "resnet18"))
    assert {key: value.shape for key, value in ten.items()} == {
        key: value.shape
        for key, value in eighteen.items()
        if not key.startswith(tuple(f"layer{i}.1." for i in range(5)))
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_large_image_form_of_standard_width_is_torchvisions(name):
    ours = build_model(Backbone(name, small_images=False), classes=7, seed=3)
    torch.manual_seed(3)
    theirs = torchvision.models.get_model(name, num_classes=7)
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours.eval()(images), theirs.eval()(images))
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_weights_start_as_torchvisions_do():
    weight = build_model(Backbone("resnet18"), classes=10, seed=0).layer4[1].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=1e-2)


@pytest.mark.parametrize("pixels", [8, 32, 64])
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_small_image_form_keeps_the_image_in_its_first_stage(name, pixels):
    small = build_model(Backbone(name, width=4), classes=10)
    assert size_after_first_stage(small, pixels) == pixels
    large = build_model(Backbone(name, width=4, small_images=False), classes=10)
    assert size_after_first_stage(large, pixels) == pixels // 4


@pytest.mark.parametrize("name", OWN)
def test_every_own_backbone_gives_logits_for_any_channels_and_layout(name):
    model = build_model(Backbone(name, width=2), classes=5, channels=1, seed=0).eval().double()
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    logits = model(images)
    assert logits.shape == (3, 5)
    turned = model.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(turned, logits)


@pytest.mark.slow
@given(width=st.integers(1, 9), small=st.booleans())
def test_width_scales_every_stage(width, small):
    for name, expansion in (("resnet10", 1), ("resnet50", 4)):
        model = build_model(Backbone(name, width=width, small_images=small), classes=2)
        stages = [layer[-1].conv1.out_channels for layer in (model.layer1, model.layer2, model.layer3, model.layer4)]
        assert [model.conv1.out_channels, *stages] == [width, width, 2 * width, 4 * width, 8 * width]
        assert model.fc.in_features == 8 * width * expansion


@pytest.mark.parametrize("name", ["cnn", "resnet10", "torchvision/shufflenet_v2_x0_5", "timm/resnet18"])
def test_seed_alone_decides_the_weights(name):
    backbone = Backbone(name, small_images="shuffle" not in name)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = build_model(backbone, classes=3, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    again, other = (build_model(backbone, classes=3, seed=seed).state_dict() for seed in (5, 6))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_without_a_seed_the_global_state_decides():
    torch.manual_seed(0)
    one, two = (build_model(Backbone("cnn", width=2), classes=2)[0].weight for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(one, build_model(Backbone("cnn", width=2), classes=2)[0].weight)
    assert not torch.equal(one, two)


def test_seeded_weights_are_made_on_the_cpu_whatever_the_default_device():
    with torch.device("meta"):
        assert build_model(Backbone("cnn", width=2), classes=2, seed=0)[0].weight.device.type == "cpu"


@pytest.mark.parametrize("name", ["torchvision/resnet18", "timm/resnet18"])
def test_small_image_form_of_library_resnets_is_ours(name):
    theirs = build_model(Backbone(name), classes=10)
    ours = build_model(Backbone("resnet18"), classes=10)
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(theirs.eval()(images), ours.eval()(images))


@pytest.mark.parametrize("name", ["torchvision/densenet121", "timm/densenet121"])
def test_small_image_form_of_densenets(name):
    model = build_model(Backbone(name), classes=10).eval()
    sizes = []
    model.features.denseblock1.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[-1]))
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert sizes == [32]


@pytest.mark.parametrize(
    "name",
    ["torchvision/squeezenet1_1", "timm/vit_tiny_patch16_224", "timm/resnet18d", "torchvision/shufflenet_v2_x0_5"],
)
def test_models_without_a_plain_stem_say_so(name):
    with pytest.raises(ValueError, match=f"{name} has no small-image form.*small_images=False"):
        build_model(Backbone(name), classes=10)


def test_timm_models_take_any_number_of_channels_and_torchvisions_three():
    model = build_model(Backbone("timm/resnet10t", small_images=False), classes=4, channels=1)
    assert model.eval()(torch.zeros(1, 1, 64, 64)).shape == (1, 4)
    with pytest.raises(ValueError, match="3 channels, these have 1"):
        build_model(Backbone("torchvision/resnet18"), classes=4, channels=1)


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("resnet19", "resnet18"),
        ("Resnet18", "resnet18"),
        ("torchvision/resnet19", "torchvision/resnet18"),
        ("timm/vit_tiny_patch16", "timm/vit_tiny_patch16_224"),
        ("torchvision/fcn_resnet50", "torchvision/resnet50"),
    ],
)
def test_unknown_names_are_refused_with_close_ones(name, close):
    with pytest.raises(ValueError, match=rf"{name}.*did you mean.*{close}.*list_models"):
        build_model(Backbone(name), classes=2)


@pytest.mark.parametrize("name", ["", "timm/", "os/system", "timm/hf-hub:someone/model", "timm/local-dir:/tmp"])
def test_names_that_are_no_models_are_refused_before_any_library_sees_them(name):
    with pytest.raises(ValueError, match="no backbone is called"):
        build_model(Backbone(name), classes=2)


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="width must be at least 1 and at most 65536, got 0"):
        Backbone(width=0)
    with pytest.raises(ValueError, match="at most 65536, got 1000000000"):
        Backbone(width=10**9)
    with pytest.raises(ValueError, match="timm/resnet18 has a width of its own"):
        Backbone("timm/resnet18", width=16)
    with pytest.raises(ValueError, match="classes must be at least 1, got 0"):
        build_model(Backbone("cnn"), classes=0)
    with pytest.raises(ValueError, match="channels must be at least 1, got -1"):
        build_model(Backbone("cnn"), classes=2, channels=-1)


def test_listed_names():
    names = list_models()
    assert names[: len(OWN)] == list(OWN)
    assert len(set(names)) == len(names)
    assert {"torchvision/convnext_tiny", "timm/convnext_tiny"} <= set(names)
    assert list_models("torchvision/vgg1?") == [f"torchvision/vgg1{n}" for n in (1, 3, 6, 9)]


def test_the_room_loads_libraries_of_models_where_they_are_used(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torchvision", "timm")]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("counterpoise.models")]:
        monkeypatch.delitem(sys.modules, name)
    models = importlib.import_module("counterpoise.models")
    models.build_model(models.Backbone("cnn"), classes=2)
    for name, library in (("resnet18", "torchvision"), ("torchvision/vgg11", "torchvision"), ("timm/vgg11", "timm")):
        with pytest.raises(ImportError, match=rf"{library}.*: pip install 'counterpoise\[train\]'"):
            models.build_model(models.Backbone(name), classes=2)


def test_networks_with_auxiliary_heads_are_built_without_them():
    model = build_model(Backbone("torchvision/googlenet", small_images=False), classes=5)
    logits = model.train()(torch.rand(2, 3, 32, 32))
    assert logits.shape == (2, 5)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
