"""Learning rates from the first step on, and the threads that a training leaves."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from counterpoise.training import resume, train
from counterpoise.training.folder import STEP_COLUMNS, RowLog, RunFolder
from runs import small_data, small_recipe


def test_warm_up_starts_with_the_first_step_and_ends_with_the_whole_rate(tmp_path):
    recipe = small_recipe("ce", optimizer__milestones=(), optimizer__warmup=1.2)  # six steps, of five an epoch
    train(recipe, tmp_path, data=small_data(recipe))
    rates = [float(row["lr"]) for row in RowLog(RunFolder(tmp_path).steps, STEP_COLUMNS).rows()]
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=recipe.optimizer.lr)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / 6, total_iters=5)
    expected = []
    for _ in rates:
        expected.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert len(rates) == 10
    assert rates == pytest.approx(expected)


def test_training_resuming_and_failing_leave_the_number_of_threads(tmp_path):
    recipe, before = small_recipe("ce", epochs=1), torch.get_num_threads()  # which asks for one
    torch.set_num_threads(2)
    try:
        train(recipe, tmp_path / "run", data=small_data(recipe))
        assert torch.get_num_threads() == 2
        resume(tmp_path / "run", data=small_data(recipe))
        assert torch.get_num_threads() == 2
        with pytest.raises(ValueError, match="made for a recipe whose batch is 20"):
            train(replace(recipe, batch=10), tmp_path / "other", data=small_data(recipe))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
