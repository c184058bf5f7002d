"""Images of one's own: each folder or table ends in a run's images, with what was noticed, or in one sentence."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from counterpoise.cli import parse
from counterpoise.cli.recipe_arguments import name_of, started_with
from counterpoise.data import load_images, resolve
from counterpoise.data.holding_out import hold_out_by_class
from counterpoise.data.tables import AmbiguousTableError, read_table
from counterpoise.training import load_run, named_data
from counterpoise.training.data import require_evaluable
from odd_images import ODD, a_corrupt_file, a_table_with_two_columns_of_labels, pets, photos, rows_of, table

NETWORK = ("name=cnn", "width=4", "weights=random", "small-images")
SMALL = [
    *(f"--{role}.{option}" for role in ("primary", "auxiliary") for option in NETWORK),
    *("--data.size=8", "--data.workers=0", "--batch=4", "--epochs=1", "--optimizer.layer-decay=1"),
]


LEARNS = ("--method=ce", "--epochs=12", "--patience=12", "--optimizer.lr=0.02")
"""Options with which black and white are told apart for certain."""


def prepared(path, *options):
    """What `counterpoise train PATH` trains on, after all that is looked at before training."""
    recipe = parse(["train", str(path), *SMALL, *options]).config
    data = named_data(recipe)
    require_evaluable(recipe, data.validation, root=None)
    return data


def seen(data):
    """Batches for training, images for validation and testing."""
    return len(data.training(0, 0, 1)), len(data.validation), len(data.test())


@pytest.mark.parametrize("name", ODD)
@pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")
def test_odd_images_end_in_a_result_or_in_a_sentence(name, tmp_path, capsys):
    make, expected = ODD[name]
    path = make(tmp_path / "pets")
    try:
        data = prepared(path)
    except ValueError as error:
        found = f"{type(error).__name__}: {error}"
        assert "\n" not in found
    else:
        assert min(seen(data)) > 0
        found = "\n".join([*data.notes, capsys.readouterr().err])
    assert re.search(expected, found, flags=re.MULTILINE), found


def test_classes_that_only_look_alike_are_refused(tmp_path):
    """As of a training set packed on Linux and a test set packed on a Mac."""
    photos(tmp_path / "train", {"caf\u00e9": 5, "tea": 5})
    photos(tmp_path / "test", {"cafe\u0301": 5, "tea": 5})
    with pytest.raises(ValueError, match=r"two classes 'caf.+', spelt 'cafe\\u0301' and 'caf\\xe9' in Unicode; give"):
        resolve(tmp_path)


def test_damage_is_refused_where_it_is_not_to_be_skipped(tmp_path):
    path = a_corrupt_file(tmp_path / "pets")
    with pytest.raises(ValueError, match=r"dog/broken.jpg, row 20 of .*; remove it, or .*: --data.unreadable skip"):
        prepared(path, "--data.unreadable", "refuse")


def test_pixels_and_labels_of_a_table_are_those_of_its_folder(tmp_path):
    folder = pets(tmp_path / "pets")
    found, expected = (load_images(path, "all") for path in (table(folder / "t.csv", rows_of(folder)), folder))
    assert torch.equal(found.pixels, expected.pixels)
    assert torch.equal(found.labels, expected.labels)
    assert (found.classes, found.name, expected.name) == (expected.classes, "t", "pets")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["007", "7"], ("007", "7")),
        (["b", "a", "10"], ("10", "a", "b")),
    ],
)
def test_classes_of_a_table_are_numbers_in_their_order_or_text(tmp_path, labels, classes):
    path = table(tmp_path / "t.csv", [(f"{label}.png", label) for label in labels])
    assert read_table(str(path)).classes == resolve(str(path)).info.classes == classes


def test_an_address_chooses_the_columns(tmp_path):
    path = a_table_with_two_columns_of_labels(tmp_path / "pets")
    assert resolve(f"{path}?label=label").info.classes == ("cat", "dog")
    with pytest.raises(ValueError, match="has no column 'breed'; its columns are 'path', 'label', 'category'"):
        resolve(f"{path}?label=breed")


def test_the_question_is_asked_with_complete_commands(tmp_path, monkeypatch):
    path = a_table_with_two_columns_of_labels(tmp_path / "pets")
    arguments = ["train", str(path), "--epochs", "3"]
    monkeypatch.setattr(sys, "argv", ["counterpoise", *arguments])
    with pytest.raises(ValueError, match=r"may each hold the labels\. Run") as raised:
        parse(arguments).run()
    assert not isinstance(raised.value, AmbiguousTableError)
    _, first, second = str(raised.value).splitlines()
    assert first == f"  counterpoise train '{path}?label=label' --epochs 3"
    assert second == f"  counterpoise train '{path}?label=category' --epochs 3"


def test_a_recipe_comes_before_a_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pets(tmp_path / "digits")
    assert started_with(["digits"])[1].data.name == "digits"
    assert started_with(["digits"])[1].method == "mte1"
    for arguments in (["./digits"], ["digits", "--recipe", "finetune"], ["digits", "--recipe=finetune"]):
        name, recipe = started_with(arguments)
        assert (recipe.data.name, recipe.data.test, recipe.data.spread) == (name, 0.15, True)
    assert started_with(["digits", "--recipe", "digits"])[1].data.limit == 150
    assert name_of(".") == tmp_path.name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["photos/"], "there is no recipe 'photos/', and no such file or folder; `counterpoise recipes` lists them"),
        (["finetune"], "finetune is for images of your own: counterpoise train PATH$"),
        (["photos/", "--recipe", "finetunes"], "there is no recipe 'finetunes'; did you mean finetune"),
    ],
)
def test_what_is_neither_a_recipe_nor_there_is_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        parse(["train", *arguments])


def test_a_limit_that_leaves_classes_out_is_not_silent(tmp_path):
    for split in ("train", "test"):
        photos(tmp_path / split, dict.fromkeys("abcd", 6))
    options = ["--data.name", str(tmp_path), "--data.limit", "12", "--data.validation", "4", "--batch", "4"]
    notes = named_data(parse(["train", "digits", *options]).config).notes
    assert [note for note in notes if note.startswith("warning")] == [
        f"warning: there are no training images of {name!r} among the first 12; --data.spread takes them from the whole set"
        for name in "cd"
    ] + ["warning: 2 classes without validation images: 'c', 'd'"]
    assert not any(
        "training images of" in note
        for note in named_data(parse(["train", "digits", *options, "--data.spread"]).config).notes
    )


def test_test_images_are_the_same_for_every_seed_and_validation_images_are_not(tmp_path):
    path = pets(tmp_path / "pets", 20)
    first, second = (prepared(path, "--seed", seed) for seed in "01")
    assert torch.equal(first.test_rows, second.test_rows)
    assert not torch.equal(first.validation_rows, second.validation_rows)
    held = torch.cat([first.test_rows, first.validation_rows])
    trained = torch.cat([batch.ids for batch in first.training(0, 0, 1)])
    assert not set(trained.tolist()) & set(held.tolist())
    assert len(set(held.tolist())) == len(held)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_each_class_is_held_out_in_proportion(labels, size, seed):
    labels = torch.tensor(labels)
    counts = torch.bincount(labels, minlength=5)
    if counts.max() == 1:
        return
    wanted = max(1, round(size * len(labels)))
    if wanted == len(labels):
        return
    kept, held = hold_out_by_class(labels, size=size, seed=seed)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(labels)))
    assert len(held) == min(wanted, int((counts - 1).clamp_min(0).sum()))
    found = torch.bincount(labels[held], minlength=5)
    assert (found[counts > 0] < counts[counts > 0]).all()
    if (found < counts - 1).all():  # nothing was kept back for training
        assert ((found - wanted * counts / len(labels)).abs() < 1 + 1e-9).all()
    again = hold_out_by_class(labels, size=size, seed=seed)
    assert torch.equal(again[1], held)


@pytest.mark.slow
def test_from_a_folder_to_a_file(tmp_path, monkeypatch, capsys):
    """The two commands that most readers came for, and what becomes of the first when it is given again."""
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    pets(tmp_path / "photos", 12)
    parse(["train", "photos/", "--recipe", "finetune", *SMALL]).run()
    assert (
        "split: 17 for training, 3 for validation, 4 for testing, each class in proportion" in capsys.readouterr().err
    )
    with pytest.raises(
        ValueError, match="runs/photos holds a run already; `counterpoise resume runs/photos` continues it"
    ):
        parse(["train", "photos", *SMALL]).run()
    parse(["export", "runs/photos", "--to", "onnx", "--temperature", "fitted"]).run()
    assert capsys.readouterr().out.splitlines()[-1] == "runs/photos/primary.onnx"
    session = onnxruntime.InferenceSession("runs/photos/primary.onnx")
    (probabilities,) = session.run(["probabilities"], {"images": np.zeros((2, 3, 8, 8), np.float32)})
    assert probabilities.shape == (2, len(load_run(Path("runs/photos")).classes))


@pytest.mark.slow
def test_a_fit_without_a_minimum_ships_what_was_trained(tmp_path, monkeypatch, capsys):
    """As where every validation image is right: the model is no worse for it, and the command goes on."""
    monkeypatch.chdir(tmp_path)
    for label, name in enumerate(("black", "white")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(20):
            Image.new("RGB", (8, 8), (255 * label,) * 3).save(tmp_path / "photos" / name / f"{index}.png")
    parse(["train", "photos", *SMALL, *LEARNS]).run()
    parse(["export", "runs/photos", "--to", "safetensors", "--temperature", "fitted"]).run()
    assert "no temperature is folded in: the fit ended at lowest temperature, 0.01" in capsys.readouterr().err
