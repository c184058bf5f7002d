"""What a run is given: networks and images of any form, devices, OOD sets, and how all of it is predicted."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from counterpoise.cli import parse
from counterpoise.data import Images
from counterpoise.data.memory import batches_of
from counterpoise.predictions import read_predictions
from counterpoise.recipes.config import EvaluationOptions
from counterpoise.training import from_images, load_run, named_data, predict, train
from counterpoise.training.callbacks import ProgressBar
from counterpoise.training.data import require_same_kind
from counterpoise.training.devices import require_device
from counterpoise.training.engine import require_devices
from counterpoise.training.folder import EPOCH_COLUMNS, RowLog, RunFolder
from counterpoise.training.module import ObjectiveModule, RunDataModule
from runs import small_data, small_recipe, striped_images


def write_folder(path, images: Images) -> None:
    for row, (pixels, label) in enumerate(zip(images.pixels, images.labels.tolist(), strict=True)):
        (path / images.classes[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path / images.classes[label] / f"{row:03}.png")


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_the_last_row_of_epochs_is_that_of_the_written_predictions(tmp_path, precision):
    """Held-out images that fill no batch, and a moving average: what is validated is what ships, in float32."""
    recipe = small_recipe(data__validation=23, evaluation__batch=7, engine__ema=0.8, engine__precision=precision)
    train(recipe, tmp_path, data=small_data(recipe))
    predictions = read_predictions(RunFolder(tmp_path).predictions / "validation.parquet")
    nll = functional.cross_entropy(torch.tensor(predictions.values), torch.tensor(np.asarray(predictions.labels)))
    (*_, last) = RowLog(RunFolder(tmp_path).epochs, EPOCH_COLUMNS).rows()
    assert len(predictions) == 23
    assert float(last["validation_nll"]) == pytest.approx(nll.item(), rel=1e-5)


class Wrapped(nn.Module):
    """Returns its logits in a mapping or an object, as models of other libraries do."""

    def __init__(self, form: type) -> None:
        super().__init__()
        self.linear, self.form = nn.Linear(192, 3), form

    def forward(self, images: Tensor) -> object:
        return self.form(logits=self.linear(images.flatten(1)))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "form"), [("mte1", dict), ("de3", SimpleNamespace)])
def test_models_may_return_their_logits_in_a_mapping_or_an_object(tmp_path, method, form):
    recipe = small_recipe(method, epochs=1, engine__checkpoint_steps=None)

    def models(seed: int) -> list[nn.Module]:
        torch.manual_seed(seed)
        return [Wrapped(form) for _ in range(2 if method == "mte1" else 1)]

    train(recipe, tmp_path, models=models, data=small_data(recipe, test=True))
    assert len(read_predictions(RunFolder(tmp_path).predictions / "test.parquet")) == 60


@pytest.mark.slow
def test_images_need_not_be_square(tmp_path):
    recipe = small_recipe("ce", epochs=1)
    images = [striped_images(rows, seed=rows) for rows in (120, 60)]
    training, test = (replace(each, pixels=each.pixels[..., :6]) for each in images)
    train(recipe, tmp_path, data=from_images(recipe, training, test=lambda: test))
    trained = load_run(tmp_path)
    assert trained.shape == (3, 8, 6)
    predict(trained, test, tmp_path / "again.parquet", split="test")
    written = read_predictions(RunFolder(tmp_path).predictions / "test.parquet")
    assert np.array_equal(read_predictions(tmp_path / "again.parquet").values, written.values)


@pytest.mark.parametrize(("batch", "world", "expected"), [(500, 8, 496), (3, 8, 8), (500, 1, 500), (512, 8, 512)])
def test_ranks_share_the_batches_of_validation(batch, world, expected):
    recipe = small_recipe(data__validation=23)
    module = RunDataModule(small_data(recipe), evaluation_batch=batch, seed=0)
    seen = []
    for rank in range(world):
        strategy = SimpleNamespace(root_device=torch.device("cpu"))
        module.trainer = SimpleNamespace(global_rank=rank, world_size=world, strategy=strategy)
        loader = module.val_dataloader()
        batches = list(loader)
        assert len(batches) == len(loader) == batches_of(23, batch=expected, rank=rank, drop_last=False)
        seen += [row for images in batches for row in images.ids.tolist()]
    assert sorted(seen) == sorted(small_data(recipe).validation.ids.tolist())


def test_devices_that_are_not_there_are_refused_before_the_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    recipe = small_recipe("ce", engine__accelerator="gpu")
    with pytest.raises(ValueError, match=r"engine.accelerator gpu with engine.devices 1 needs .* torch sees cpu here"):
        train(recipe, tmp_path / "run", data=small_data(recipe))
    assert not (tmp_path / "run").exists()
    for name in ("cuda", "cuda:1", "cpu:1", "nonsense"):
        with pytest.raises(ValueError, match=f"torch sees no device '{name}' here; it sees cpu"):
            require_device(name)
    two = ["cpu", "cuda:0", "cuda:1"]
    for module in ("devices", "engine"):
        monkeypatch.setattr(f"counterpoise.training.{module}.visible_devices", lambda: two)
    for name in ("cpu", "cuda", "cuda:1"):
        require_device(name)
    require_devices(replace(recipe.engine, devices=2))
    with pytest.raises(
        ValueError, match=r"engine.devices 3 needs as many cuda devices; torch sees cpu, cuda:0, cuda:1"
    ):
        require_devices(replace(recipe.engine, devices=3))


@pytest.mark.slow
def test_an_ood_set_that_is_predicted_again_is_not_counted_twice(tmp_path, monkeypatch):
    """By the text of the recipe, with a slash behind it, and from another folder; undivided, as images or Parquet."""
    for split in ("train", "test"):
        write_folder(tmp_path / "set" / split, striped_images(60))
    write_folder(tmp_path / "far", striped_images(20, seed=3))
    recipe = small_recipe("ce", epochs=1, data__name=str(tmp_path / "set"))
    recipe = replace(recipe, evaluation=EvaluationOptions(ood=(str(tmp_path / "far"),)))
    run = RunFolder(tmp_path / "run")
    train(recipe, run.path)
    (written,) = run.predictions.glob("ood_*.parquet")
    expected = read_predictions(written).values
    assert len(expected) == 20
    monkeypatch.chdir(tmp_path)
    for data in (str(tmp_path / "far"), f"{tmp_path / 'far'}/", "far"):
        for split in ("test", "all"):
            parse(["predict", str(run.path), "--data", data, "--ood", "--split", split]).run()
            assert list(run.predictions.glob("ood_*.parquet")) == [written]
            assert np.array_equal(read_predictions(written).values, expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "digits"])
def test_a_limit_may_be_spread_over_folders_and_digits(tmp_path, kind):
    if kind == "folder":
        for split in ("train", "test"):
            write_folder(tmp_path / split, striped_images(60))
    name = "digits" if kind == "digits" else str(tmp_path)
    recipe = small_recipe("ce", data__name=name, data__limit=30, data__validation=10, evaluation__images=9)
    first, spread = (named_data(replace(recipe, data=replace(recipe.data, spread=spread))) for spread in (False, True))
    assert len(spread.validation) == len(first.validation) == 10
    assert len(spread.test()) == len(first.test()) == 9
    assert spread.test().ids.max() > first.test().ids.max()
    if kind == "folder":
        assert (len(first.test().labels.unique()), len(spread.test().labels.unique())) == (1, 3)


def test_other_channels_are_not_to_be_resized():
    grey, large = striped_images(2, channels=1), striped_images(2, size=16)
    with pytest.raises(ValueError, match=r"trained on 8 x 8 x 3; use a set whose images have 3 channels"):
        require_same_kind(grey, shape=(3, 8, 8), classes=None)
    with pytest.raises(ValueError, match=r"use a set whose images have 1 channel$"):
        require_same_kind(large, shape=(1, 16, 16), classes=None)
    with pytest.raises(ValueError, match=r"resize them with --size 8 \(of a recipe: data.size\)"):
        require_same_kind(large, shape=(3, 8, 8), classes=None)


def test_the_bar_fetches_the_loss_only_when_it_is_drawn(monkeypatch):
    class Loss:
        fetched = 0

        def item(self) -> float:
            Loss.fetched += 1
            return 0.5

    recipe = small_recipe("ce")
    module = ObjectiveModule(nn.Linear(1, 1), optimizer=recipe.optimizer, epochs=1)
    module.latest = SimpleNamespace(loss=Loss())
    bar = ProgressBar()
    for step in range(1, 21):
        assert bar.get_metrics(SimpleNamespace(global_step=step), module) == {"loss": "0.500"}
    assert Loss.fetched == 1 + 4
    module.validation = {"nll": 1.0}
    assert bar.get_metrics(SimpleNamespace(global_step=21), module) == {"loss": "0.500", "nll": "1.000"}


@pytest.mark.slow
def test_what_is_wrong_is_said_without_the_engine(tmp_path):
    code = """
import sys
from counterpoise.cli import parse

for command in ("resume nosuch", "predict nosuch --data digits", "train digits --method mte3"):
    try:
        parse(command.split()).run()
    except ValueError:
        assert "lightning" not in sys.modules, command
    else:
        sys.exit(f"{command}: nothing was wrong")
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ})
