"""A run that is told to end (SIGTERM) saves where it is, and goes on from there."""

import signal
from functools import partial

import pytest

from counterpoise.training import resume, train
from counterpoise.training import run as runs_of_recipes
from counterpoise.training.checkpoints import read_manifest
from counterpoise.training.engine import fit
from counterpoise.training.folder import RunFolder
from runs import Tell, ending, small_data, small_recipe

pytestmark = pytest.mark.slow


# Two epochs of five steps; by itself the run would save after the second only.
@pytest.mark.parametrize(
    "tell",
    [Tell(1), Tell(3), Tell(5), Tell(5, validating=True), Tell(8), Tell(10), Tell(10, validating=True)],
    ids=lambda tell: f"{tell.step}{'v' * tell.validating}",
)
def test_a_run_that_is_told_to_end_saves_its_step_and_goes_on_from_there(tmp_path, monkeypatch, tell):
    recipe = small_recipe(engine__checkpoint_steps=None, engine__checkpoint_epochs=2)
    before = signal.getsignal(signal.SIGTERM)
    train(recipe, tmp_path / "whole", data=small_data(recipe))
    with monkeypatch.context() as patched:
        patched.setattr(runs_of_recipes, "fit", partial(fit, callbacks=[tell]))
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "told", data=small_data(recipe))
    assert tell.left is signal.SIG_DFL  # a second signal ends the process at once
    assert signal.getsignal(signal.SIGTERM) is before
    run = RunFolder(tmp_path / "told")
    assert read_manifest(run.checkpoints).last.step == tell.step
    assert not run.primary.exists()
    resume(tmp_path / "told", data=small_data(recipe))
    assert run.primary.exists()
    assert ending(tmp_path / "told") == ending(tmp_path / "whole")
