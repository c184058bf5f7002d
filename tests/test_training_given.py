"""Runs of images and networks that were made in Python: what they are held to, and what resuming them needs."""

import os
import subprocess
import sys
from dataclasses import replace

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from counterpoise import MutualTransport
from counterpoise.data.workers import in_workers
from counterpoise.predictions import Predictions, PredictionWriter, concatenated, read_predictions
from counterpoise.recipes.config import DataOptions, OptimizerOptions
from counterpoise.training import ObjectiveModule, from_images, load_run, predict, resume, train
from counterpoise.training.folder import read_environment
from runs import CLASSES, RunFolder, small_data, small_recipe, striped_images


def networks(outputs=3):
    return lambda _: [nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, outputs)) for _ in range(2)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "whose seed is 0, and here it is 1"),
        ({"batch": 10}, "whose batch is 20, and here it is 10"),
        ({"data": DataOptions(validation=30, padding=1)}, r"whose data\.validation is 20, and here it is 30"),
    ],
)
def test_images_that_were_made_for_another_recipe_are_refused(tmp_path, changes, message):
    recipe = small_recipe()
    with pytest.raises(ValueError, match=message):
        train(replace(recipe, **changes), tmp_path / "run", data=small_data(recipe))
    assert not (tmp_path / "run").exists()


def test_networks_with_other_outputs_than_classes_are_refused_before_anything_is_trained(tmp_path):
    recipe = small_recipe()
    with pytest.raises(ValueError, match=r"model 0 \(Sequential\) has 4 outputs, and there are 3 classes"):
        train(recipe, tmp_path / "run", data=small_data(recipe), models=networks(4))
    assert not (tmp_path / "run").exists()


def test_what_was_given_in_python_is_needed_again(tmp_path):
    recipe = small_recipe(epochs=1)
    data, models = small_data(recipe), networks()
    train(recipe, tmp_path / "run", data=data, models=models)
    with pytest.raises(
        ValueError, match=r"with data and models of its own: give the same, .*data=\.\.\., models=\.\.\."
    ):
        resume(tmp_path / "run")
    with pytest.raises(ValueError, match=r"with data of its own"):
        resume(tmp_path / "run", models=models)
    with pytest.raises(ValueError, match=r"a network of its own, Sequential: .*load_run\(folder, models=\.\.\.\)"):
        load_run(tmp_path / "run")
    assert load_run(tmp_path / "run", models=models).classes == CLASSES
    assert not read_environment(RunFolder(tmp_path / "run")).resumed
    resume(tmp_path / "run", data=data, models=models)


def test_a_run_does_not_go_on_with_other_classes(tmp_path):
    recipe = small_recipe()
    data = small_data(recipe)
    train(recipe, tmp_path / "run", data=data)
    other = replace(data, example=replace(data.example, classes=("low", "high", "middle")))
    with pytest.raises(
        ValueError, match="started with the classes low, middle, high, and the data have low, high, middle"
    ):
        resume(tmp_path / "run", data=other)


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_images_of_these_classes(tmp_path):
    recipe = small_recipe()
    train(recipe, tmp_path / "run", data=small_data(recipe))
    other = from_images(recipe, striped_images(seed=5))
    with pytest.raises(ValueError, match=r"the content of the data was .*accept the change with --allow data"):
        resume(tmp_path / "run", data=other)
    resume(tmp_path / "run", data=other, allow=["data"])


def test_a_refused_resumption_changes_nothing(tmp_path):
    recipe = small_recipe()
    train(recipe, tmp_path / "run", data=small_data(recipe))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    other = replace(small_data(recipe), validation_rows=torch.arange(20))
    with pytest.raises(ValueError, match="holds other images"):
        resume(tmp_path / "run", data=other)
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {path: content for path, content in after.items() if path.name != ".lock"} == {
        path: content for path, content in before.items() if path.name != ".lock"
    }


# In somebody's own trainer


def trained_by(trainer_options, *, clip=None):
    torch.manual_seed(0)
    images = striped_images(40)
    pixels = images.pixels.float() / 255
    primary, auxiliary = networks()(0)
    before = [parameter.detach().clone() for parameter in primary.parameters()]
    options = OptimizerOptions(lr=0.5, milestones=(), clip=clip)
    module = ObjectiveModule(MutualTransport(primary, [auxiliary], 0.8), optimizer=options, epochs=1)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **trainer_options,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(pixels, images.labels), batch_size=20)
    trainer.fit(module, loader, loader)
    moved = sum(float((new.detach() - old).norm()) for new, old in zip(primary.parameters(), before, strict=True))
    return module, moved


@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
def test_ordinary_loaders_train_and_the_trainers_clipping_is_that_of_each_model():
    module, freely = trained_by({})
    assert module.validation.keys() == {"nll", "accuracy", "ece"}
    _, by_trainer = trained_by({"gradient_clip_val": 1e-6})
    _, by_options = trained_by({}, clip=1e-6)
    assert by_trainer == by_options < 1e-2 < freely  # weights decay
    with pytest.raises(ValueError, match="clipped by norm; leave out gradient_clip_algorithm"):
        trained_by({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"})


# Elsewhere


class Pids:
    def __getitem__(self, index):
        return os.getpid()


def test_a_signal_to_all_processes_leaves_those_that_prepare_batches_to_their_reader():
    indices = list(range(64))
    loader = iter(in_workers(Pids(), workers=1, device=torch.device("cpu"), indices=indices))
    pid = next(loader)
    subprocess.run([sys.executable, "-c", f"import os, signal; os.kill({pid}, signal.SIGTERM)"], check=True)
    assert list(loader) == [pid] * 63


def test_rows_without_ids_are_numbered_over_all_tables(tmp_path):
    tables = [Predictions.of(logits=torch.randn(10, 3), labels=[0] * 10) for _ in range(3)]
    with PredictionWriter(tmp_path / "a.parquet") as writer:
        for table in tables:
            writer.append(table)
    assert read_predictions(tmp_path / "a.parquet").ids.tolist() == list(range(30))
    assert concatenated(tables).ids.tolist() == list(range(30))
    with PredictionWriter(tmp_path / "b.parquet") as writer:  # parts of a table keep the numbers of their rows
        for start in (0, 4):
            writer.append(tables[0].rows(start, start + 4))
    assert read_predictions(tmp_path / "b.parquet").ids.tolist() == list(range(8))
    with PredictionWriter(tmp_path / "c.parquet") as writer:
        writer.append(tables[0])
        with pytest.raises(ValueError, match="some tables have ids and some have none"):
            writer.append(replace(tables[1], numbered=False))


def test_predictions_may_be_written_to_a_path_that_is_text(tmp_path):
    recipe = small_recipe(epochs=1)
    train(recipe, tmp_path / "run", data=small_data(recipe))
    predict(load_run(tmp_path / "run"), striped_images(10), str(tmp_path / "new.parquet"), split="new")
    assert len(read_predictions(tmp_path / "new.parquet")) == 10
