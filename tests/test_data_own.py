"""A user's own files: odd pixels and labels, shards that disagree, copies that are incomplete, and names."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from counterpoise.data import MemoryLoader, load_images, resolve
from counterpoise.data.images import Images
from counterpoise.recipes.catalog import RECIPES
from counterpoise.training import named_data
from counterpoise_study.corruptions import CORRUPTIONS, corrupted
from test_data_sets import encoded, random_pixels, write


def test_sixteen_bits_become_the_upper_eight(tmp_path):
    grey = np.linspace(0, 65535, 36).reshape(6, 6).astype(np.uint16)
    pq.write_table(pa.table({"image": [encoded(grey), encoded(grey, "TIFF")], "label": [0, 0]}), tmp_path / "x.parquet")
    found = load_images(tmp_path / "x.parquet", "all").pixels
    assert torch.equal(found, torch.from_numpy((grey >> 8).astype(np.uint8)).expand(2, 3, 6, 6))


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_pixels_of_no_known_range_are_refused(tmp_path, kind):
    pq.write_table(pa.table({"image": [encoded(np.ones((4, 4), kind), "TIFF")], "label": [0]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"x.parquet, row 0 of the split: .*of no known range; store it as PNG"):
        load_images(tmp_path / "x.parquet", "all")


@pytest.mark.parametrize("kind", [pa.uint8(), pa.int16(), pa.uint64()])
def test_labels_of_any_integer_type(tmp_path, kind):
    images = [encoded(each) for each in random_pixels(3)]
    pq.write_table(pa.table({"image": images, "label": pa.array([0, None, 200], kind)}), tmp_path / "x.parquet")
    found = load_images(tmp_path / "x.parquet", "all")
    assert found.labels.tolist() == [0, -1, 200]
    assert found.labels.dtype == torch.int64


def test_an_image_column_without_bytes_is_named(tmp_path):
    pq.write_table(pa.table({"image": [{"path": "a.png"}], "label": [0]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"x.parquet: column 'image' has no field 'bytes' of bytes"):
        load_images(tmp_path / "x.parquet", "all")


@pytest.mark.parametrize("damaged", [b"no picture", b"P6\n1? 1\n255\n\0\0\0"])
def test_a_broken_file_of_a_folder_is_named_by_its_path(tmp_path, damaged):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_bytes(encoded(random_pixels(1)[0]))
    (tmp_path / "cat" / "broken.ppm").write_bytes(damaged)
    with pytest.raises(
        ValueError, match=r"cat/broken.ppm, row 1 of the split: not an image that can be read"
    ) as raised:
        load_images(tmp_path, "all")
    assert "0x" not in str(raised.value)


def named(path, names):
    """A file of two images of the first class, whose metadata name the classes as the library `datasets` does."""
    table = pa.table({"image": [encoded(each) for each in random_pixels(2)], "label": [0, 0]})
    features = {"info": {"features": {"label": {"names": names}}}}
    metadata = {b"huggingface": json.dumps(features).encode()} if names else None
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_shards_must_name_the_same_classes_in_the_same_order(tmp_path):
    named(tmp_path / "train-0.parquet", ["cat", "dog"])
    named(tmp_path / "train-1.parquet", None)
    assert load_images(tmp_path, "train").classes == ("cat", "dog")
    named(tmp_path / "train-2.parquet", ["dog", "cat"])
    with pytest.raises(ValueError, match=r"train-2.parquet names other classes than .*train-0.parquet, or in another"):
        load_images(tmp_path, "train")


def test_an_incomplete_copy_of_a_named_set_is_refused(tmp_path):
    write(tmp_path / "svhn" / "train-00000-of-00003.parquet", random_pixels(2), [0, 1])
    with pytest.raises(
        ValueError, match=r"not all of SVHN: train-00001-of-00003.parquet, train-00002-of-00003.parquet"
    ):
        resolve("svhn", root=tmp_path)
    for domain in ("photo", "sketch"):
        write(tmp_path / "pacs" / f"{domain}.parquet", random_pixels(2), [0, 1], domains=[domain] * 2)
    with pytest.raises(ValueError, match="not all of PACS: art_painting, cartoon are missing"):
        resolve("pacs", root=tmp_path)


def test_two_copies_in_one_folder_are_not_joined(tmp_path):
    write(tmp_path / "svhn" / "train.parquet", random_pixels(2), [0, 1])
    write(tmp_path / "svhn" / "data" / "train-00000-of-00001.parquet", random_pixels(2), [0, 1])
    assert len(load_images("svhn", "train", root=tmp_path)) == 2


def test_a_class_may_be_called_as_a_split_is(tmp_path):
    for name in ("bus", "car", "train"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(encoded(random_pixels(1)[0]))
    assert load_images(tmp_path, "all").classes == ("bus", "car", "train")


def test_the_folder_that_one_is_in_has_a_name(tmp_path, monkeypatch):
    write(tmp_path / "mine" / "train.parquet", random_pixels(2), [0, 1])
    monkeypatch.chdir(tmp_path / "mine")
    assert resolve(".").info.name == "mine"


def test_ood_sets_of_one_name_stay_two(tmp_path):
    for folder in ("near", "far"):
        write(tmp_path / folder / "test.parquet", random_pixels(2, 8), [0, 1])
    paths = tuple(str(tmp_path / folder / "test.parquet") for folder in ("near", "far"))
    recipe = RECIPES["digits"].recipe()
    for names, expected in ((paths, paths), (paths[:1], ("test",))):
        ood = named_data(replace(recipe, evaluation=replace(recipe.evaluation, ood=names))).ood
        assert tuple(load().name for load in ood.values()) == expected


def test_statistics_may_be_arrays_and_must_be_positive():
    pixels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    assert Images.of(pixels, mean=np.array([0.1, 0.2, 0.3])).mean == (0.1, 0.2, 0.3)
    with pytest.raises(ValueError, match=r"standard deviation of each channel must be positive, got \(1.0, 0.0, 1.0\)"):
        Images.of(pixels, mean=[0.0] * 3, std=[1.0, 0.0, 1.0])


def test_a_state_of_other_batches_is_refused():
    images = Images.of(torch.zeros(8, 3, 4, 4, dtype=torch.uint8), [0] * 8)
    options = {"seed": 0, "augmentation": None, "shuffle": True, "drop_last": True}
    state = MemoryLoader(images, batch=4, **options).state_dict()
    with pytest.raises(ValueError, match="counts batches of 4, this loader has batches of 2"):
        MemoryLoader(images, batch=2, **options).load_state_dict(state)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_do_not_depend_on_the_default_dtype(name):
    pixels = torch.from_numpy(random_pixels(2, 32)).permute(0, 3, 1, 2)
    ids = torch.arange(2)
    expected = corrupted(pixels, name, 3, seed=0, ids=ids)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(corrupted(pixels, name, 3, seed=0, ids=ids), expected)
    finally:
        torch.set_default_dtype(torch.float32)
