"""A folder of predictions is of one model and of one content of the images: anything else is rejected, never returned."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from counterpoise.export import ModelConfig
from counterpoise.predictions import find_shards, read_predictions
from counterpoise.training import predicted_shards, write_shards
from odd_images import photos, picture, rows_of, table

CONFIG = ModelConfig(("cat", "dog"), shape=(3, 7, 9), mean=(0.5,) * 3, std=(0.25,) * 3)


class Pooled(nn.Module):
    """Logits from the mean of each channel, in a form that no weight shows."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.head, self.factor = nn.Linear(3, 2), factor
        nn.init.constant_(self.head.weight, 0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, pixels):
        return self.factor * self.head(pixels.mean((2, 3)))


def predicted(data, out, *, model=None, config=CONFIG, **options):
    write_shards(predicted_shards(model or Pooled(), data, config=config, **options), out)
    (shard,) = find_shards(out).shards
    return read_predictions(shard.path)


@pytest.fixture
def pets(tmp_path):
    return photos(tmp_path / "pets", {"cat": 6, "dog": 6})


def added(place):
    photos(place, {"cat": 9, "dog": 9})


def replaced(place):
    for path in place.rglob("*.png"):
        path.write_bytes(picture(seed=len(path.name) + 77))


def swapped(place):
    """The same bytes under other names."""
    one, other = place / "cat" / "0.png", place / "dog" / "0.png"
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.parametrize("as_table", [False, True])
@pytest.mark.parametrize("change", [added, replaced, swapped])
def test_other_images_under_the_same_name_are_not_given_the_old_predictions(tmp_path, pets, change, as_table):
    def data():
        return table(tmp_path / "table.csv", [(f"pets/{path}", label) for path, label in rows_of(pets)])

    given = data() if as_table else pets
    before = predicted(given, tmp_path / "out")
    assert np.array_equal(predicted(given, tmp_path / "out").values, before.values)
    change(pets)
    given = data() if as_table else pets
    with pytest.raises(ValueError, match=r"holds other images than .* did; name another folder, or delete this one"):
        predicted(given, tmp_path / "out")
    assert len(predicted(given, tmp_path / "new")) == (18 if change is added else 12)


def test_labels_of_a_table_are_a_part_of_its_content(tmp_path, pets):
    rows = [(f"pets/{path}", label) for path, label in rows_of(pets)]
    predicted(table(tmp_path / "table.csv", rows), tmp_path / "out")
    other = [(path, "dog" if label == "cat" else "cat") for path, label in rows]
    with pytest.raises(ValueError, match="holds other images"):
        predicted(table(tmp_path / "table.csv", other), tmp_path / "out")


def test_a_copy_elsewhere_is_the_same_data(tmp_path, pets):
    before = predicted(pets, tmp_path / "out")
    copy = shutil.copytree(pets, tmp_path / "elsewhere" / "pets", copy_function=shutil.copyfile)
    assert np.array_equal(predicted(copy, tmp_path / "out").values, before.values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 5.0}, "temperature is 1.0, here it is 5.0"),
        ({"mean": (0.4, 0.5, 0.5)}, "mean is"),
        ({"std": (0.2, 0.25, 0.25)}, "std is"),
        ({"class_names": ("dog", "cat")}, "class names is"),
    ],
)
def test_what_else_decides_a_prediction_is_a_part_of_its_plan(tmp_path, pets, changes, message):
    predicted(pets, tmp_path / "out")
    with pytest.raises(ValueError, match=message):
        predicted(pets, tmp_path / "out", config=replace(CONFIG, **changes))


def test_what_becomes_of_damaged_images_is_a_part_of_the_plan(tmp_path, pets):
    predicted(pets, tmp_path / "out")
    with pytest.raises(ValueError, match="unreadable is refuse, here it is skip"):
        predicted(pets, tmp_path / "out", unreadable="skip")


@pytest.mark.parametrize(
    "model",
    [
        Pooled(2.0),  # a number that is no weight
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)),
    ],
)
def test_another_model_with_these_weights_is_another_model(tmp_path, pets, model):
    for parameters in (own for own in model.parameters()):
        nn.init.constant_(parameters, 0.5 if parameters.ndim > 1 else 0.0)
    predicted(pets, tmp_path / "out")
    with pytest.raises(ValueError, match="its weights is"):
        predicted(pets, tmp_path / "out", model=model)


def test_a_change_at_the_end_of_a_large_file_is_noticed(tmp_path, pets):
    large = pets / "cat" / "0.png"
    with large.open("ab") as file:
        file.truncate(17 << 20)
    before = predicted(pets, tmp_path / "out")
    assert np.array_equal(predicted(pets, tmp_path / "out").values, before.values)
    with large.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"1")
    with pytest.raises(ValueError, match="holds other images"):
        predicted(pets, tmp_path / "out")
