"""Sets by name or path: the table against the data, what is found where, and what errors say."""

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from counterpoise.data import SETS, StreamLoader, load_images, resolve, sample_ids
from counterpoise.data.images import channel_statistics
from counterpoise.data.sets import ImageSet
from counterpoise.data.sources import DataSource, ood_split
from counterpoise.recipes.config import DataOptions, Recipe
from counterpoise.training.data import named_data, require_evaluable


def encoded(pixels: np.ndarray, kind: str = "PNG", mode: str | None = None) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return buffer.getvalue()


def random_pixels(n: int, size: int = 6) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


def write(path, pixels, labels, *, image="image", label="label", group=4, domains=None, formats=("PNG", "WEBP")):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": encoded(each, formats[row % len(formats)]), "path": None} for row, each in enumerate(pixels)]
    table = {image: images, label: labels} | ({"domain": domains} if domains else {})
    pq.write_table(pa.table(table), path, row_group_size=group)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "split", "rows"), [("cifar10", "train", 50_000), ("pacs_64", "all", 9991)])
def test_the_tables_mean_and_std_are_those_of_the_data(real_data, name, split, rows):
    """Of every so many rows; the tolerance is what 3,000 images may differ from all by."""
    images = load_images(name, split, root=real_data(name), ids=torch.arange(0, rows, rows // 3000))
    mean, std = channel_statistics(images.pixels.permute(0, 2, 3, 1))
    assert images.mean == pytest.approx(mean, abs=8e-3)
    assert images.std == pytest.approx(std, abs=4e-3)


@pytest.mark.parametrize(
    ("name", "split", "rows", "size"),
    [
        ("cifar100_partial", "train", 1117, 32),
        ("cifar100_partial", "test", 916, 32),
        ("svhn_partial", "test", 949, 32),
        ("dtd_32", "test", 5430, 32),
    ],
)
def test_parts_and_copies_are_what_the_table_says(real_data, name, split, rows, size):
    images = load_images(name, split, root=real_data(name))
    assert images.pixels.shape == (rows, 3, size, size)
    assert images.pixels.is_contiguous(memory_format=torch.channels_last)
    assert images.ids.tolist() == list(range(rows))
    assert images.classes == SETS[name].classes
    assert len(set(images.labels.tolist())) == (1 if name == "svhn_partial" else len(images.classes))
    assert images.note == SETS[name].note != ""


@pytest.mark.slow
def test_pacs_leaves_one_domain_out(real_data):
    root = real_data("pacs_64")
    rows = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    names = np.concatenate(
        [pq.read_table(root / "pacs_64" / f"{name}.parquet", columns=["domain"])["domain"].to_pylist() for name in rows]
    )
    for domain in rows:
        train, test = (sample_ids("pacs_64", split, root=root, domain=domain) for split in ("train", "test"))
        assert len(test) == rows[domain]
        assert set(names[test]) == {domain}
        assert set(names[train]) == set(rows) - {domain}
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(9991))
    photo = load_images("pacs_64", "test", root=root, domain="photo")
    assert torch.equal(photo.ids, sample_ids("pacs_64", "test", root=root, domain="photo"))
    assert photo.pixels.shape == (1670, 3, 64, 64)
    with pytest.raises(ValueError, match="domain must be one of art_painting, cartoon, photo, sketch, got None"):
        load_images("pacs_64", "train", root=root)
    with pytest.raises(ValueError, match="'train', 'test' and 'all', not 'val'"):
        load_images("pacs_64", "val", root=root, domain="photo")
    with pytest.raises(ValueError, match="cifar100_partial has no domains"):
        load_images("cifar100_partial", "train", root=root, domain="photo")


def test_digits_need_no_files():
    train, test = load_images("digits", "train"), load_images("digits", "test", limit=100)
    assert train.pixels.shape == (1437, 1, 8, 8)
    assert len(test) == 100
    assert not set(train.ids.tolist()) & set(load_images("digits", "test").ids.tolist())
    assert train.pixels.min() == 0
    assert train.pixels.max() == 255
    assert not train.flip
    mean, std = channel_statistics(train.pixels.permute(0, 2, 3, 1))
    assert train.mean == pytest.approx(mean, abs=5e-5)
    assert train.std == pytest.approx(std, abs=5e-5)
    from sklearn.datasets import load_digits

    whole = load_digits()
    assert train.labels.tolist() == whole.target[train.ids].tolist()
    assert load_images("digits", "train", ids=train.ids[3:5]).ids.tolist() == train.ids[3:5].tolist()
    pixels = np.round(whole.images[train.ids] * (255 / 16)).astype(np.uint8)
    assert np.array_equal(train.pixels[:, 0].numpy(), pixels)
    assert load_images("digits", "test", size=12).pixels.shape == (360, 1, 12, 12)
    with pytest.raises(ValueError, match="digits has no domains; leave domain out"):
        load_images("digits", "test", domain="photo")
    with pytest.raises(ValueError, match="digits has the splits 'train', 'test', 'all', not 'val'"):
        load_images("digits", "val")


def test_a_local_folder_comes_before_the_hub(tmp_path, monkeypatch):
    pixels = random_pixels(5)
    write(tmp_path / "cifar10" / "train-00000-of-00001.parquet", pixels, [0, 1, 2, 9, None], image="img")
    images = load_images("cifar10", "train", root=tmp_path)
    assert torch.equal(images.pixels.permute(0, 2, 3, 1), torch.from_numpy(pixels))
    assert images.labels.tolist() == [0, 1, 2, 9, -1]
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    assert torch.equal(load_images("cifar10", "train").pixels, images.pixels)
    with pytest.raises(ValueError, match=r"cifar10 has no split 'test' at .*cifar10; it has 'train'"):
        load_images("cifar10", "test")


def test_a_copy_of_the_hubs_repository_is_read(tmp_path):
    write(tmp_path / "tiny-imagenet" / "data" / "valid-00000-of-00001.parquet", random_pixels(3), [0, 1, 2])
    write(tmp_path / "svhn" / "cropped_digits" / "test-0.parquet", random_pixels(4), [0, 1, 2, 3])
    write(tmp_path / "svhn" / "full_numbers" / "test-0.parquet", random_pixels(5), [0, 1, 2, 3, 4])
    write(
        tmp_path / "pacs" / "data" / "train-0.parquet", random_pixels(4), [0, 1, 2, 3], domains=["photo", "sketch"] * 2
    )
    assert len(load_images("tiny-imagenet", "test", root=tmp_path)) == 3
    assert len(load_images("svhn", "test", root=tmp_path)) == 4
    assert load_images("pacs", "test", root=tmp_path, domain="sketch").ids.tolist() == [1, 3]


def test_a_part_is_never_the_whole(tmp_path):
    write(tmp_path / "cifar100_partial" / "train.parquet", random_pixels(2), [0, 1], image="img", label="fine_label")
    assert resolve("cifar100_partial", root=tmp_path).kind == "parquet"
    source = resolve("cifar100", root=tmp_path)
    assert (source.kind, source.location) == ("hub", "uoft-cs/cifar100")


def test_without_folder_and_network_the_error_says_what_to_do(tmp_path, monkeypatch):
    datasets, hub = pytest.importorskip("datasets"), pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    wanted = (
        rf"no folder {tmp_path / 'cifar100'}, and 'uoft-cs/cifar100' .*; set COUNTERPOISE_DATA to a folder with "
        r"cifar100/, whose Parquet files start with train, test; or connect"
    )
    for load in (load_images, sample_ids):
        with pytest.raises(ValueError, match=wanted):
            load("cifar100", "train", root=tmp_path)
    monkeypatch.delenv("COUNTERPOISE_DATA", raising=False)
    with pytest.raises(ValueError, match="COUNTERPOISE_DATA is not set"):
        load_images("cifar100", "train")
    with pytest.raises(ValueError, match=r"there is no folder pictures/pets, and 'pictures/pets' cannot be loaded"):
        load_images("pictures/pets", "train")
    with pytest.raises(ValueError, match="on the hub is divided: name a split of it"):
        load_images("owner/name", "all")
    with pytest.raises(ValueError, match=r"dtd_32 .*is not on the hub, and there is no folder .*dtd_32"):
        load_images("dtd_32", "test", root=tmp_path)


def test_hub_sets_are_read_through_datasets(tmp_path, monkeypatch):
    """`datasets` takes a local folder for a repository, so the hub's code runs without the network."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    pixels = random_pixels(7)
    features = datasets.Features(img=datasets.Image(), label=datasets.ClassLabel(names=list(SETS["cifar10"].classes)))
    rows = {"img": [{"bytes": encoded(each), "path": None} for each in pixels], "label": [0, 1, 2, 3, 9, 8, 7]}
    (tmp_path / "repository" / "plain_text").mkdir(parents=True)
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "repository" / "plain_text" / "train.parquet")
    card = (
        "---\nconfigs:\n- config_name: plain_text\n  data_files:\n  - split: train\n    path: plain_text/train*\n---\n"
    )
    (tmp_path / "repository" / "README.md").write_text(card)
    source = DataSource(SETS["cifar10"], "hub", str(tmp_path / "repository"))
    monkeypatch.setattr("counterpoise.data.images.resolve", lambda *_, **__: source)
    monkeypatch.setattr("counterpoise.data.stream.resolve", lambda *_, **__: source)
    images = load_images("cifar10", "train")
    assert torch.equal(images.pixels.permute(0, 2, 3, 1), torch.from_numpy(pixels))
    assert images.labels.tolist() == rows["label"]
    assert sample_ids("cifar10", "train").tolist() == list(range(7))
    with pytest.raises(ValueError, match=r"repository has no split 'test'; it has 'train'"):
        sample_ids("cifar10", "test")


def test_classes_without_names_on_the_hub_are_those_of_all_splits(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    for split, labels in {"train": [0, 4, 1], "test": [2, 0]}.items():
        write(tmp_path / "repository" / f"{split}.parquet", random_pixels(len(labels)), labels)
    source = DataSource(ImageSet("owner/name", "owner/name", "", "", (), None), "hub", str(tmp_path / "repository"))
    monkeypatch.setattr("counterpoise.data.images.resolve", lambda *_, **__: source)
    monkeypatch.setattr("counterpoise.data.stream.resolve", lambda *_, **__: source)
    for split in ("train", "test"):
        assert load_images("owner/name", split, limit=1).classes == tuple("01234")
        options = {"augmentation": None, "shuffle": False, "drop_last": False}
        assert StreamLoader("owner/name", split, batch=1, seed=0, **options).classes == tuple("01234")


def test_a_run_that_streams_from_the_hub_copies_nothing(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    for split, rows in {"train": 12, "test": 3}.items():
        write(tmp_path / "repository" / f"{split}.parquet", random_pixels(rows), [row % 2 for row in range(rows)])
    source = DataSource(ImageSet("owner/name", "owner/name", "", "", (), None), "hub", str(tmp_path / "repository"))
    for room in ("data.images", "data.stream", "training.data"):
        monkeypatch.setattr(f"counterpoise.{room}.resolve", lambda *_, **__: source)
    monkeypatch.delattr(datasets, "load_dataset")
    options = {"name": "owner/name", "pipeline": "stream", "validation": 4, "workers": 0}
    recipe = Recipe(method="ce", data=DataOptions(**options), batch=4, seed=0)
    data = named_data(recipe)
    require_evaluable(recipe, data.validation, root=None)
    assert len(data.test()) == 3
    trained = torch.cat([batch.ids for batch in data.training(0, 0, 1)])
    assert sorted([*trained.tolist(), *data.validation.ids.tolist()]) == list(range(12))


def test_parquet_by_path(tmp_path):
    pixels = random_pixels(9)
    write(tmp_path / "mine" / "train.parquet", pixels, list(range(9)))
    write(tmp_path / "mine" / "test.parquet", pixels[:2], [0, 1])
    folder, file = load_images(tmp_path / "mine", "test"), load_images(str(tmp_path / "mine" / "train.parquet"), "all")
    assert len(folder) == 2
    assert len(folder.classes) == 9  # as many as in training
    assert file.classes == tuple(map(str, range(9)))
    assert file.name == "train"
    assert "ImageNet" in file.note
    assert load_images(tmp_path / "mine", "train", limit=5).ids.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="limit must be at least 1 row, got 0"):
        load_images(tmp_path / "mine", "train", limit=0)
    some = load_images(tmp_path / "mine", "train", ids=torch.tensor([7, 2, 3]))
    assert some.ids.tolist() == [2, 3, 7]
    assert torch.equal(some.pixels, file.pixels[[2, 3, 7]])
    with pytest.raises(ValueError, match=r"no split 'train' at .*train.parquet; it has 'all'"):
        load_images(tmp_path / "mine" / "train.parquet", "train")


@pytest.mark.parametrize("split", ["train", "all"])
def test_a_folder_of_images(tmp_path, split):
    pixels = random_pixels(4)
    base = tmp_path / "pictures" / (split if split != "all" else ".")
    for row, (name, each) in enumerate(zip(["cat", "dog", "cat", "dog"], pixels, strict=True)):
        (base / name).mkdir(parents=True, exist_ok=True)
        (base / name / f"{row}.png").write_bytes(encoded(each))
        (base / name / "notes.txt").write_text("no picture")
    images = load_images(tmp_path / "pictures", split)
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(images.pixels.permute(0, 2, 3, 1), torch.from_numpy(pixels[[0, 2, 1, 3]]))
    with pytest.raises(ValueError, match="neither Parquet nor a WebDataset, which alone can be streamed"):
        sample_ids(tmp_path / "pictures", split)


def test_hidden_folders_and_files_are_no_classes_and_no_images(tmp_path):
    pixels = random_pixels(2)
    hidden = (".ipynb_checkpoints/1.png", "cat/.ipynb_checkpoints/1.png", "cat/._0.png")
    for name in ("cat/0.png", "dog/1.png", *hidden):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encoded(pixels[int("dog" in name)]))
    images = load_images(tmp_path, "all")
    assert images.classes == ("cat", "dog")
    assert torch.equal(images.pixels.permute(0, 2, 3, 1), torch.from_numpy(pixels))


@pytest.mark.parametrize(
    ("files", "split"),
    [(("test.parquet", "train.parquet"), "test"), (("some.parquet",), "all"), (("cat/0.png",), "all")],
)
def test_ood_images_are_the_test_split_or_the_whole(tmp_path, files, split):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert ood_split(tmp_path) == split
    assert files[0].endswith(".png") or ood_split(tmp_path / files[0]) == "all"
    assert (ood_split("digits"), ood_split("owner/name"), ood_split("pacs")) == ("test", "test", "all")


def test_grey_and_transparent_images_become_rgb(tmp_path):
    pixels = random_pixels(4)
    images = [encoded(pixels[0], mode="L"), encoded(pixels[1], mode="RGBA"), encoded(pixels[2], "WEBP", "RGBA")]
    images.append(encoded(pixels[3], mode="P"))
    table = pa.table({"image": [{"bytes": each, "path": None} for each in images], "label": [0, 0, 0, 0]})
    pq.write_table(table, tmp_path / "mixed.parquet")
    found = load_images(tmp_path / "mixed.parquet", "all").pixels
    grey = np.array(Image.fromarray(pixels[0]).convert("L"))
    assert torch.equal(found[0], torch.from_numpy(grey).expand(3, 6, 6))
    assert torch.equal(found[1:3].permute(0, 2, 3, 1), torch.from_numpy(pixels[1:3]))


def test_images_of_different_sizes_need_a_size(tmp_path):
    images = [encoded(random_pixels(1, 8)[0]), encoded(random_pixels(1, 12)[0][:, :9])]
    table = pa.table({"image": [{"bytes": each, "path": None} for each in images], "label": [0, 1]})
    pq.write_table(table, tmp_path / "sizes.parquet")
    with pytest.raises(
        ValueError, match=r"sizes.parquet, row 1 of the split: the image has 9 x 12 pixels.*8 x 8; give a size"
    ):
        load_images(tmp_path / "sizes.parquet", "all")
    assert load_images(tmp_path / "sizes.parquet", "all", size=6).pixels.shape == (2, 3, 6, 6)


def test_resizing_brings_the_shorter_side_to_size_and_crops_the_centre(tmp_path):
    wide = np.random.default_rng(0).integers(0, 256, (8, 24, 3), dtype=np.uint8)
    pq.write_table(pa.table({"image": [encoded(wide)], "label": [0]}), tmp_path / "wide.parquet")
    found = load_images(tmp_path / "wide.parquet", "all", size=4).pixels[0].permute(1, 2, 0)
    expected = Image.fromarray(wide).resize((12, 4), Image.Resampling.BILINEAR).crop((4, 0, 8, 4))
    assert torch.equal(found, torch.from_numpy(np.array(expected)))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"img": [b""], "target": [0]}, r"no column 'label' or 'fine_label' or 'labels'; its columns are img, target"),
        ({"pixels": [b""], "label": [0]}, r"no column 'image' or 'img'; its columns are pixels, label"),
        ({"image": [b"no picture"], "label": [0]}, "row 0 of the split: not an image that can be read"),
        ({"image": [{"bytes": None, "path": "x.png"}], "label": [0]}, "row 0 of the split: there are no image bytes"),
        ({"image": [7], "label": [0]}, "column 'image' has type int64; it must hold encoded images"),
        ({"image": [b""], "label": ["cat"]}, "column 'label' has type string; it must hold class indices"),
    ],
)
def test_errors_name_file_and_column(tmp_path, table, message):
    schema = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])
    nested = isinstance(next(iter(table.values()))[0], dict)
    pq.write_table(pa.table(table, schema=schema if nested else None), tmp_path / "wrong.parquet")
    with pytest.raises(ValueError, match=rf"wrong\.parquet.* {message}|wrong\.parquet: {message}"):
        load_images(tmp_path / "wrong.parquet", "all")


def test_labels_and_names_that_do_not_fit_are_refused(tmp_path):
    write(tmp_path / "cifar10" / "train.parquet", random_pixels(2), [0, 10], image="img")
    with pytest.raises(ValueError, match=r"cifar10: the label of row 1 is 10, outside \[0, 10\)"):
        load_images("cifar10", "train", root=tmp_path)
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(img=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    rows = {"img": [{"bytes": encoded(random_pixels(1)[0]), "path": None}], "label": [0]}
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "cifar10" / "train.parquet")
    with pytest.raises(
        ValueError, match="names other classes than CIFAR-10 has, or in another order: class 0 is 'cat' instead"
    ):
        load_images("cifar10", "train", root=tmp_path)


def test_what_is_nothing_at_all_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"'cifra10' is not the name of a data set .*did you mean 'cifar10'"):
        resolve("cifra10")
    with pytest.raises(ValueError, match="neither Parquet files nor tar shards nor class folders"):
        resolve(tmp_path)
    (tmp_path / "cifar10").mkdir()
    with pytest.raises(ValueError, match="cifar10 holds no Parquet files whose names start with train or test"):
        resolve("cifar10", root=tmp_path)
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(ValueError, match=r"text.parquet cannot be read as Parquet"):
        load_images(tmp_path / "text.parquet", "all")
    assert resolve("owner/name").kind == "hub"


@pytest.mark.parametrize("limit", [None, 5])
def test_progress_reaches_the_rows_there_are(tmp_path, limit):
    write(tmp_path / "mine" / "train.parquet", random_pixels(9), list(range(9)))
    calls = []
    load_images(tmp_path / "mine", "train", limit=limit, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (9, 9)


def test_importing_the_room_loads_no_library_for_images():
    import subprocess
    import sys

    heavy = ("datasets", "torchvision", "PIL", "sklearn", "pyarrow", "lightning")
    code = f"import counterpoise.data, sys; sys.exit([name for name in {heavy} if name in sys.modules] or 0)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})
