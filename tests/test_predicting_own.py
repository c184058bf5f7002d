"""Predicting images of one's own: whatever classes of the model they are of, and whether or not anybody has labelled them."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoise.cli import parse
from counterpoise.data import load_images, resolve
from counterpoise.data.fingerprint import fingerprint
from counterpoise.predictions import find_shards, read_predictions
from counterpoise.training import load_run, predict, predicted_shards, score_shards, write_shards
from counterpoise.training.folder import RunFolder, read_environment
from odd_images import photos, picture, rows_of, table
from runs import edit_environment
from test_own_images import SMALL

CLASSES = ("cat", "dog", "fox")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a folder of photos, and the folder."""
    place = tmp_path_factory.mktemp("own")
    photos(place / "photos", dict.fromkeys(CLASSES, 10))
    parse(["train", str(place / "photos"), *SMALL, "--method=ce", "--out", str(place / "run")]).run()
    return place / "run", place / "photos"


def predicted(run, data, out, *options):
    """The predictions that the command writes into one file."""
    parse(["predict", str(run), "--data", str(data), "--out", str(out / "one.parquet"), *options]).run()
    return read_predictions(out / "one.parquet")


def by_id(table):
    return dict(zip(table.ids.tolist(), zip(table.labels.tolist(), table.values.tolist(), strict=True), strict=True))


def streamed(run, data, out, **options):
    """What is written file by file, which must be the same."""
    write_shards(predicted_shards(run, data, **options), out / "folder")
    return read_predictions(out / "folder" / "part-00000.parquet")


@pytest.mark.parametrize("kept", [("cat", "dog"), ("dog", "fox"), ("fox",)])
@pytest.mark.parametrize("as_table", [False, True])
def test_labels_are_those_of_the_model_by_name(tmp_path, trained, kept, as_table):
    run, data = trained
    every = by_id(predicted(run, data, tmp_path, "--size=8"))
    place = tmp_path / "some"
    for name in kept:
        shutil.copytree(data / name, place / name)
    given = table(place / "table.csv", rows_of(place)) if as_table else place
    found = by_id(predicted(run, given, tmp_path, "--size=8"))
    assert {name for name in found if found[name][0] != CLASSES.index(name.split("/")[0])} == set()
    assert {*found} == {name for name in every if name.split("/")[0] in kept}
    for name, (label, logits) in found.items():
        assert label == every[name][0]
        np.testing.assert_allclose(logits, every[name][1], rtol=1e-4, atol=1e-5)
    again = by_id(streamed(run, given, tmp_path))
    assert {name: label for name, (label, _) in again.items()} == {name: label for name, (label, _) in found.items()}


def a_flat_folder(place, data):
    return shutil.copytree(data / "fox", place / "new")


def a_table_without_labels(place, data):
    return table(shutil.copytree(data, place / "new") / "t.csv", [(path,) for path, _ in rows_of(data)], ("path",))


def a_table_of_other_columns(place, data):
    rows = [(path, number) for number, (path, _) in enumerate(rows_of(data))]
    return table(shutil.copytree(data, place / "new") / "t.csv", rows, ("path", "taken"))


def a_table_of_empty_labels(place, data):
    return table(shutil.copytree(data, place / "new") / "t.csv", [(path, "") for path, _ in rows_of(data)])


@pytest.mark.parametrize(
    "make", [a_flat_folder, a_table_without_labels, a_table_of_other_columns, a_table_of_empty_labels]
)
def test_images_without_labels_are_predicted(tmp_path, trained, make, capsys):
    run, data = trained
    every, place = by_id(predicted(run, data, tmp_path, "--size=8")), make(tmp_path, data)
    capsys.readouterr()
    found = by_id(predicted(run, place, tmp_path, "--size=8"))
    assert f"note: {len(found)} of {len(found)} images have no label" in capsys.readouterr().err
    prefix = "fox/" if make is a_flat_folder else ""
    assert len(found) == (10 if prefix else 30)
    for name, (label, logits) in found.items():
        assert label == -1
        np.testing.assert_allclose(logits, every[f"{prefix}{name}"][1], rtol=1e-4, atol=1e-5)
    assert {*streamed(run, place, tmp_path).labels.tolist()} == {-1}


def test_classes_that_the_model_does_not_know_are_named_with_what_to_say(tmp_path, trained):
    run, data = trained
    place = photos(shutil.copytree(data, tmp_path / "new"), {"wolf": 2})
    message = r"new has 'wolf' among its classes, .* it tells apart 'cat', 'dog', 'fox'; .* add --ood$"
    with pytest.raises(ValueError, match=message):
        predicted(run, place, tmp_path, "--size=8")
    with pytest.raises(ValueError, match=message):
        streamed(run, place, tmp_path)
    found = predicted(run, place, tmp_path, "--size=8", "--ood")
    assert {*found.labels.tolist()} == {-1}
    assert not found.in_distribution.any()


def test_rows_are_known_by_their_files_and_by_number_where_a_table_repeats_one(tmp_path, trained):
    run, data = trained
    rows = [("photos/cat/0.png", "cat"), (str(data / "dog" / "1.png"), "dog")]
    given = table(data.parent / "t.csv", rows)
    assert predicted(run, given, tmp_path, "--size=8").ids.tolist() == ["photos/cat/0.png", "photos/dog/1.png"]
    foggy = predicted(run, given, tmp_path, "--size=8", "--corruptions", "contrast")
    assert foggy.ids.tolist()[:3] == ["photos/cat/0.png", "photos/dog/1.png", "photos/cat/0.png contrast 1"]
    assert len({*foggy.ids.tolist()}) == len(foggy)
    assert predicted(run, table(data.parent / "t.csv", [*rows, rows[0]]), tmp_path, "--size=8").ids.tolist() == [
        0,
        1,
        2,
    ]


def test_damage_is_met_as_in_training_unless_it_is_said_otherwise(tmp_path, trained, capsys):
    run, data = trained
    place = shutil.copytree(data, tmp_path / "new")
    (place / "dog" / "3.png").write_bytes(b"damage")
    expected = {name: row for name, row in by_id(predicted(run, data, tmp_path)).items() if name != "dog/3.png"}
    capsys.readouterr()
    found = by_id(predicted(run, place, tmp_path))  # the recipe skips
    warning = r"warning: 1 image cannot be read and is left out: .*dog/3.png, row 13 of the split"
    assert re.search(warning, capsys.readouterr().err)
    one_by_one = by_id(streamed(run, place, tmp_path, batch=7))
    assert re.search(warning, capsys.readouterr().err)
    for each in (found, one_by_one):
        assert {name: label for name, (label, _) in each.items()} == {
            name: label for name, (label, _) in expected.items()
        }
    np.testing.assert_allclose(
        [logits for _, logits in one_by_one.values()], [logits for _, logits in expected.values()], rtol=1e-4, atol=1e-5
    )
    assert score_shards(predicted_shards(run, place)).models[0].samples == 29
    refused = r"dog/3.png, row 13 .*; remove it, or leave out what cannot be read: --unreadable skip"
    with pytest.raises(ValueError, match=refused):
        predicted(run, place, tmp_path, "--unreadable", "refuse")
    with pytest.raises(ValueError, match=refused):
        streamed(run, place, tmp_path / "refused", unreadable="refuse")
    for path in place.rglob("*.png"):
        path.write_bytes(b"damage")
    with pytest.raises(ValueError, match=r"no such rows; the first that cannot be read: .*cat/0.png"):
        predicted(run, place, tmp_path)
    with pytest.raises(ValueError, match=r"none of its images can be read; the first: .*cat/0.png"):
        streamed(run, place, tmp_path / "none")


def test_photos_become_as_large_as_those_of_the_run(tmp_path, trained):
    run, data = trained
    asked = by_id(predicted(run, data, tmp_path, "--size=8"))
    assert by_id(predicted(run, data, tmp_path)) == asked
    assert by_id(streamed(run, data, tmp_path)).keys() == asked.keys()
    with pytest.raises(ValueError, match=r"images of 5 x 5 x 3 .* trained on 8 x 8 x 3; resize them with --size 8"):
        predicted(run, data, tmp_path, "--size=5")
    with pytest.raises(ValueError, match=r"has 5 x 5 pixels, the model takes 8 x 8; resize and crop all with --size 8"):
        write_shards(predicted_shards(run, data, size=5), tmp_path / "small")
    with pytest.raises(
        ValueError, match=r"has 9 x 7 pixels and the first one 7 x 9; .*--size of `counterpoise predict`"
    ):
        load_images(photos(photos(tmp_path / "two", {"a": 1}, size=(7, 9)), {"b": 1}), "all")


def test_an_exported_file_resizes_photos_as_its_metadata_say(tmp_path, trained):
    run, data = trained
    parse(["export", str(run), "--to", "onnx", "--out", str(tmp_path / "model.onnx")]).run()
    found = predicted(tmp_path / "model.onnx", data, tmp_path)
    expected = by_id(predicted(run, data, tmp_path, "--raw"))
    assert {*by_id(found)} == {*expected}
    for sample, values in zip(found.ids.tolist(), found.values, strict=True):
        np.testing.assert_allclose(values, expected[sample][1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("split", ["test", "validation"])
def test_what_a_run_held_out_is_predicted_by_name(tmp_path, trained, split, capsys):
    run, data = trained
    expected = read_predictions(run / "predictions" / f"{split}.parquet")
    assert len(expected) < 30
    capsys.readouterr()
    found = predicted(run, data, tmp_path, "--split", split)
    again = streamed(run, data, tmp_path, split=split)
    assert "trained on" not in capsys.readouterr().err
    for each in (found, again):
        assert each.ids.tolist() == expected.ids.tolist()
        assert each.labels.tolist() == expected.labels.tolist()
        assert each.split.names == (split,)
        np.testing.assert_allclose(each.values, expected.values, rtol=1e-4, atol=1e-5)
    assert score_shards(predicted_shards(run, data, split=split)).models[0].samples == len(expected)
    elsewhere = shutil.copytree(data, tmp_path / "elsewhere")
    assert predicted(run, elsewhere, tmp_path, "--split", split).ids.tolist() == expected.ids.tolist()
    (elsewhere / "cat" / "0.png").write_bytes(picture(seed=99))
    with pytest.raises(ValueError, match=f"elsewhere has no split '{split}' at"):
        predicted(run, elsewhere, tmp_path, "--split", split)


def test_images_that_the_run_was_trained_on_are_counted(tmp_path, trained, capsys):
    run, data = trained
    held = sum(map(len, json.loads((run / "split.json").read_text()).values()))
    note = f"note: the run was trained on {30 - held} of these images, .*; --split test has those"
    (tmp_path / "other").mkdir()
    for command in (predicted, streamed):
        capsys.readouterr()
        command(run, data, tmp_path)
        assert re.search(note, capsys.readouterr().err)
        copy = shutil.copytree(data, tmp_path / command.__name__)
        command(run, copy, tmp_path / "other")
        assert re.search(note, capsys.readouterr().err)
        (copy / "cat" / "0.png").write_bytes(picture(seed=99))
        (tmp_path / f"other-{command.__name__}").mkdir()
        command(run, copy, tmp_path / f"other-{command.__name__}")
        assert "trained on" not in capsys.readouterr().err


@pytest.mark.slow
def test_other_images_under_the_name_of_the_runs_own_have_no_rows_that_it_held_out(tmp_path, monkeypatch, capsys):
    """Two folders, each with a `photos`: what the run held out is known of one of them."""
    for place, color in (("one", 0), ("two", 1000)):
        for label, name in enumerate(CLASSES):
            (tmp_path / place / "photos" / name).mkdir(parents=True)
            for index in range(10):
                path = tmp_path / place / "photos" / name / f"{index}.png"
                path.write_bytes(picture(seed=color + 100 * label + index))
    monkeypatch.chdir(tmp_path / "one")
    run = tmp_path / "run"
    parse(["train", "photos", *SMALL, "--method=ce", "--out", str(run)]).run()
    expected = by_id(read_predictions(run / "predictions" / "test.parquet"))
    monkeypatch.chdir(tmp_path / "two")
    for command in (predicted, streamed):
        options = ("--split", "test") if command is predicted else ()
        with pytest.raises(ValueError, match=r"photos has the name .* but another content, .*leave out --split"):
            command(run, "photos", tmp_path, *options, **({} if options else {"split": "test"}))
    capsys.readouterr()
    assert len(predicted(run, "photos", tmp_path)) == 30
    assert "the run may know some of these images" in capsys.readouterr().err
    assert {*by_id(predicted(run, "../one/photos", tmp_path, "--split=test"))} == {*expected}


@pytest.mark.slow
def test_a_run_is_not_resumed_on_other_images_unless_that_is_allowed(tmp_path):
    data, run = photos(tmp_path / "photos", dict.fromkeys(CLASSES, 10)), tmp_path / "run"
    parse(["train", str(data), *SMALL, "--method=ce", "--out", str(run)]).run()
    (run / "SHA256SUMS").unlink()
    shutil.rmtree(run / "predictions")
    scores = (run / "scores.json").read_bytes()
    for path in data.rglob("*.png"):
        path.write_bytes(picture(seed=0))
    with pytest.raises(ValueError, match=r"the content of the data was .*, is .*the change with --allow data, which"):
        parse(["resume", str(run)]).run()
    assert (run / "scores.json").read_bytes() == scores
    parse(["resume", str(run), "--allow", "data"]).run()
    assert json.loads((run / "environment.json").read_text())["resumed"][-1]["allowed"] == ["data"]
    assert (run / "scores.json").read_bytes() != scores


def test_rows_of_parquet_files_that_were_held_out_are_predicted_by_name(tmp_path, trained):
    """A run on several files, of which the second has one row held out, and the others none or more."""
    run, data = shutil.copytree(trained[0], tmp_path / "run"), tmp_path / "files"
    data.mkdir()
    files = sorted(trained[1].rglob("*.png"))
    for place in range(3):
        own = files[10 * place : 10 * place + 10]
        stored = {"image": [path.read_bytes() for path in own], "label": [place] * 10}
        pq.write_table(pa.table(stored), data / f"part-{place}.parquet")
    recipe = RunFolder(run).recipe()
    (run / "config.json").write_text(replace(recipe, data=replace(recipe.data, name=str(data))).to_json())
    (run / "split.json").write_text(json.dumps({"test": [13, 25, 21]}))
    (before,) = read_environment(RunFolder(run)).started.data.values()
    edit_environment(RunFolder(run), before, fingerprint(resolve(data), "all"))
    write_shards(predicted_shards(run, data, split="test"), tmp_path / "out")
    found = [read_predictions(shard.path) for shard in find_shards(tmp_path / "out").shards]
    assert [table.ids.tolist() for table in found] == [[13], [21, 25]]
    assert [table.labels.tolist() for table in found] == [[1], [2, 2]]


def test_progress_counts_every_image_that_is_predicted(tmp_path, trained):
    run, data = trained
    done = []
    images = load_images(data, "all", size=8)
    predict(
        load_run(run),
        images,
        tmp_path / "one.parquet",
        split="all",
        corruptions=("contrast",),
        progress=lambda name, rows, total: done.append((name, rows, total)),
    )
    rows = len(read_predictions(tmp_path / "one.parquet"))
    assert {name for name, _, _ in done} == {"photos, all"}
    assert [each for _, each, _ in done] == sorted({each for _, each, _ in done})
    assert done[-1][1:] == (rows, rows)
