"""Data that are odd, damaged or not what they seem: named before anything is trained on them, or read as they are."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image, ImageOps

from counterpoise.data import SETS, StreamLoader, load_images, official_corrupted, resolve
from counterpoise.data.decode import decoded
from counterpoise.data.images import Images
from counterpoise.recipes.catalog import RECIPES
from counterpoise.recipes.config import DataOptions, EvaluationOptions, OptimizerOptions, Recipe
from counterpoise.recipes.ranges import Range, require_searchable
from counterpoise.training import from_images, train
from test_data_own import named
from test_data_sets import encoded, random_pixels, write


def with_metadata(path, text):
    """A file of one image, with this text where the library `datasets` names the classes."""
    table = pa.table({"image": [encoded(random_pixels(1)[0])], "label": [0]})
    pq.write_table(table.replace_schema_metadata({b"huggingface": text.encode()}), path)


def test_a_copy_of_the_hubs_cifar100_is_read_with_its_misspelt_class(tmp_path):
    names = ["cra" if name == "crab" else name for name in SETS["cifar100"].classes]
    table = pa.table({"img": [encoded(random_pixels(1)[0])], "fine_label": [26]})
    features = {"info": {"features": {"fine_label": {"names": names}}}}
    (tmp_path / "cifar100" / "cifar100").mkdir(parents=True)
    file = tmp_path / "cifar100" / "cifar100" / "train-00000-of-00001.parquet"
    pq.write_table(table.replace_schema_metadata({b"huggingface": json.dumps(features).encode()}), file)
    images = load_images("cifar100", "train", root=tmp_path)
    assert images.classes[int(images.labels[0])] == "crab"


def test_the_recipe_of_every_set_of_the_paper_can_be_had_by_anybody(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    for recipe in (entry.recipe() for entry in RECIPES.values()):
        assert all(resolve(name).kind in ("hub", "scikit-learn") for name in (recipe.data.name, *recipe.evaluation.ood))


METADATA = ("[]", '{"info": null}', '{"info": {"features": null}}', "no JSON", "[" * 100_000)
NAMES = ([0, 1], {"0": "cat"}, "cat")


@pytest.mark.parametrize(
    "text", [*METADATA, *(json.dumps({"info": {"features": {"label": {"names": names}}}}) for names in NAMES)]
)
def test_damaged_metadata_are_refused_by_the_file(tmp_path, text):
    with_metadata(tmp_path / "x.parquet", text)
    with pytest.raises(ValueError, match=r"x\.parquet: its Hugging Face metadata are damaged"):
        load_images(tmp_path / "x.parquet", "all")


@pytest.mark.parametrize("text", ["{}", '{"info": {}}', '{"info": {"features": {"label": {"dtype": "int64"}}}}'])
def test_metadata_without_names_are_none(tmp_path, text):
    with_metadata(tmp_path / "x.parquet", text)
    assert load_images(tmp_path / "x.parquet", "all").classes == ("0",)


def test_classes_are_named_by_any_split(tmp_path):
    named(tmp_path / "train.parquet", ["cat", "dog"])
    named(tmp_path / "test.parquet", None)
    assert load_images(tmp_path, "test").classes == ("cat", "dog")


def test_a_column_whose_bytes_are_text_is_refused(tmp_path):
    pq.write_table(pa.table({"image": [{"bytes": "text"}], "label": [0]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"x\.parquet: column 'image' has no field 'bytes' of bytes"):
        load_images(tmp_path / "x.parquet", "all")


def test_a_marker_among_the_labels_is_not_a_number_of_classes(tmp_path):
    images = [encoded(each) for each in random_pixels(2)]
    pq.write_table(pa.table({"image": images, "label": pa.array([0, 2**32 - 1])}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"x\.parquet: a label is 4294967295; without names"):
        load_images(tmp_path / "x.parquet", "all")
    with pytest.raises(ValueError, match="mine: a label is 1099511627776"):
        Images.of(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), [2**40], name="mine")


def test_a_path_is_never_the_name_of_a_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits" / "cat").mkdir(parents=True)
    (tmp_path / "digits" / "cat" / "0.png").write_bytes(encoded(random_pixels(1)[0]))
    assert len(load_images(Path("digits"), "all")) == 1
    assert resolve("digits").kind == "scikit-learn"


@pytest.mark.parametrize("name", ["", "~nobody-of-this-name/x"])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match=r"a data set needs a name|is not the name of a data set"):
        resolve(name)


def test_a_root_of_a_user_who_does_not_exist_is_no_folder(monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_DATA", "~nobody-of-this-name/data")
    with pytest.raises(ValueError, match="there is no folder ~nobody-of-this-name/data/dtd_32"):
        resolve("dtd_32")


def test_folders_of_other_files_are_no_classes(tmp_path):
    for file in ("cat/0.png", "dog/old/1.png", "notes/read.txt", "__MACOSX/._0.png", "album/x.png/empty.txt"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(encoded(random_pixels(1)[0]))
    (tmp_path / "eel").mkdir()  # no image of it yet
    images = load_images(tmp_path, "all")
    assert images.classes == ("cat", "dog", "eel")
    assert images.labels.tolist() == [0, 1]


def photograph(orientation, *, odd=False):
    """A JPEG file with an orientation, and with a width that is text if `odd`."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(random_pixels(1, 24)[0, :16]).save(buffer, "JPEG", exif=exif)
    if not odd:
        return buffer.getvalue()
    exif[0x0100] = 7
    buffer = io.BytesIO()
    Image.fromarray(random_pixels(1, 24)[0, :16]).save(buffer, "JPEG", exif=exif)
    tag = bytes.fromhex("0100")
    data = buffer.getvalue()
    kinds = [(tag + bytes.fromhex(kind), tag + bytes.fromhex("0002")) for kind in ("0003", "0004")]
    return next(data.replace(*kind) for kind in kinds if kind[0] in data)


@pytest.mark.parametrize("orientation", range(10))
def test_photographs_are_turned_upright_as_pillow_does(orientation):
    data = photograph(orientation)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert np.array_equal(decoded(data, channels=3, size=None), expected)


def test_odd_tags_beside_the_orientation_do_no_harm():
    turned = decoded(photograph(6, odd=True), channels=3, size=None)
    assert np.array_equal(turned, decoded(photograph(6), channels=3, size=None))


@pytest.mark.parametrize("size", [None, 5, 13])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_pictures_of_every_mode_are_converted_and_then_made_smaller(mode, channels, size):
    image = Image.fromarray(random_pixels(1, 24)[0, :16]).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    expected = image.convert({1: "L", 3: "RGB"}[channels])
    if size is not None:
        expected = ImageOps.fit(expected, (size, size), method=Image.Resampling.BILINEAR)
    found = decoded(buffer.getvalue(), channels=channels, size=size)
    assert np.array_equal(found, np.asarray(expected).reshape(found.shape))


@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_pictures_of_too_many_pixels_are_not_decoded(tmp_path, monkeypatch, kind, lossless):
    (tmp_path / "cat").mkdir()
    options = {"lossless": lossless} if kind == "WEBP" else {}
    Image.fromarray(random_pixels(1, 20)[0]).save(tmp_path / "cat" / f"0.{kind}", kind, **options)
    assert load_images(tmp_path, "all").pixels.shape == (1, 3, 20, 20)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 199)
    with pytest.raises(ValueError, match=r"row 0 of the split: .*400 pixels"):
        load_images(tmp_path, "all")


def test_rows_that_are_not_there_are_refused_in_memory_too(tmp_path):
    write(tmp_path / "mine" / "train.parquet", random_pixels(4), [0, 1, 0, 1])
    for in_place in (False, True):
        with pytest.raises(ValueError, match=r"ids must be row numbers in \[0, 4\), got 0 to 99"):
            load_images(tmp_path / "mine", "train", ids=torch.tensor([0, 99]), in_place=in_place)


def test_a_stream_without_rows_is_refused(tmp_path):
    write(tmp_path / "mine" / "train.parquet", random_pixels(4), [0, 1, 0, 1])
    options = {"batch": 2, "seed": 0, "augmentation": None, "shuffle": True, "drop_last": True}
    with pytest.raises(ValueError, match="of mine, split 'train', no row is left"):
        StreamLoader(tmp_path / "mine", "train", exclude=torch.arange(4), **options)


def test_no_pixels_at_all_are_refused():
    with pytest.raises(ValueError, match=r"pixels are empty: their shape is \[0, 3, 4, 4\]"):
        Images.of(torch.zeros(0, 3, 4, 4, dtype=torch.uint8))


def test_a_published_file_with_a_damaged_header_is_named(tmp_path):
    np.save(tmp_path / "fog.npy", np.zeros((5, 8, 8, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.zeros(5, np.int64))
    damaged = (tmp_path / "fog.npy").read_bytes().replace(b"}", b" ")
    (tmp_path / "fog.npy").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"fog\.npy is not a whole \.npy file"):
        official_corrupted(tmp_path, "fog", 1)


def own_run(shape, **evaluation):
    images = Images.of(torch.zeros(60, *shape, dtype=torch.uint8), [0, 1] * 30)
    recipe = replace(RECIPES["digits"].recipe(), epochs=1, batch=10, evaluation=EvaluationOptions(**evaluation))
    return recipe, from_images(recipe, images)


@pytest.mark.parametrize("shape", [(3, 8, 12), (1, 8, 8), (3, 7, 7)])
def test_images_that_cannot_be_corrupted_are_not_trained_on(tmp_path, shape):
    recipe, data = own_run(shape, corruptions=("fog",))
    with pytest.raises(ValueError, match=r"images to be corrupted must have 3 channels and be square"):
        train(recipe, tmp_path / "run", data=data)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("labels", [[-1, -1, -1], [-1, 0, 1]])
def test_test_images_without_labels_are_noticed_before_training(tmp_path, labels):
    write(tmp_path / "mine" / "train.parquet", random_pixels(60, 8), [0, 1] * 30)
    write(tmp_path / "mine" / "test.parquet", random_pixels(3, 8), labels)
    recipe = replace(
        RECIPES["digits"].recipe(),
        epochs=1,
        batch=10,
        data=DataOptions(str(tmp_path / "mine"), validation=10, padding=0),
    )
    if max(labels) < 0:
        with pytest.raises(ValueError, match="the test images of mine have no labels"):
            train(recipe, tmp_path / "run", page=False)
        assert not (tmp_path / "run").exists()
    else:
        assert train(recipe, tmp_path / "run", page=False) is not None


IMPOSSIBLE = (
    (lambda: OptimizerOptions(lr=float("inf")), "optimizer.lr must be finite, got inf"),
    (lambda: OptimizerOptions(warmup=float("inf")), "optimizer.warmup must be finite, got inf"),
    (lambda: OptimizerOptions(milestones=(-5,)), "milestones must increase, from 1 on"),
    (lambda: EvaluationOptions(corruptions=("fog",), severities=()), "corruptions need evaluation.severities"),
)


@pytest.mark.parametrize(("options", "message"), IMPOSSIBLE)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        options()


def test_a_range_without_an_end_is_refused():
    with pytest.raises(ValueError, match=r"the range of optimizer\.lr must be finite, got 0\.1 to inf"):
        require_searchable(Recipe(), [Range("optimizer.lr", 0.1, float("inf"))])


def test_documents_that_are_nested_too_deeply_are_refused():
    with pytest.raises(ValueError, match="not JSON"):
        Recipe.from_json("[" * 200_000)
