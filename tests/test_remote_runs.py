"""Runs whose auxiliaries train in processes of their own: the steps, checkpoints and folder of any other run."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils import _pytree

from counterpoise.recipes.config import EngineOptions, Recipe
from counterpoise.training.checkpoints import newest_intact, read_state
from counterpoise.training.folder import EPOCH_COLUMNS, STEP_COLUMNS, RowLog, RunFolder
from counterpoise.training.roles import joined, taken
from ranks import recipe_for, run, start_ranks
from runs import Stop, ending, small_recipe

AVERAGED = {"engine__ema": 0.8, "patience": 2, "data__balance": "weights"}
ADAMW = {"optimizer__name": "adamw", "optimizer__lr": 0.003, "optimizer__decay_norms": False}


def recipe_with(devices: int, auxiliary_devices: int, **changes) -> Recipe:
    return recipe_for(devices, "auto", engine__auxiliary_devices=auxiliary_devices, **changes)


PAIR, TEAMS = recipe_with(1, 1, **AVERAGED), recipe_with(2, 1, **ADAMW)
TRIO = recipe_with(1, 2, method="mte2")


def alone(recipe: Recipe) -> Recipe:
    """The same in one process."""
    return replace(recipe, engine=replace(recipe.engine, devices=1, auxiliary_devices=0))


def state(folder: Path) -> dict:
    entry, _ = newest_intact(RunFolder(folder).checkpoints)
    return read_state(RunFolder(folder).checkpoints / entry.file)


def assert_alike(found: Any, expected: Any, *, atol: float = 0.0) -> None:
    """Numbers, text and tensors at the same places."""
    ours, theirs = (dict(_pytree.tree_flatten_with_path(each)[0]) for each in (found, expected))
    assert ours.keys() == theirs.keys()
    for place, value in ours.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, theirs[place], rtol=0, atol=atol)
        else:
            assert value == theirs[place], place


def losses(folder: Path) -> list[float]:
    return [float(row["loss"]) for row in RowLog(RunFolder(folder).steps, STEP_COLUMNS).rows()]


@pytest.fixture(scope="module")
def made(made_once):
    def make(folder: Path) -> None:
        start_ranks(2, partial(run, PAIR, folder / "pair", network="named"))
        start_ranks(
            3,
            partial(run, TEAMS, folder / "teams", network="named"),
            partial(run, TEAMS, folder / "cut", network="named", callback=Stop(7)),
        )
        start_ranks(
            3,
            partial(run, TEAMS, folder / "cut", network="named"),
            partial(run, TRIO, folder / "trio"),
            partial(run, TRIO, folder / "trio cut", callback=Stop(7)),
        )

    return made_once("remote_runs", make)


@pytest.mark.slow
def test_a_process_for_each_network_gives_the_bits_of_one_process(made, tmp_path):
    """With BatchNorm, weights of classes, a moving average and early stopping."""
    run(alone(PAIR), tmp_path / "one", network="named")
    found, expected = state(made / "pair"), state(tmp_path / "one")
    assert losses(made / "pair") == losses(tmp_path / "one")
    for part in ("state_dict", "optimizer_states", "loops"):
        assert_alike(found[part], expected[part])
    validated = [
        [row["validation_nll"] for row in RowLog(RunFolder(folder).epochs, EPOCH_COLUMNS).rows()]
        for folder in (made / "pair", tmp_path / "one")
    ]
    assert validated[0] == validated[1]
    one, other = (load_file(RunFolder(folder).primary) for folder in (made / "pair", tmp_path / "one"))
    assert_alike(one, other)
    assert {path.name for path in (made / "pair").iterdir()} == {path.name for path in (tmp_path / "one").iterdir()}


def test_interrupted_runs_go_on_with_the_same_bits(made):
    assert ending(made / "cut") == ending(made / "teams")


def test_several_auxiliaries_take_the_steps_of_one_process(made, tmp_path):
    run(alone(TRIO), tmp_path / "one")
    assert losses(made / "trio") == pytest.approx(losses(tmp_path / "one"), abs=1e-6)
    found, expected = state(made / "trio"), state(tmp_path / "one")
    for part in ("state_dict", "optimizer_states"):
        assert_alike(found[part], expected[part], atol=1e-6)


def test_one_process_goes_on_where_several_were_cut(made, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(made / "trio cut", folder)
    RunFolder(folder).config.write_text(alone(TRIO).to_json())
    run(alone(TRIO), folder)
    assert losses(folder) == pytest.approx(losses(made / "trio"), abs=1e-6)


def test_optimizers_are_joined_and_taken_apart():
    """Where one begins with the options that another ends with, these groups become one, as in one process."""

    def optimizer(*sizes: int, lr: float) -> torch.optim.Optimizer:
        groups = [{"params": [torch.ones(1, requires_grad=True) for _ in range(size)], "lr": lr} for size in sizes]
        made = torch.optim.AdamW(groups)
        for number, parameter in enumerate(each for group in groups for each in group["params"]):
            parameter.grad = torch.full((1,), 1.0 + number)
        made.step()
        return made

    parts = [optimizer(2, 1, lr=0.1), optimizer(3, lr=0.2), optimizer(2, lr=0.2)]
    states = [part.state_dict() for part in parts]
    whole = joined(joined(states[0], states[1]), states[2])
    assert [len(group["params"]) for group in whole["param_groups"]] == [2, 1, 5]
    assert list(whole["state"]) == list(range(8))
    for first, part, expected in zip((0, 3, 6), parts, states, strict=True):
        found = taken(whole, first, [len(group["params"]) for group in part.param_groups])
        assert_alike(found, expected)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EngineOptions(auxiliary_devices=-1), "engine.auxiliary_devices must not be negative"),
        (
            lambda: EngineOptions(auxiliary_devices=1, precision="float16"),
            "neither fsdp nor float16 nor engine.compile",
        ),
        (lambda: small_recipe("ce", engine__auxiliary_devices=1), "ce has no auxiliaries .* mte1, mte2, mte-lite"),
        (
            lambda: small_recipe("mte-lite", engine__auxiliary_devices=1),
            "savings are of auxiliaries beside the primary",
        ),
        (
            lambda: small_recipe("mte2", engine__auxiliary_devices=1),
            "1 processes cannot be divided between 2 auxiliaries",
        ),
        (lambda: small_recipe(engine__auxiliary_devices=3), "batch 20 cannot be divided between the 3 processes"),
        (lambda: small_recipe("mte2", engine__auxiliary_devices=4, data__mixup=0.2), "engine.auxiliary_devices 2"),
    ],
)
def test_what_cannot_be_divided_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
