"""Parquet files of a set, by the splits that their names begin with: each file is of one, and what is stored is used."""

import json

import pytest
import torch

from counterpoise.cli import parse
from counterpoise.data import load_images, resolve
from counterpoise.predictions import read_predictions
from counterpoise.recipes.config import DataOptions, Recipe
from counterpoise.training import named_data
from counterpoise.training.data import require_evaluable
from test_data_sets import random_pixels, write

ROWS = {"train": 24, "validation": 6, "valid": 6, "val": 6, "test": 5}
PIPELINES = ("memory", "stream")


def stored(folder, *splits):
    for split in splits:
        write(folder / f"{split}-0.parquet", random_pixels(ROWS[split]), [row % 2 for row in range(ROWS[split])])
    return folder


def prepared(folder, pipeline, **options):
    """What a run reads, after all that is looked at before training."""
    data = DataOptions(name=str(folder), pipeline=pipeline, validation=4, workers=0, **options)
    recipe = Recipe(method="ce", data=data, batch=4, seed=0)
    found = named_data(recipe)
    require_evaluable(recipe, found.example, root=None)
    return found


def trained_on(data):
    return sorted(torch.cat([batch.ids for batch in data.training(0, 0, 1)]).tolist())


@pytest.mark.parametrize("name", ["validation", "valid", "val"])
def test_a_file_is_of_one_split_whatever_its_name_is_short_for(tmp_path, name):
    source = resolve(stored(tmp_path / "set", "train", name, "test"))
    assert {split: len(files) for split, files in source.files.items()} == {"train": 1, "validation": 1, "test": 1}
    assert len(load_images(tmp_path / "set", name)) == len(load_images(tmp_path / "set", "validation")) == 6


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_stored_validation_images_validate_and_all_others_train(tmp_path, pipeline):
    data = prepared(stored(tmp_path / "set", "train", "val", "test"), pipeline)
    assert torch.equal(data.validation.pixels, load_images(tmp_path / "set", "validation").pixels)
    assert trained_on(data) == list(range(24))
    assert (len(data.test()), data.held_out) == (5, {})


def test_what_is_asked_of_a_set_without_test_images_can_be_done(tmp_path):
    folder = stored(tmp_path / "set", "train", "validation")
    expected = {}
    for pipeline in PIPELINES:
        with pytest.raises(ValueError, match=r"has no split 'test' .*, say how many: --data.test 0.15"):
            prepared(folder, pipeline)
        data = prepared(folder, pipeline, test=0.15)
        assert len(data.validation) == 6
        tested = data.test()
        assert sorted([*tested.ids.tolist(), *trained_on(data)]) == list(range(24))
        assert data.held_out == {"test": tested.ids.tolist()}
        assert torch.equal(tested.pixels, load_images(folder, "train", ids=tested.ids).pixels)
        expected[pipeline] = tested.ids.tolist()
    assert expected["memory"] == expected["stream"]


@pytest.mark.parametrize("rule", ["shuffled", "hashed"])
@pytest.mark.parametrize("names", [("train",), ("part",)])
def test_both_pipelines_hold_out_the_same_rows(tmp_path, names, rule):
    for name in names:
        write(tmp_path / "set" / f"{name}.parquet", random_pixels(24), [row % 2 for row in range(24)])
    held = [prepared(tmp_path / "set", pipeline, test=5, validation_rows=rule).held_out for pipeline in PIPELINES]
    assert held[0] == held[1]
    assert {split: len(rows) for split, rows in held[0].items()} == {"test": 5, "validation": 4}
    assert not set(held[0]["test"]) & set(held[0]["validation"])


@pytest.mark.slow
def test_a_stream_with_test_images_that_were_held_out_trains_to_its_scores(tmp_path):
    folder, run = stored(tmp_path / "set", "train", "validation"), tmp_path / "run"
    network = [f"--primary.{option}" for option in ("name=cnn", "width=4", "weights=random", "small-images")]
    stream = ("--data.pipeline=stream", "--data.test=0.25", "--data.no-stratify", "--data.unreadable=refuse")
    others = ("--data.size=6", "--data.workers=0", "--batch=4", "--epochs=1", "--optimizer.layer-decay=1")
    parse(["train", str(folder), "--method=ce", *network, *stream, *others, "--out", str(run)]).run()
    assert read_predictions(run / "predictions" / "test.parquet").ids.tolist() == sorted(
        json.loads((run / "split.json").read_text())["test"]
    )
    assert len(read_predictions(run / "predictions" / "validation.parquet")) == 6
