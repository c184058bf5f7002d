"""What a run finds when it begins: files of other runs, variables of launchers, edited files, networks of the user's."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from counterpoise._files import read_safetensors, replacing, write_text
from counterpoise.data import Images
from counterpoise.models import Backbone
from counterpoise.predictions import open_predictions
from counterpoise.recipes.config import EngineOptions, Recipe
from counterpoise.training import engine as engine_of_runs
from counterpoise.training import from_images, resume, train
from counterpoise.training import saving as states
from counterpoise.training.checkpoints import Entry, Manifest, newest_intact, read_manifest, write_manifest
from counterpoise.training.devices import full_float32
from counterpoise.training.engine import fit
from counterpoise.training.evaluation import prediction_file
from counterpoise.training.folder import RunFolder, _revision, read_environment
from runs import ending, small_data, small_recipe
from test_resume import interrupt


def edited(run: RunFolder, **changes: object) -> None:
    run.config.write_text(json.dumps(json.loads(run.config.read_text()) | changes))


# Launchers


@pytest.fixture
def second_task(monkeypatch):
    """A task of a job array, each of which trains a run of its own."""
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    for name, value in {
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "4",
        "SLURM_JOB_NAME": "array",
        "SLURM_LOCALID": "1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_a_run_for_one_process_is_whole_whatever_rank_the_environment_names(tmp_path, second_task):
    recipe = small_recipe("ce", epochs=1)
    evaluation = train(recipe, tmp_path / "task", data=small_data(recipe, test=True))
    assert evaluation is not None
    assert RunFolder(tmp_path / "task").config.exists()
    rank_zero_only.rank = 1
    assert resume(tmp_path / "task", data=small_data(recipe, test=True)).to_json() == evaluation.to_json()


def test_lightning_requeues_no_job(monkeypatch):
    """It would go on from a checkpoint that the run's manifest does not know."""
    monkeypatch.setattr(SLURMEnvironment, "detect", staticmethod(lambda: True))
    (found,) = engine_of_runs._environment(EngineOptions(devices=2))
    assert isinstance(found, SLURMEnvironment)
    assert not found.auto_requeue
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert engine_of_runs._environment(EngineOptions(devices=2)) == []


def test_training_leaves_the_threads_as_they_were(tmp_path, monkeypatch):
    """With several devices Lightning takes fewer, which the next run of the process would have for its condition."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    class FewerError(Exception):
        pass

    def fewer(*_, **__):
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"
        raise FewerError

    monkeypatch.setattr("lightning.Trainer.fit", fewer)
    recipe, run = small_recipe("ce"), RunFolder(tmp_path)
    torch.set_num_threads(2)
    try:
        with pytest.raises(FewerError):
            fit(recipe, run, nn.Linear(1, 1), small_data(recipe), resume_from=None)
        assert torch.get_num_threads() == 2
        assert "OMP_NUM_THREADS" not in os.environ
    finally:
        torch.set_num_threads(1)


# Files of other runs


@pytest.mark.parametrize("left", ["primary.safetensors", "predictions/test.parquet", "checkpoints/step-000000002.ckpt"])
def test_what_is_left_of_another_run_is_not_taken_for_this_one(tmp_path, left):
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).touch()
    recipe = small_recipe("ce")
    with pytest.raises(ValueError, match=r"of another run, and no config\.json; remove the folder"):
        train(recipe, tmp_path, data=small_data(recipe))


def test_a_trained_run_keeps_its_configuration(tmp_path):
    recipe = small_recipe("ce", epochs=1)
    train(recipe, tmp_path, data=small_data(recipe))
    run = RunFolder(tmp_path)
    edited(run, epochs=3)
    with pytest.raises(ValueError, match=r"config\.json has changed since it was trained; start another run"):
        resume(tmp_path, data=small_data(recipe), allow=["config"])
    assert read_environment(run).resumed == []


def test_a_run_that_was_trained_with_an_allowed_change_is_resumed(tmp_path):
    recipe = small_recipe("ce")
    run = interrupt(recipe, tmp_path, after=3)
    edited(run, epochs=3)
    longer = replace(recipe, epochs=3)
    for _ in range(2):
        resume(run.path, data=small_data(longer), allow=["config"])
    assert len(ending(run.path)[1]) == 15


def test_checkpoints_without_their_manifest_are_not_thrown_away(tmp_path):
    recipe = small_recipe("ce")
    run = interrupt(recipe, tmp_path, after=5)
    kept = sorted(run.checkpoints.glob("*.ckpt"))
    (run.checkpoints / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"step-\d+\.ckpt and no manifest\.json.*remove them to begin anew"):
        resume(run.path, data=small_data(recipe))
    assert sorted(run.checkpoints.glob("*.ckpt")) == kept


@pytest.mark.slow
def test_the_best_checkpoint_is_taken_where_later_ones_are_damaged(tmp_path, capsys):
    recipe = small_recipe("ce")
    train(recipe, tmp_path / "whole", data=small_data(recipe))
    run = interrupt(recipe, tmp_path / "broken", after=9)
    manifest = read_manifest(run.checkpoints)
    copy = run.checkpoints / "step-000000001.ckpt"
    copy.write_bytes((run.checkpoints / manifest.previous.file).read_bytes())
    best = replace(manifest.previous, file=copy.name)
    write_manifest(run.checkpoints, replace(manifest, best=best))
    for entry in (manifest.last, manifest.previous):
        (run.checkpoints / entry.file).write_bytes(b"damaged")
    found, faults = newest_intact(run.checkpoints)
    assert (found, len(faults)) == (best, 2)
    resume(run.path, data=small_data(recipe))
    assert "going back to step 6" in capsys.readouterr().err
    assert ending(run.path) == ending(tmp_path / "whole")


def test_a_checkpoint_that_is_two_things_is_looked_at_once(tmp_path):
    entry = Entry(file="step-000000002.ckpt", sha256="0", bytes=1, step=2, epoch=0)
    write_manifest(tmp_path, Manifest(last=entry, best=entry))
    assert newest_intact(tmp_path) == (None, [f"{tmp_path / entry.file} is missing"])


def test_an_edited_log_is_named(tmp_path):
    recipe = small_recipe("ce")
    run = interrupt(recipe, tmp_path, after=7)
    run.epochs.write_text(run.epochs.read_text().replace(",", ";"))
    with pytest.raises(ValueError, match=r"epochs\.csv: row 0 is not as it was written, with the columns epoch, step"):
        resume(run.path, data=small_data(recipe))


def test_a_checkpoint_of_other_networks_is_refused_by_name(tmp_path):
    recipe = small_recipe("ce")
    run = interrupt(recipe, tmp_path, after=5)
    edited(run, primary=asdict(Backbone(name="cnn", width=8)))
    with pytest.raises(
        ValueError, match=r"step-000000004\.ckpt is of other networks than the recipe's: .*size mismatch"
    ):
        resume(run.path, data=small_data(recipe), allow=["config"])


def test_the_revision_is_never_that_of_somebody_elses_repository(tmp_path):
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "--allow-empty", "-m", "c"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)  # noqa: S607
    (tmp_path / "__init__.py").touch()
    assert _revision(tmp_path) == ""


# Networks and images of the user's


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(192, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.linear(images.flatten(1))


@pytest.mark.parametrize(("method", "count"), [("mte1", 1), ("mte2", 2), ("ce", 2)])
def test_another_number_of_networks_than_the_method_trains_is_refused(tmp_path, method, count):
    recipe = small_recipe(method)
    with pytest.raises(ValueError, match=rf"{method} trains \d networks?; models= made {count}"):
        train(recipe, tmp_path / "run", data=small_data(recipe), models=lambda _: [Small() for _ in range(count)])
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_network_of_ones_own_has_the_name_of_its_class(tmp_path):
    recipe = small_recipe("ce", epochs=1)
    train(recipe, tmp_path, data=small_data(recipe, test=True), models=lambda _: [Small()])
    run = RunFolder(tmp_path)
    metadata, _ = read_safetensors(run.primary)
    assert metadata["model"] == "Small"
    assert "width" not in metadata
    assert open_predictions(prediction_file(run, "test")).header.model == "Small"


def test_one_class_is_refused_before_anything_is_trained(tmp_path):
    images = Images.of(np.zeros((40, 8, 8, 3), np.uint8), [0] * 40, mean=[0.0] * 3, std=[1.0] * 3)
    recipe = small_recipe("ce")
    with pytest.raises(ValueError, match="images has 1 class; at least 2 are needed"):
        train(recipe, tmp_path / "run", data=from_images(recipe, images))


def test_sets_have_files_of_their_own(tmp_path):
    run = RunFolder(tmp_path)
    names = ["ood_/data/a/b", "ood_/data/a-b", "ood_a/b", "ood_" + 300 * "x", "ood_" + 301 * "x"]
    files = [prediction_file(run, name).name for name in names]
    assert len(set(files)) == len(names)
    assert max(map(len, files)) < 130


def test_seeds_may_be_of_numpy():
    assert Recipe(seed=np.int64(3)).to_json() == Recipe(seed=3).to_json()


# What only a GPU does


def test_predictions_are_convolved_in_full_float32():
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    with full_float32():
        assert (cudnn.allow_tf32, cudnn.benchmark) == (False, False)
    assert (cudnn.allow_tf32, cudnn.benchmark) == before


def test_the_generator_of_the_own_device_alone_is_kept(monkeypatch):
    restored = []
    monkeypatch.setattr(states, "_uses_cuda", lambda: True)
    monkeypatch.setattr("torch.cuda.get_rng_state", lambda: torch.ones(1))
    monkeypatch.setattr("torch.cuda.set_rng_state", restored.append)
    state = states.random_state()
    states.set_random_state(state)
    assert [len(state["cuda"]), len(restored)] == [1, 1]
    monkeypatch.setattr(states, "_uses_cuda", lambda: False)
    states.set_random_state(state)
    assert len(restored) == 1


def test_loggers_that_are_not_installed_are_named_first(tmp_path, monkeypatch):
    monkeypatch.setattr("counterpoise.training.preflight.find_spec", lambda _: None)
    recipe = small_recipe("ce", engine__loggers=("wandb", "mlflow"))
    with pytest.raises(ImportError, match=r"engine.loggers needs wandb, mlflow: pip install wandb mlflow"):
        train(recipe, tmp_path / "run", data=small_data(recipe))
    assert not (tmp_path / "run").exists()


def test_what_killed_writers_left_is_removed_by_the_next_one(tmp_path):
    """And nothing else: what a living process writes, what is young, what belongs to another file."""
    target = tmp_path / "config.json"
    program = (
        "import os, sys\nfrom counterpoise._files import replacing\n"
        "with replacing(sys.argv[1]) as temporary:\n    temporary.write_text('half')\n    os.kill(os.getpid(), 9)\n"
    )
    for name in ("config.json", "config.json", "other.json"):
        assert subprocess.run([sys.executable, "-c", program, str(tmp_path / name)], check=False).returncode == -9
    left = sorted(tmp_path.iterdir())
    assert [path.name.split(".")[1] for path in left] == ["config", "config", "other"]
    write_text(target, "whole")
    assert set(left) < set(tmp_path.iterdir())  # young
    for path in left:
        os.utime(path, (0, 0))
    with replacing(target) as mine:
        mine.write_text("mine")
        os.utime(mine, (0, 0))
        write_text(target, "again")
        assert mine.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["config.json", left[2].name])
    assert target.read_text() == "mine"
