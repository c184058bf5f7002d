"""Files in object stores: a real S3 server on this machine, and what goes wrong with it."""

import gzip
import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import safetensors.numpy
import torch
from pyarrow import feather

from benchmarks.object_store import object_store
from counterpoise._addresses import Address, as_path
from counterpoise._files import write_text
from counterpoise.predictions import (
    PredictionFileError,
    Predictions,
    open_predictions,
    read_predictions,
    write_manifest,
    write_predictions,
)
from counterpoise.predictions import digest as digests
from counterpoise.scoring import score_files
from counterpoise.training import load_run, train
from counterpoise.training.folder import local_run
from tests.runs import small_data, small_recipe

ROWS = 300


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    (root / "bucket").mkdir()
    with object_store(root) as server:
        yield server


@pytest.fixture
def folder(store, tmp_path):
    """A new folder of the bucket, as a local path."""
    path = store.root / "bucket" / tmp_path.name
    path.mkdir()
    return path


def address_of(folder, store):
    return f"s3://{folder.relative_to(store.root)}"


def table(part, *, rows=ROWS, classes=4):
    rng = np.random.default_rng(part)
    logits = (2 * rng.normal(size=(rows, classes))).astype(np.float32)
    return Predictions.of(logits=logits, labels=rng.integers(classes, size=rows), ids=np.arange(rows) + part * rows)


def shards(folder, parts=3, *, manifest=True):
    folder.mkdir(exist_ok=True)
    for part in range(parts):
        write_predictions(folder / f"part-{part}.parquet", table(part))
    if manifest:
        write_manifest(folder)
    return folder


def same_scores(evaluation):
    """All but where the files are."""
    document = json.loads(evaluation.to_json())
    for model in document["models"]:
        model["source"]["path"] = ""
    return document


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a/b.parquet", "s3://bucket/a/b.parquet"),
        ("s3:/bucket/a/b.parquet", "s3://bucket/a/b.parquet"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a//b/", "s3://bucket/a/b"),
        ("s3://KEY:SECRET@bucket/a?region=x&scheme=http", "s3://bucket/a"),
        ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
        ("gs://bucket/part-?.parquet", "gs://bucket/part-?.parquet"),
        ("s3://bucket/a b/ü.csv", "s3://bucket/a b/ü.csv"),
    ],
)
def test_what_an_address_shows(text, shown):
    address = as_path(text)
    assert isinstance(address, Address)
    assert str(address) == shown
    assert "SECRET" not in repr(address)
    assert as_path(address) == pickle.loads(pickle.dumps(address)) == address  # noqa: S301 - our own


@pytest.mark.parametrize("text", ["a/b.parquet", "/a:b/c", "c:/x", "C://x", "file:///tmp/x", "weird:name.csv"])
def test_what_is_a_local_path(text):
    assert str(as_path(text)) == text.removeprefix("file://").replace("//", "/")


def test_files_are_written_listed_and_read(store, folder):
    where = as_path(address_of(folder, store))
    write_text(where / "a b.txt", "ä")
    assert (folder / "a b.txt").read_text() == "ä" == (where / "a b.txt").read_text()
    (folder / "big.bin").write_bytes(bytes(range(256)) * 80_000)
    file = (where / "big.bin").open()
    file.seek(-3, os.SEEK_END)
    assert file.read() == b"\xfd\xfe\xff"
    file.seek(100)
    assert file.read(20_000_000) == (folder / "big.bin").read_bytes()[100:20_000_100]
    assert (where / "big.bin").identity()[0] == 256 * 80_000
    assert [each.name for each in where.iterdir()] == ["a b.txt", "big.bin"]
    assert [each.name for each, _ in (where / "*.bin").matches()] == ["big.bin"]
    assert where.is_dir()
    assert not (where / "none").exists()
    (where / "a b.txt").unlink()
    (where / "a b.txt").unlink(missing_ok=True)
    assert [each.name for each in where.iterdir()] == ["big.bin"]
    with pytest.raises(FileNotFoundError, match=r"s3://.*none: there is no such file"):
        (where / "none").read_bytes()


def test_other_schemes_are_read_through_fsspec():
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://place/x.txt", "wb") as file:
        file.write(b"found")
    assert as_path("memory://place/x.txt").read_bytes() == b"found"
    with pytest.raises(ValueError, match="no file system of such a scheme"):
        as_path("no-such-scheme://x/y").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("manifest", [True, False])
def test_shards_in_a_store_score_as_local_ones(store, folder, manifest):
    shards(folder, manifest=manifest)
    where = address_of(folder, store)
    local = same_scores(score_files([folder]))
    for place in (where, f"{where}/", f"{where}/part-*.parquet", [f"{where}/part-{part}.parquet" for part in range(3)]):
        document = same_scores(score_files([place], names=[folder.name]))
        assert document["models"][0]["estimates"] == local["models"][0]["estimates"]
    assert "SECRET" not in score_files([where]).to_json()


def other_forms(folder):
    """The same predictions in other formats."""
    whole = table(0)
    probabilities = np.exp(whole.values) / np.exp(whole.values).sum(1, keepdims=True)
    columns = {"id": whole.ids, "label": whole.labels} | {f"p{k}": probabilities[:, k] for k in range(4)}
    arrow = pa.table({name: pa.array(values) for name, values in columns.items()})
    pa.csv.write_csv(arrow, folder / "p.csv")
    (folder / "p.csv.gz").write_bytes(gzip.compress((folder / "p.csv").read_bytes()))
    (folder / "p.jsonl").write_text("\n".join(json.dumps(row) for row in arrow.to_pylist()))
    feather.write_feather(arrow, folder / "p.feather")
    np.savez(folder / "p.npz", probabilities=probabilities, labels=whole.labels, ids=whole.ids)
    tensors = {"probabilities": probabilities, "labels": whole.labels, "ids": whole.ids}
    safetensors.numpy.save_file(tensors, folder / "p.safetensors")
    return sorted(folder.iterdir())


def test_every_format_is_read_from_a_store(store, folder):
    for path in other_forms(folder):
        here, there = read_predictions(path), read_predictions(address_of(path, store))
        assert np.array_equal(here.values, there.values)
        assert np.array_equal(here.ids, there.ids)


@pytest.mark.slow
def test_each_byte_is_fetched_once(store, folder):
    folder.mkdir(exist_ok=True)
    for part in range(3):
        write_predictions(folder / f"part-{part}.parquet", table(part, rows=20_000, classes=10))
    write_manifest(folder)
    size = sum(path.stat().st_size for path in folder.glob("*.parquet"))
    before = store.bytes_sent()
    score_files([address_of(folder, store)])
    assert store.bytes_sent() - before < 1.05 * size


@pytest.mark.slow
def test_a_large_file_is_read_in_pieces_with_its_checksums(store, folder, monkeypatch):
    monkeypatch.setattr(digests, "FETCHED_WHOLE", 1000)
    path = folder / "p.parquet"
    write_predictions(path, table(0, rows=200_000, classes=10))
    where = address_of(path, store)
    assert np.array_equal(read_predictions(where).values, read_predictions(path).values)
    size, before = path.stat().st_size, store.bytes_sent()
    list(open_predictions(where).batches())
    assert store.bytes_sent() - before < 1.25 * size
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(PredictionFileError, match=r"s3://.*p\.parquet: .*(CRC|checksum)"):
        list(open_predictions(where).batches())


@pytest.mark.slow
def test_a_run_is_read_from_a_store(store, folder):
    recipe = small_recipe("ce", epochs=1)
    train(recipe, folder / "run", data=small_data(recipe, test=False), page=False)
    where = f"{address_of(folder, store)}/run"
    here, there = load_run(folder / "run"), load_run(where)
    assert not (local_run(where) / "checkpoints").exists()
    for own, other in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert torch.equal(own, other)
    with pytest.raises(ValueError, match=r"s3://.*/nothing is no run"):
        load_run(f"{address_of(folder, store)}/nothing")
