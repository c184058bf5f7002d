"""What a search may vary: fields of a recipe by their path, each between two values."""

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise import cli
from counterpoise.cli.tune import flags
from counterpoise.recipes.catalog import digits
from counterpoise.recipes.config import EngineOptions, EvaluationOptions, Recipe
from counterpoise.recipes.methods import ALPHA_GRID, METHODS
from counterpoise.recipes.ranges import Range, changed_fields, default_ranges, parse_range, with_values
from counterpoise.training.study import sweep

ALPHA = Range("hyper.alpha", 0.4, 1.2)
RATE = Range("optimizer.lr", 1e-8, 1e8, log=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alpha=0.4:1.2", "did you mean hyper.alpha"),
        ("optimizer.rl=0.4:1.2", "did you mean optimizer.lr"),
        ("hyper.gamma=1:2", "no field 'hyper.gamma'"),
        ("hyper=1:2", "hyper is not a number"),
        ("data.name=1:2", "data.name is not a number"),
        ("data.flip=0:1", "data.flip is not a number"),
        ("optimizer.milestones=1:2", "optimizer.milestones is not a number"),
        ("seed=0:9", "seed decides which images are held out"),
        ("engine.devices=1:4", "one device"),
        ("hyper.alpha=0.4", "write FIELD=LOW:HIGH"),
        ("hyper.alpha", "write FIELD=LOW:HIGH"),
        ("hyper.alpha=0.4:1.2:linear", "write FIELD=LOW:HIGH"),
        ("hyper.alpha=0.4:much", "'much' is not a number"),
        ("epochs=1.5:3", "'1.5' is not a whole number"),
        ("hyper.alpha=1.2:0.4", "range of hyper.alpha is empty"),
        ("hyper.alpha=1:1", "range of hyper.alpha is empty"),
        ("hyper.alpha=0:inf", "range of hyper.alpha must be finite"),
        ("hyper.alpha=0:1:log", "logarithmic one starts above 0"),
        ("optimizer.lr=-1:1", "optimizer.lr must be positive"),
        ("pruning.share=0.1:1.5", "pruning.share must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=message):
        parse_range(text, Recipe())


def test_fields_that_may_be_none_can_be_searched():
    assert parse_range("optimizer.clip=0.1:1", Recipe()) == Range("optimizer.clip", 0.1, 1.0)
    assert parse_range("engine.checkpoint_steps=10:20", Recipe()).integer


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.grid])
def test_by_default_every_open_hyper_parameter_is_searched_between_the_ends_of_its_grid(name):
    found = {r.path: (r.low, r.high) for r in default_ranges(Recipe(method=name))}
    grids = {f"hyper.{key}": grid for key, grid in METHODS[name].grid.items() if len(grid) > 1}
    assert found == {path: (min(grid), max(grid)) for path, grid in grids.items()}


def test_hyper_parameters_that_are_given_are_not_searched():
    (found,) = default_ranges(Recipe(method="fl-dtdp", hyper={"gamma": 2.0}))
    assert found.path == "hyper.weight"
    for recipe in (Recipe(method="ce"), Recipe(hyper={"alpha": 0.8})):
        with pytest.raises(ValueError, match="no hyper-parameter left to search"):
            default_ranges(recipe)


@given(
    low=st.floats(1e-6, 1e3), ratio=st.floats(1.001, 1e4), share=st.floats(0, 1), log=st.booleans(), whole=st.booleans()
)
def test_values_lie_in_their_range(low, ratio, share, log, whole):
    if whole:
        low = round(low) + 1
        searched = Range("epochs", low, low + round(low * ratio), log=log, integer=True)
    else:
        searched = Range("optimizer.lr", low, low * ratio, log=log)
    value = searched.at(share)
    assert searched.low <= value <= searched.high
    assert isinstance(value, int if whole else float)


def test_the_sweep_of_alpha_is_the_paper_s_grid_from_the_middle():
    points = [point["hyper.alpha"] for point in sweep([ALPHA], seed=0)]
    assert points[0] == 0.8
    assert tuple(sorted(points)) == ALPHA_GRID


def test_a_sweep_of_several_fields_tries_all_shares_of_each():
    ranges = [ALPHA, Range("epochs", 10, 50, integer=True), Range("optimizer.lr", 0.01, 1.0, log=True)]
    points = sweep(ranges, seed=3)
    assert points == sweep(ranges, seed=3) != sweep(ranges, seed=4)
    assert points[0] == {"hyper.alpha": 0.8, "epochs": 30, "optimizer.lr": 0.1}
    assert sorted(point["epochs"] for point in points) == [10, 20, 30, 40, 50]


def test_the_printed_arguments_make_the_recipe():
    base = digits()
    wanted = with_values(
        replace(
            base,
            method="mte2",
            auxiliary=replace(base.auxiliary, small_images=False),
            data=replace(base.data, flip=True, limit=700, domain="my domain"),
            optimizer=replace(base.optimizer, milestones=(3, 5), nesterov=False, auxiliary_lr=1e-05, clip=None),
            evaluation=replace(base.evaluation, ood=("svhn", "dtd_32"), severities=()),
        ),
        {"hyper.alpha": 0.8373, "epochs": 7},
    )
    words = shlex.split(shlex.join(["train", "digits", *flags(base, wanted)]))
    assert cli.parse(words).config == wanted
    assert changed_fields(base, base) == {}


def test_a_method_that_does_not_exist_is_named_with_those_that_do():
    for search in (lambda recipe: parse_range("hyper.alpha=0:1", recipe), default_ranges):
        with pytest.raises(ValueError, match=r"there is no method 'focal'; the methods are ce, ls"):
            search(Recipe(method="focal"))


def test_a_grid_that_begins_at_zero_is_searched_evenly(monkeypatch):
    monkeypatch.setitem(METHODS, "er", replace(METHODS["er"], grid={"beta": (0.0, 0.1, 0.2)}))
    (found,) = default_ranges(Recipe(method="er"))
    assert (found.low, found.high, found.log) == (0.0, 0.2, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            lambda: Recipe(hyper={"alpha_warmup": 1.5}),
            "MTE-1: hyper.alpha_warmup must be at least 0 and below 1, got 1.5",
        ),
        (lambda: EngineOptions(devices=0), "engine.devices must be positive, got 0"),
        (lambda: EvaluationOptions(severities=(1, 1)), "severities must be among .*, each once"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_its_name(options, message):
    with pytest.raises(ValueError, match=message):
        options()
