"""WebDataset shards: what Parquet files of the same samples give, headers as `tarfile` reads them, and odd shards."""

import io
import json
import shutil
import tarfile
from itertools import islice

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from counterpoise.data import Augmentation, StreamLoader, index_shards, load_images, resolve
from counterpoise.data.row_groups import class_counts, open_split
from counterpoise.data.tars import GROUP, members
from counterpoise.recipes.config import DataOptions, Recipe
from counterpoise.training.data import named_data, require_evaluable
from test_data_memory import same
from test_data_sets import encoded
from test_data_stream import many_workers

SHARDS = {"train-0": 1300, "train-1": 1000, "test-0": 5}
CLASSES = 7
BATCH = 50


def add(shard, name, content, **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    shard.addfile(info, io.BytesIO(content))


def write_shard(path, files, kind=tarfile.PAX_FORMAT):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as shard:
        for name, content in files:
            add(shard, name, content)
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same samples as a WebDataset and as Parquet, in row groups of as many."""
    path = tmp_path_factory.mktemp("sets")
    (path / "parquet").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (sum(SHARDS.values()), 4, 4, 3), dtype=np.uint8)
    first = 0
    for name, rows in SHARDS.items():
        samples = [(encoded(pixels[row]), row % CLASSES) for row in range(first, first + rows)]
        first += rows
        table = pa.table({"image": [image for image, _ in samples], "label": [label for _, label in samples]})
        pq.write_table(table, path / "parquet" / f"{name}.parquet", row_group_size=GROUP)
        files = []
        for row, (image, label) in enumerate(samples):
            key = f"{'folder/' * (row % 40)}{row:06}"  # some names are longer than a header
            files += [(f"{key}.PNG", image), (f"{key}.cls", str(label).encode()), (f"{key}.txt", b"words")]
        write_shard(
            path / "shards" / f"{name}.tar", files, tarfile.GNU_FORMAT if name == "train-1" else tarfile.PAX_FORMAT
        )
    return path


def loader(folder, **options):
    given = {"seed": 5, "augmentation": Augmentation(padding=1, flip=True), "shuffle": True, "drop_last": True}
    return StreamLoader(folder, "train", batch=BATCH, window=200, **given, **options)


@pytest.mark.slow
def test_images_are_those_of_parquet(folders):
    for split in ("train", "test"):
        ours, theirs = (load_images(folders / kind, split) for kind in ("shards", "parquet"))
        assert torch.equal(ours.pixels, theirs.pixels)
        assert torch.equal(ours.labels, theirs.labels)
        assert torch.equal(ours.ids, theirs.ids)
        assert ours.classes == theirs.classes == tuple(map(str, range(CLASSES)))
    chosen = torch.tensor([3, 999, 1000, 1299, 1300, 2299])
    assert load_images(folders / "shards", "train", ids=chosen).ids.tolist() == chosen.tolist()


@pytest.mark.slow
@many_workers
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_has_the_order_and_pixels_of_parquet_and_resumes(folders, workers):
    ours, theirs = (loader(folders / kind, workers=workers) for kind in ("shards", "parquet"))
    for epoch in (0, 1):
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        whole = list(ours)
        assert same(whole, list(theirs))
    list(islice(ours, 17))
    again = loader(folders / "shards", workers=workers)
    again.load_state_dict(ours.state_dict())
    assert same(list(again), whole[17:])


@pytest.mark.slow
def test_a_run_holds_out_and_trains_on_the_rows_of_parquet(folders):
    found = []
    for kind in ("shards", "parquet"):
        data = DataOptions(name=str(folders / kind), pipeline="stream", workers=0, validation=300, balance="weights")
        recipe = Recipe(method="ce", batch=BATCH, data=data)
        run = named_data(recipe)
        require_evaluable(recipe, run.example, root=None)
        found.append((run, list(run.training(0, 0, 1))))
    (ours, trained), (theirs, expected) = found
    assert same(trained, expected)
    assert torch.equal(ours.validation_rows, theirs.validation_rows)
    assert torch.equal(ours.validation.pixels, theirs.validation.pixels)
    assert torch.equal(ours.class_weights, theirs.class_weights)
    assert len(ours.test()) == SHARDS["test-0"]


@pytest.mark.slow
def test_a_shard_is_indexed_by_groups(folders):
    opened = open_split(resolve(folders / "shards"), "train")
    assert opened.counts.tolist() == [1000, 300, 1000]
    assert opened.starts.tolist() == [0, 2, 3]
    expected = torch.bincount(torch.arange(2300) % CLASSES)
    assert torch.equal(class_counts(opened), expected)


@pytest.mark.slow
def test_an_index_says_what_the_headers_say_and_is_checked(folders, tmp_path):
    shutil.copytree(folders / "shards", tmp_path / "shards")
    written = index_shards(tmp_path / "shards")
    assert written == [str(tmp_path / "shards" / f"{name}.tar.index") for name in SHARDS]
    (tmp_path / "shards" / "classes.txt").write_text("\n".join(map(str, range(CLASSES))))
    plain, indexed = (open_split(resolve(folder / "shards"), "train") for folder in (folders, tmp_path))
    for field in ("places", "firsts", "starts"):
        assert torch.equal(getattr(plain, field), getattr(indexed, field))
    assert same(list(loader(tmp_path / "shards")), list(loader(folders / "shards")))
    for path in (tmp_path / "shards").glob("*.tar"):
        path.write_bytes(bytes(path.stat().st_size))  # nothing but the size is looked at
    assert torch.equal(open_split(resolve(tmp_path / "shards"), "train").places, plain.places)
    with pytest.raises(ValueError, match=r"train-0.tar has fewer samples than when it was opened"):
        load_images(tmp_path / "shards", "train")
    index = tmp_path / "shards" / "test-0.tar.index"
    document = json.loads(index.read_text())
    index.write_text(json.dumps(document | {"bytes": 7 * 512}))
    with pytest.raises(ValueError, match=r"test-0.tar.index is damaged: .*its SHA-256 is another"):
        load_images(tmp_path / "shards", "test")
    del document["sha256"]  # of those who edit on purpose
    for change, message in [
        ({"bytes": 7 * 512}, "is of a file of 3,584 bytes, test-0.tar has 20,480; remove it"),
        ({"places": [0, 5]}, "is damaged: .*its groups are not those of a shard; remove it"),
        ({"places": [-1]}, "is damaged: .*its groups are not"),
        ({"places": [10**9]}, "is damaged: .*its groups are not"),
        ({"samples": -3}, "is damaged: .*its groups are not"),
        ({"group": 0}, "is damaged: .*its groups are not"),
        ({"places": "none"}, "is damaged: .*places"),
    ]:
        index.write_text(json.dumps(document | change))
        with pytest.raises(ValueError, match=rf"test-0.tar.index {message}"):
            load_images(tmp_path / "shards", "test")
    with pytest.raises(ValueError, match="is no WebDataset"):
        index_shards(folders / "parquet")


def test_shards_by_pattern_and_by_name(folders):
    source = resolve(str(folders / "shards" / "t*.tar"))
    assert (source.kind, list(source.files)) == ("webdataset", ["train", "test"])
    assert len(load_images(folders / "shards" / "test-0.tar", "all")) == SHARDS["test-0"]


def test_labels_in_json_and_names_of_classes_beside_the_shards(tmp_path):
    image = encoded(np.zeros((4, 4, 3), np.uint8))
    labels = [{"label": 1, "cls": 0}, {"cls": 2}, {"class_index": 0, "text": "é"}, {"text": "none"}]
    files = []
    for row, label in enumerate(labels):
        files += [(f"{row}.json", json.dumps(label).encode()), (f"{row}.webp.jpg", b"another"), (f"{row}.png", image)]
    write_shard(tmp_path / "a.tar", [("README", b"no sample"), ("._0.png", b"of a desktop"), *files])
    (tmp_path / "classes.txt").write_text("cat\ncow\ndog\n")
    found = load_images(tmp_path, "all")
    assert found.labels.tolist() == [1, 2, 0, -1]
    assert found.classes == ("cat", "cow", "dog")


names = st.text(st.characters(exclude_characters="\0/\n=", exclude_categories=["Cs"]), min_size=1, max_size=30)
paths = st.lists(names.filter(lambda name: name not in (".", "..")), min_size=1, max_size=9).map("/".join)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.tuples(paths, st.integers(0, 1100)), max_size=5),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_headers_are_those_that_tarfile_reads(files, kind):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as shard:
        for index, (name, size) in enumerate(files):
            add(shard, name, bytes([1]) * size)
            add(shard, f"link{index}", b"", type=tarfile.SYMTYPE, linkname=name)
            add(shard, f"folder{index}", b"", type=tarfile.DIRTYPE)
    found = list(members(buffer, 0, where="it"))
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as shard:
        expected = [member for member in shard if member.isreg()]
    assert [(each.begin, each.data, each.size) for each in found] == [
        (member.offset, member.offset_data, member.size) for member in expected
    ]
    assert [each.name for each in found] == [member.name for member in expected]
    for each in found:
        assert next(members(buffer, each.begin, where="it")) == each


SMALL = [("a.png", b"x" * 700), ("a.cls", b"1"), ("b.png", b"y" * 30), ("b.cls", b"0")]


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(1, 5119))
def test_a_shard_that_is_cut_off_anywhere_is_named(tmp_path, size):
    whole = write_shard(tmp_path / "whole.tar", SMALL).read_bytes()
    assert whole[4608:].strip(b"\0") == b""
    (tmp_path / "cut.tar").write_bytes(whole[:size])
    with pytest.raises(ValueError, match=r"cut.tar is cut off: it ends at byte [\d,]+, before its end mark"):
        load_images(tmp_path / "cut.tar", "all")


def forged(path, size):
    """A shard whose first header claims another size."""
    content = bytearray(write_shard(path, SMALL).read_bytes())
    content[124:136] = bytes([0x80, *size.to_bytes(11, "big")])
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    path.write_bytes(content)


def test_odd_shards_are_refused_by_name(tmp_path):
    image = encoded(np.zeros((4, 4, 3), np.uint8))
    for files, message in [
        ([("a.cls", b"1")], r"odd.tar: sample 'a' has no image: cls; a sample is one image"),
        ([("a.png", image), ("a.jpg", image)], r"sample 'a' has several images, png, jpg"),
        ([("a.png", image), ("a.png", image)], r"sample 'a' has two files .png"),
        ([("a.png", image), ("a.cls", b"cat")], r"sample 'a': its cls is b'cat'; it must be the index of a class"),
        ([("a.png", image), ("a.json", b"[1")], r"sample 'a': its json is no JSON object"),
        ([("a.png", image), ("a.json", b'{"label": "cat"}')], r"sample 'a': its label is 'cat', no index of a class"),
        ([("a.png", b"no image"), ("a.cls", b"1")], r"odd.tar, row 0 of the split: not an image that can be read"),
        ([("README", b"nothing")], r"odd, split 'all' at .* has no rows"),
    ]:
        write_shard(tmp_path / "odd.tar", files)
        with pytest.raises(ValueError, match=message):
            load_images(tmp_path / "odd.tar", "all")
    (tmp_path / "odd.tar").write_bytes(b"not a tar" * 1000)
    with pytest.raises(ValueError, match=r"odd.tar is not a tar file, or damaged: there is no header at byte 0"):
        load_images(tmp_path / "odd.tar", "all")
    for size in (1 << 40, (1 << 87) - 1):
        forged(tmp_path / "odd.tar", size)
        with pytest.raises(ValueError, match=r"odd.tar is (cut off|damaged)"):
            load_images(tmp_path / "odd.tar", "all")


def test_names_are_never_paths(tmp_path):
    image = encoded(np.zeros((4, 4, 3), np.uint8))
    inside = tmp_path / "inside"
    write_shard(inside / "odd.tar", [("../../outside.png", image), ("/etc/outside.png", image)])
    assert len(load_images(inside / "odd.tar", "all")) == 2
    assert [path.name for path in tmp_path.rglob("*")] == ["inside", "odd.tar"]


def test_what_is_larger_than_an_image_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("counterpoise.data.tars.LARGEST_IMAGE", 10)
    write_shard(tmp_path / "odd.tar", SMALL)
    with pytest.raises(ValueError, match=r"odd.tar: a.png has 700 bytes, more than 10"):
        load_images(tmp_path / "odd.tar", "all")
