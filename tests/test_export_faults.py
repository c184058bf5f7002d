"""What export must not overwrite or delete, what it refuses before it is too late, and models of odd kinds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file
from torch import nn

from counterpoise.calibrators import TemperatureScaling, VectorScaling
from counterpoise.cli import parse
from counterpoise.export import ModelConfig, export_pt2, export_safetensors, load_safetensors
from counterpoise.export.card import Card, public_name
from counterpoise.export.snippet import loading_snippet
from counterpoise.export.temperature import temperature_value
from counterpoise.integrations.hub import from_pretrained, save_pretrained
from counterpoise.models import Backbone, build_model
from counterpoise.training import load_run, train
from tests.runs import small_data, small_recipe

BACKBONE = Backbone("cnn", width=4)
CONFIG = ModelConfig(("a", "b", "c"), shape=(1, 8, 8), mean=(0.5,), std=(0.25,), backbone=BACKBONE)


def network() -> nn.Module:
    return build_model(BACKBONE, classes=3, channels=1, seed=0).eval()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path, recipe = tmp_path_factory.mktemp("runs") / "stripes", small_recipe("ce", epochs=1)
    train(recipe, path, data=small_data(recipe, test=True))
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.slow
def test_a_run_stays_as_it_was_trained(run):
    before = content(run)
    parse(["export", str(run), "--to", "safetensors", "--temperature", "1.5"]).run()
    parse(["export", str(run), "--to", "safetensors"]).run()
    for out, kind in ((run / "primary.safetensors", "safetensors"), (run, "hub")):
        with pytest.raises(ValueError, match=r"holds the weights of the run|is a recipe, which would be overwritten"):
            parse(["export", str(run), "--to", kind, "--out", str(out)]).run()
    after = content(run)
    assert set(after) - set(before) == {"export.safetensors"}
    assert before == {name: after[name] for name in before}


def test_a_file_that_no_run_wrote_is_named(run, tmp_path):
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    save_file({"weight": torch.zeros(1)}, tmp_path / "primary.safetensors")
    with pytest.raises(
        ValueError, match=r"primary.safetensors was not written by a run: its metadata lack class_names"
    ):
        load_run(tmp_path)


def test_files_of_others_in_a_folder_stay(tmp_path):
    for name in ("best-of-last-month.safetensors", "notes.txt"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "model-00001-of-00002.safetensors").write_text("of an earlier, larger model")
    for _ in range(2):
        save_pretrained(network(), tmp_path, config=CONFIG, card=Card("net"))
    assert (tmp_path / "best-of-last-month.safetensors").read_text() == (tmp_path / "notes.txt").read_text() == "mine"
    assert not list(tmp_path.glob("model-*-of-*"))
    assert "best-of-last-month" not in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_a_compiled_model_is_saved_as_the_model(tmp_path):
    model = network()
    save_pretrained(torch.compile(model), tmp_path, config=CONFIG, card=Card("net"))
    found = from_pretrained(tmp_path).model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "model", [network().bfloat16(), nn.Linear(64, 7), build_model(BACKBONE, classes=4, channels=1)]
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, model):
    with pytest.raises(ValueError, match="the model is not the cnn of the configuration with 3 classes"):
        save_pretrained(model, tmp_path / "new", config=CONFIG, card=Card("net"))
    assert not (tmp_path / "new").exists()


def test_sizes_are_compared_before_they_are_taken(tmp_path):
    """30,000 channels would be 65 GB."""
    save_pretrained(network(), tmp_path, config=CONFIG, card=Card("net"))
    document = json.loads((tmp_path / "config.json").read_text())
    document["backbone"]["width"] = 30_000
    del document["sha256"]
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="does not fit"):
        from_pretrained(tmp_path)


@pytest.mark.slow
def test_the_script_of_a_card_normalises_inputs_of_any_rank(tmp_path):
    scripts = []
    for shape in ((4,), (4, 6), (4, 2, 3)):
        folder = tmp_path / str(len(shape))
        folder.mkdir()
        mean, std = (10.0, 20.0, 30.0, 40.0), (1.0, 2.0, 3.0, 4.0)
        config = ModelConfig(("a", "b", "c"), shape=shape, mean=mean, std=std)
        (folder / "config.json").write_text(config.to_json())
        model = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 3))
        export_safetensors(model, folder / "model.safetensors", metadata={})
        built = f"torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear({torch.Size(shape).numel()}, 3))"
        text = loading_snippet(config, transformers_class=None).replace("...  # the network", f"{built}  # the network")
        (folder / "script.py").write_text(
            f"{text}\nassert inputs.shape == (1, *{shape}) and probabilities.shape == (1, 3)"
        )
        scripts.append(f"os.chdir({str(folder)!r}); runpy.run_path('script.py')")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    code = "; ".join(["import os, runpy", *scripts])
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)


def test_a_configuration_keeps_the_number_of_a_fitted_temperature():
    logits = torch.tensor([[4.0, 0.0]]).repeat(4, 1)
    fitted = TemperatureScaling().fit(logits, torch.tensor([0, 0, 0, 1]))
    assert ModelConfig(("a", "b"), temperature=fitted).temperature == fitted.temperature
    assert ModelConfig(("a", "b"), temperature=None).temperature == 1.0
    with pytest.raises(ValueError, match="a VectorScaling is no temperature"):
        temperature_value(VectorScaling().fit(logits + torch.eye(4)[:, :2], torch.tensor([0, 0, 0, 1])))


class Masked(nn.Linear):
    """Never says the last class; a block of it runs without autocast."""

    def forward(self, images):
        with torch.autocast("cpu", enabled=False):
            logits = super().forward(images)
        return logits.index_fill(-1, torch.tensor([2]), -torch.inf)


def test_a_masked_class_is_exported_and_no_place_is_named(tmp_path):
    export_pt2(Masked(4, 3), tmp_path / "net.pt2", example=torch.zeros(2, 4), metadata={})
    assert str(Path(__file__).name).encode() not in (tmp_path / "net.pt2").read_bytes()


class Views(nn.Module):
    """A buffer that is a part of another."""

    def __init__(self):
        super().__init__()
        self.register_buffer("whole", torch.arange(6.0))
        self.register_buffer("part", self.whole[:3])


def test_a_buffer_within_another_comes_back_with_it(tmp_path):
    model = Views()
    model.whole += 1
    export_safetensors(model, tmp_path / "x.safetensors", metadata={})
    for load in (load_safetensors, load_model):
        found = Views()
        load(found, tmp_path / "x.safetensors")
        assert found.whole.tolist() == [1, 2, 3, 4, 5, 6]
        assert found.part.tolist() == [1, 2, 3]


class Tied(nn.Module):
    """A square matrix, and its transpose in the same memory if they are tied."""

    def __init__(self, *, tied):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(3, 3))
        self.b = nn.Parameter(self.a.data.t() if tied else torch.zeros(3, 3))


@pytest.mark.parametrize("tied", [True, False])
def test_a_transpose_in_the_same_memory_comes_back_as_one(tmp_path, tied):
    model = Tied(tied=True)
    model.a.data.copy_(torch.arange(9.0).reshape(3, 3))
    export_safetensors(model, tmp_path / "x.safetensors", metadata={})
    found = Tied(tied=tied)
    load_safetensors(found, tmp_path / "x.safetensors")
    assert torch.equal(found.a, model.a)
    assert torch.equal(found.b, model.a.t())


@pytest.mark.parametrize(
    ("name", "shown"),
    [("clients/acme/photos.parquet", "photos.parquet"), ("mine/photos.parquet", "photos.parquet"), ("a/b", "a/b")],
)
def test_only_ids_of_the_hub_are_shown_whole(name, shown):
    assert public_name(name) == shown


def test_tied_weights_in_another_memory_format_are_written_once(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)).to(memory_format=torch.channels_last)
    model[1].weight = model[0].weight
    export_safetensors(model, tmp_path / "x.safetensors", metadata={})
    other = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    load_safetensors(other, tmp_path / "x.safetensors")
    assert torch.equal(other[1].weight, model[0].weight)
    assert len(load_file(tmp_path / "x.safetensors")) == 3
