"""Sets that are not in files of their own are predicted as one: the digits, and sets of domains."""

import numpy as np
import pytest
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
            parse(["predict", str(model), "--data", "digits", "--out", str(out)]).run()
            found = read_predictions(find_shards(out).shards[0].path if out.is_dir() else out)
            assert found.ids.tolist() == expected.ids.tolist()
            assert found.labels.tolist() == expected.labels.tolist()
            np.testing.assert_allclose(found.values, expected.values, rtol=1e-4, atol=1e-5)
        capsys.readouterr()
        parse(["predict", str(model), "--data", "digits", "--score-only"]).run()
        assert "(360 samples, 10 classes" in capsys.readouterr().out


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
