"""Where two options or two sets of images meet in a run: neither is passed over, and what cannot be is said before."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from counterpoise import SupervisedObjective
from counterpoise.cli import parse
from counterpoise.cli.evaluate import Evaluate
from counterpoise.data import Images, resolve
from counterpoise.data.tables import AmbiguousTableError, read_table, require_files
from counterpoise.functional.losses import cross_entropy
from counterpoise.monitoring import begin, update
from counterpoise.predictions import read_predictions
from counterpoise.recipes import OptimizerOptions
from counterpoise.recipes.catalog import finetune
from counterpoise.recipes.ranges import parse_range
from counterpoise.training import ObjectiveModule, from_images, named_data, predicted_shards, train, write_shards
from counterpoise.training.data import require_evaluable, require_same_kind
from counterpoise.training.preflight import passed_over
from odd_images import photos
from runs import small_recipe
from test_own_images import SMALL
from test_predicting_own import CLASSES, predicted, trained  # noqa: F401


def images(labels, classes, *, bright=0):
    pixels = torch.full((len(labels), 3, 8, 8), bright, dtype=torch.uint8) + torch.arange(8, dtype=torch.uint8)
    return Images.of(pixels, torch.tensor(labels), classes=classes)


def test_validation_images_are_labelled_and_normalised_as_the_training_images():
    training = images([0, 1, 2] * 20, ["ant", "bee", "cat"])
    data = from_images(small_recipe(), training, validation=images([1, 0], ["cat", "ant"], bright=90))
    validation = data.validation
    assert [validation.classes[label] for label in validation.labels] == ["ant", "cat"]
    assert validation.classes == training.classes
    assert (validation.mean, validation.std) == (training.mean, training.std)
    with pytest.raises(ValueError, match="'dog' among its classes"):
        from_images(small_recipe(), training, validation=images([0], ["dog"]))


def test_few_test_images_of_a_folder_are_of_all_classes(tmp_path):
    photos(tmp_path / "photos", dict.fromkeys(CLASSES, 10))
    options = ("--data.test=0.4", "--evaluation.images=3")
    data = named_data(parse(["train", str(tmp_path / "photos"), *SMALL, *options]).config)
    assert sorted(data.test().labels.tolist()) == [0, 1, 2]


def test_options_of_which_one_would_be_passed_over_are_refused(tmp_path):
    photos(tmp_path / "photos", dict.fromkeys(CLASSES, 10))
    monitored = parse(["train", str(tmp_path / "photos"), *SMALL, "--engine.monitor=accuracy"]).config
    with pytest.raises(ValueError, match="take --patience None"):
        train(monitored, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"auxiliary_lr has no effect beside optimizer\.auxiliary_factor"):
        parse_range("optimizer.auxiliary_lr=0.001:0.1:log", finetune())


def test_a_rate_without_effect_is_named():
    followed = replace(finetune(), optimizer=replace(finetune().optimizer, auxiliary_lr=0.001))
    assert "auxiliary_lr, 0.001, has no effect" in passed_over(followed)
    assert passed_over(finetune()) is passed_over(small_recipe()) is None


@pytest.mark.slow
def test_an_optimizer_that_is_none_is_refused_before_there_is_a_folder(tmp_path):
    recipe = small_recipe()
    with pytest.raises(ValueError, match="there is no optimizer 'adm'"):
        train(replace(recipe, optimizer=replace(recipe.optimizer, name="adm")), tmp_path / "run", data=None)
    assert not (tmp_path / "run").exists()


def test_what_was_frozen_by_hand_stays_frozen():
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    network[0].weight.requires_grad_(False)
    module = ObjectiveModule(
        SupervisedObjective(network, cross_entropy),
        optimizer=OptimizerOptions(frozen_epochs=1),
        epochs=2,
        pretrained=[True],
    )
    assert {id(each) for each in module._trunks()} == {id(network[0].bias), *map(id, network[1].parameters())}


def test_how_many_images_are_tested_on_is_not_searched():
    with pytest.raises(ValueError, match=r"data\.test"):
        parse_range("data.test=0.1:0.3", finetune())


def test_every_image_of_an_ood_folder_is_looked_at_before_training(tmp_path):
    photos(tmp_path / "photos", dict.fromkeys(CLASSES, 10))
    photos(tmp_path / "odd", {"all": 5})
    sorted((tmp_path / "odd" / "all").iterdir())[3].write_bytes(b"no image")
    options = (f"--evaluation.ood={tmp_path / 'odd'}", "--data.unreadable=refuse")
    recipe = parse(["train", str(tmp_path / "photos"), *SMALL, *options]).config
    with pytest.raises(ValueError, match="leave out what cannot be read"):
        require_evaluable(recipe, named_data(recipe).validation, root=None)


def test_images_alone_beside_an_empty_folder_are_of_no_class(tmp_path):
    photos(tmp_path, {"flat": 3})
    (tmp_path / "flat" / "out").mkdir()
    assert resolve(tmp_path / "flat").info.classes == ()


def test_names_of_classes_may_be_written_on_windows(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"")
    (tmp_path / "classes.txt").write_bytes(b"\xef\xbb\xbfcat\r\ndog\r\n\r\n")
    assert resolve(tmp_path / "a.tar").info.classes == ("cat", "dog")
    (tmp_path / "classes.txt").write_bytes(b"cat\n\ndog\n")
    with pytest.raises(ValueError, match="line 2: there is no name of a class"):
        resolve(tmp_path / "a.tar")


@pytest.mark.slow
def test_numbered_labels_of_a_file_are_the_models(trained, tmp_path, capsys):  # noqa: F811
    run, folder = trained
    files = [path for name in CLASSES for path in sorted((folder / name).iterdir())[:2]]
    column = [{"bytes": path.read_bytes(), "path": None} for path in files]
    pq.write_table(pa.table({"image": column, "label": [0, 0, 1, 1, 2, 2]}), tmp_path / "new.parquet")
    one = predicted(run, tmp_path / "new.parquet", tmp_path)
    write_shards(predicted_shards(run, tmp_path / "new.parquet"), tmp_path / "many")
    many = read_predictions(tmp_path / "many" / "new.parquet")
    assert one.labels.tolist() == many.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_images_of_another_form_are_not_to_be_made_square():
    with pytest.raises(ValueError, match="resize them to 12 x 16 beforehand"):
        require_same_kind(images([0], ["a"]), shape=(3, 16, 12), classes=None)


def test_a_table_as_excel_writes_it(tmp_path):
    photos(tmp_path / "p", {"cat": 1})
    (file,) = (tmp_path / "p" / "cat").iterdir()
    (tmp_path / "t.csv").write_text(f"sep=;\npath;label\n{file};cat\n{'x' * 300};dog\n")
    table = read_table(str(tmp_path / "t.csv"))
    assert table.labels == ["cat", "dog"]
    with pytest.raises(ValueError, match="row 1: there is no file"):
        require_files(table, str(tmp_path / "t.csv"))
    (tmp_path / "t.csv").write_bytes("path;label\n".encode("utf-16"))
    with pytest.raises(ValueError, match="save it as CSV UTF-8"):
        read_table(str(tmp_path / "t.csv"))
    asked = AmbiguousTableError("which", "oo.csv", ["oo.csv?path=a"])
    assert "--evaluation.ood=oo.csv?path=a" in asked.as_commands(["train", "digits", "--evaluation.ood=oo.csv"])


def test_an_equals_sign_within_a_path_makes_no_name(tmp_path, capsys):
    (tmp_path / "day=1").mkdir()
    rows = "".join(f"{label},{0.5 + 0.004 * row},{0.5 - 0.004 * row}\n" for row, label in enumerate([0, 1] * 60))
    (tmp_path / "day=1" / "a.csv").write_text("label,p0,p1\n" + rows)
    command = parse(["evaluate", str(tmp_path / "day=1" / "*.csv"), "--json"])
    assert isinstance(command, Evaluate)
    command.run()
    assert json.loads(capsys.readouterr().out)["models"][0]["samples"] == 120


def test_labels_that_are_not_added_are_named(tmp_path):
    day, rows = "2026-03-01T00:00:00", np.arange(40)
    values = 0.5 + 0.01 * rows

    def write(name, labels, ids=rows):
        table = [f"{i},{day},{values[i]:.2f},{1 - values[i]:.2f},{labels(i)}" for i in ids]
        (tmp_path / name).write_text("\n".join(["id,time,p0,p1,label", *table]) + "\n")
        return tmp_path / name

    begin(tmp_path / "monitor", write("reference.csv", lambda i: i % 2), start="2026-02-01")
    first = write("first.csv", lambda i: 0 if i < 20 else "")
    assert update(tmp_path / "monitor", first).kept == 1
    again = update(tmp_path / "monitor", first)
    assert (again.kept, [each for each in again.notices if "not added" in each]) == (0, [])
    second = update(tmp_path / "monitor", write("second.csv", lambda i: 0 if i >= 20 else ""))
    assert any("20 labels are not added to those that are there" in each for each in second.notices)
    every = update(tmp_path / "monitor", write("every.csv", lambda i: 0))
    assert every.kept == 1
    assert not any("not added" in each for each in every.notices)
