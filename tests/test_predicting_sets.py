"""Sets that are not in files of their own are predicted as one: the digits, and sets of domains."""

import re
import shutil

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torch import nn

from counterpoise.cli import parse
from counterpoise.data import load_images
from counterpoise.data.sets import SETS
from counterpoise.export import ModelConfig
from counterpoise.predictions import find_shards, read_predictions
from counterpoise.training import predicted_shards, write_shards
from test_data_sets import random_pixels, write

DOMAINS = SETS["pacs_64"].domains


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "run"
    network = [f"--primary.{option}" for option in ("name=cnn", "width=4", "small-images")]
    parse(["train", "digits", "--method=ce", "--epochs=1", *network, "--out", str(folder)]).run()
    return folder


@pytest.fixture
def domains(tmp_path):
    """Three images of each domain, told apart by their labels."""
    for place, domain in enumerate(DOMAINS):
        path = tmp_path / "root" / "pacs_64" / f"{domain}.parquet"
        write(path, random_pixels(3, 8), [place] * 3, domains=[domain] * 3)
    return tmp_path / "root"


@pytest.mark.slow
def test_digits_are_predicted_into_a_folder_by_a_run_and_from_onnx(tmp_path, run, capsys):
    expected = read_predictions(run / "predictions" / "test.parquet")
    parse(["export", str(run), "--to", "onnx", "--out", str(tmp_path / "model.onnx")]).run()
    for number, model in enumerate((run, tmp_path / "model.onnx")):
        for out in (tmp_path / f"{number}.parquet", tmp_path / f"{number}"):
            parse(["predict", str(model), "--data", "digits", "--out", str(out), *["--raw"][number:]]).run()
            found = read_predictions(find_shards(out).shards[0].path if out.is_dir() else out)
            assert found.ids.tolist() == expected.ids.tolist()
            assert found.labels.tolist() == expected.labels.tolist()
            np.testing.assert_allclose(found.values, expected.values, rtol=1e-4, atol=1e-5)
        capsys.readouterr()
        parse(["predict", str(model), "--data", "digits", "--score-only"]).run()
        assert "(360 samples, 10 classes" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_predicts_with_the_temperature_that_it_ships_with(tmp_path, capsys):
    """As its exported file does; the temperature is recomputed here by a search over the validation NLL."""
    run, network = tmp_path / "run", [f"--primary.{option}" for option in ("name=cnn", "width=8", "small-images")]
    parse(["train", "digits", "--method=ce", "--epochs=12", *network, "--out", str(run)]).run()
    parse(["export", str(run), "--to", "onnx", "--temperature", "fitted", "--out", str(tmp_path / "model.onnx")]).run()
    table = read_predictions(run / "predictions" / "validation.parquet")

    def nll(temperature):
        return -log_softmax(table.values / temperature, axis=1)[np.arange(len(table)), table.labels].mean()

    temperature = minimize_scalar(nll, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-7}).x
    assert abs(temperature - 1) > 0.02
    found = {}
    for name, model in {"own": run, "file": tmp_path / "model.onnx"}.items():
        for out in (tmp_path / f"{name}.parquet", tmp_path / name):
            parse(["predict", str(model), "--data", "digits", "--out", str(out)]).run()
            found[out.name] = read_predictions(find_shards(out).shards[0].path if out.is_dir() else out).values
    said = re.findall(r"note: logits are divided by (\S+), the temperature", capsys.readouterr().err)
    assert list(map(float, said)) == pytest.approx([temperature] * 2, rel=1e-3)
    raw = read_predictions(run / "predictions" / "test.parquet").values
    for values in found.values():
        np.testing.assert_allclose(values, raw / temperature, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(values, found["file"], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="raw logits are those of a run"):
        parse(["predict", str(tmp_path / "model.onnx"), "--data", "digits", "--raw", "--score-only"]).run()


def test_ood_predictions_in_the_folder_of_a_run_are_scored_as_its_own_are(tmp_path, run):
    """They are scored beside its test predictions, which are not scaled."""
    copy = shutil.copytree(run, tmp_path / "run")
    parse(["predict", str(copy), "--data", "digits", "--ood"]).run()
    (path,) = (copy / "predictions").glob("ood_*.parquet")
    assert np.array_equal(read_predictions(path).values, read_predictions(copy / "predictions" / "test.parquet").values)


@pytest.mark.parametrize(("domain", "split"), [("sketch", None), ("photo", "train"), (None, None), (None, "all")])
def test_a_domain_is_predicted_as_it_is_read_into_memory(tmp_path, domains, domain, split):
    info = SETS["pacs_64"]
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, len(info.classes)))
    config = ModelConfig(info.classes, shape=(3, 8, 8), mean=info.mean, std=info.std)
    options = {"config": config, "domain": domain, "split": split, "root": domains}
    write_shards(predicted_shards(model, "pacs_64", **options), tmp_path / "one.parquet")
    found = read_predictions(tmp_path / "one.parquet")
    used = split or ("all" if domain is None else "test")
    expected = load_images("pacs_64", used, domain=domain, root=domains)
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.labels.tolist() == expected.labels.tolist()
    assert found.split.names == (used,)


def test_a_folder_is_of_one_domain(tmp_path, domains):
    info = SETS["pacs_64"]
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, len(info.classes)))
    config = ModelConfig(info.classes, shape=(3, 8, 8))
    write_shards(predicted_shards(model, "pacs_64", config=config, domain="photo", root=domains), tmp_path / "out")
    with pytest.raises(ValueError, match="its domain is photo, here it is sketch; name another folder"):
        write_shards(predicted_shards(model, "pacs_64", config=config, domain="sketch", root=domains), tmp_path / "out")
    with pytest.raises(ValueError, match=r"domain must be one of .*, got 'film'"):
        write_shards(predicted_shards(model, "pacs_64", config=config, domain="film", root=domains), tmp_path / "other")
