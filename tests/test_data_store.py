"""Streams from an object store: a real S3 server gives the rows that the same files give from a disk."""

import shutil
import time
from itertools import islice

import pytest
import torch

from benchmarks.object_store import KEY, SECRET, object_store
from counterpoise.data import StreamLoader, index_shards, load_images, resolve
from counterpoise.recipes.config import DataOptions, Recipe
from counterpoise.training.data import named_data, require_evaluable
from test_data_memory import same
from test_data_sets import encoded, random_pixels, write
from test_data_stream import many_workers
from test_data_webdataset import write_shard

ROWS = 30


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The folder of a bucket with the same samples as Parquet and as shards, and its address."""
    root = tmp_path_factory.mktemp("store")
    folder = root / "bucket" / "some sets"
    for split, rows in {"train": ROWS, "test": 4}.items():
        pixels, labels = random_pixels(rows), [row % 3 for row in range(rows)]
        write(folder / "parquet" / f"{split}-0.parquet", pixels, labels)
        files = []
        for row, image in enumerate(pixels):
            files += [(f"{row}.png", encoded(image)), (f"{row}.cls", str(labels[row]).encode())]
        write_shard(folder / "shards" / f"{split}-0.tar", files)
    (folder / "shards" / "classes.txt").write_text("0\n1\n2\n")
    with object_store(root):
        yield folder, "s3://bucket/some sets"


def stream(name, workers=0):
    return StreamLoader(
        name, "train", batch=4, seed=1, augmentation=None, shuffle=True, drop_last=True, window=6, workers=workers
    )


@many_workers
@pytest.mark.parametrize(("kind", "workers"), [("parquet", 0), ("shards", 0), ("shards", 2)])
def test_a_stream_from_a_store_is_that_from_a_disk_and_resumes(sets, kind, workers):
    folder, address = sets
    ours, theirs = (stream(f"{place}/{kind}", workers) for place in sets)
    whole = list(ours)
    assert same(whole, list(theirs))
    list(islice(ours, 3))
    again = stream(f"{address}/{kind}", workers)
    again.load_state_dict(ours.state_dict())
    assert same(list(again), whole[3:])
    assert torch.equal(load_images(f"{address}/{kind}", "test").pixels, load_images(folder / kind, "test").pixels)


@pytest.mark.parametrize("kind", ["parquet", "shards"])
def test_a_run_reads_from_a_store(sets, kind):
    _, address = sets
    recipe = Recipe(
        method="ce",
        batch=4,
        data=DataOptions(name=f"{address}/{kind}", pipeline="stream", workers=0, validation=6),
    )
    data = named_data(recipe)
    require_evaluable(recipe, data.example, root=None)
    assert len(data.validation) == 6
    assert len(list(data.training(0, 0, 1))) == (ROWS - 6) // 4
    assert len(data.test()) == 4


def test_shards_of_a_store_are_indexed_there(sets):
    folder, address = sets
    shutil.copytree(folder / "shards", folder / "indexed")
    assert index_shards(f"{address}/indexed") == [
        f"{address}/indexed/{split}-0.tar.index" for split in ("train", "test")
    ]
    assert (folder / "indexed" / "train-0.tar.index").is_file()
    assert same(list(stream(f"{address}/indexed")), list(stream(folder / "shards")))


def test_files_and_patterns_of_a_store(sets):
    _, address = sets
    assert len(load_images(f"{address}/shards/train-0.tar", "all")) == ROWS
    assert list(resolve(f"{address}/shards/t*.tar").files) == ["train", "test"]
    assert len(load_images(f"{address}/parquet/*.parquet", "test")) == 4


def test_credentials_of_an_address_open_files_and_are_never_shown(sets, tmp_path):
    _, address = sets
    named = f"s3://{KEY}:{SECRET}@{address.removeprefix('s3://')}/shards"
    source = resolve(named)
    assert SECRET not in source.location
    assert stream(named).name == "shards"
    folder, _ = sets
    shutil.copytree(folder / "shards", folder / "odd")
    (folder / "odd" / "train-0.tar").write_bytes(b"nothing" * 1000)
    time.sleep(0.1)  # what the server says of a folder may be 5 ms old
    with pytest.raises(ValueError, match=r"s3://bucket/some sets/odd/train-0.tar is not a tar file") as error:
        stream(named.replace("shards", "odd"))
    assert SECRET not in str(error.value)


def test_what_a_store_has_not_is_said(sets):
    _, address = sets
    with pytest.raises((ValueError, OSError), match="some sets/nothing"):
        load_images(f"{address}/nothing", "train")
    with pytest.raises(ValueError, match=r"some sets holds neither Parquet files nor tar shards, which alone are read"):
        resolve(address)
