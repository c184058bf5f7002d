"""Pairs of networks that learn from the same images, and the examples with tokens and pixels."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from counterpoise.models import (
    Backbone,
    Normalisation,
    Renormalised,
    build_model,
    normalisation_of,
    require_same_images,
)
from example_scripts import example

IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
SMALL_VIT = {"patch_size": 8, "embed_dim": 12, "depth": 1}


def create(name, **settings):
    import timm  # takes seconds

    return timm.create_model(name, num_classes=4, **settings)


def test_differing_normalisation_is_refused_with_both_names_and_values():
    efficient, vit = create("test_efficientnet"), create("test_vit")
    assert (normalisation_of(efficient), normalisation_of(vit)) == (IMAGENET, HALVES)
    with pytest.raises(ValueError, match="same batch") as refused:
        require_same_images([efficient, vit], shape=(3, 32, 32))
    for part in ("test_efficientnet", str(IMAGENET.mean), str(IMAGENET.std), "test_vit", str(HALVES.mean), "Renorm"):
        assert part in str(refused.value)


def test_the_third_model_is_compared_as_well():
    with pytest.raises(ValueError, match=r"model 0 .*model 2"):
        require_same_images([create("test_vit"), nn.Flatten(), create("test_efficientnet")], shape=(3, 32, 32))


def test_an_overlay_gives_both_one_normalisation():
    mine = {"pretrained_cfg_overlay": {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}}
    require_same_images([create("test_efficientnet", **mine), create("test_vit", **mine)], shape=(3, 32, 32))


def test_models_that_name_no_normalisation_are_not_refused():
    own = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    require_same_images([create("test_vit"), own], shape=(3, 32, 32))


def test_random_weights_of_a_recipe_take_images_of_any_normalisation():
    built = [
        build_model(Backbone(name, small_images=False), classes=4)
        for name in ("timm/test_vit", "timm/test_efficientnet", "torchvision/shufflenet_v2_x0_5", "resnet10")
    ]
    assert [normalisation_of(model) for model in built] == [None] * 4
    require_same_images(built, shape=(3, 32, 32))


@pytest.mark.parametrize("pixels", [32, 40, 64])
def test_a_size_is_refused_only_where_a_model_cannot_take_it(pixels):
    anything, dynamic, fixed = (
        create("test_resnet"),
        create("vit_tiny_patch16_224", img_size=64, dynamic_img_size=True, **SMALL_VIT),
        create("vit_tiny_patch16_224", img_size=32, **SMALL_VIT),
    )
    shape = (3, pixels, pixels)
    require_same_images([anything, dynamic], shape=shape)
    if pixels == 32:
        require_same_images([anything, fixed], shape=shape)
        return
    with pytest.raises(ValueError, match=rf"model 1 \(vit_tiny_patch16_224\) cannot take.*{pixels}x{pixels}.*img_size"):
        require_same_images([anything, fixed], shape=shape)


def test_channels_are_seen_as_well():
    with pytest.raises(ValueError, match=r"model 0 \(test_resnet\) cannot take images of 1x32x32"):
        require_same_images([create("test_resnet")], shape=(1, 32, 32))


@given(modes=st.lists(st.booleans(), min_size=4, max_size=4), pixels=st.sampled_from([8, 0]))
def test_the_look_leaves_modes_statistics_and_random_state(modes, pixels):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    if pixels:
        require_same_images([model], shape=(3, pixels, pixels))
    else:
        with pytest.raises(ValueError, match="model 0"):
            require_same_images([model], shape=(3, 0, 0))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)


channels = st.tuples(*[st.floats(0.1, 1.0)] * 3)


@given(given_mean=channels, given_std=channels, mean=channels, std=channels)
def test_renormalised_images_are_those_of_the_own_normalisation(given_mean, given_std, mean, std):
    model = nn.Identity()
    model.pretrained_cfg = {"mean": mean, "std": std}
    pixels = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))

    def normalised(mean, std):
        return (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]

    wrapped = Renormalised(model, given=Normalisation(given_mean, given_std))
    torch.testing.assert_close(wrapped(normalised(given_mean, given_std)), normalised(mean, std), rtol=1e-4, atol=1e-4)


def test_a_wrapped_model_is_accepted_and_keeps_its_weights():
    primary, auxiliary = create("test_efficientnet"), create("test_vit")
    wrapped = Renormalised(auxiliary, given=normalisation_of(primary))
    require_same_images([primary, wrapped], shape=(3, 32, 32))
    assert len(wrapped.state_dict()) == len(auxiliary.state_dict())
    with pytest.raises(ValueError, match="both normalisations must be known"):
        Renormalised(nn.Identity(), given=IMAGENET)


def test_a_model_that_was_wrapped_for_other_images_is_refused():
    first, second = (nn.Flatten(), nn.Flatten())
    first.pretrained_cfg = {"mean": (0.4,) * 3, "std": (0.2,) * 3}
    second.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    require_same_images([first, Renormalised(second, given=normalisation_of(first))], shape=(3, 4, 4))
    others = Renormalised(second, given=Normalisation((0.0,) * 3, (1.0,) * 3))
    with pytest.raises(ValueError, match="and both get the same batch"):
        require_same_images([first, others], shape=(3, 4, 4))


@pytest.mark.slow
def test_the_example_with_timm_says_why_and_learns(capsys):
    scores = example("timm_pair").main(steps=40)
    assert "refused: model 0 (test_resnet)" in capsys.readouterr().out
    assert scores["accuracy"].value > 0.3  # of ten classes


@pytest.mark.slow
def test_the_example_with_tokens_leaves_padding_out(capsys):
    module = example("token_classification")
    tokens, labels = module.sentences(500, seed=1)
    for scores in module.main(steps=30).values():
        assert scores.samples == int((tokens != 0).sum()) == int((labels >= 0).sum())
        assert scores["accuracy"].value > 0.3  # of five tags


@pytest.mark.slow
def test_the_example_with_pixels_learns(capsys):
    for estimates in example("segmentation").main(steps=30).values():
        assert estimates["accuracy"].value > 0.7  # background alone is 0.8 of an image
