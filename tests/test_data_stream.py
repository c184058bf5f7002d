"""Streams of Parquet files: the rows, pixels and interruptions of a set in memory, without holding it."""

import multiprocessing
import os
import time
import tracemalloc
from itertools import islice
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from counterpoise.data import Augmentation, MemoryLoader, StreamLoader, hold_out, load_images, sample_ids
from counterpoise.data.parquet import ParquetRows, chunk_of
from counterpoise.data.row_groups import reader_ranges
from counterpoise.data.sources import resolve
from test_data_sets import encoded, random_pixels, write

ROWS = 53
GROUPS = [(20, 6), (33, 10)]
"""Rows and rows a row group of the two files."""

few = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
many_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("set")
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, 4, 4, 3), dtype=np.uint8)
    first = 0
    for number, (rows, group) in enumerate(GROUPS):
        some = pixels[first : first + rows]
        table = {"image": [encoded(each) for each in some], "label": [row % 5 for row in range(first, first + rows)]}
        pq.write_table(pa.table(table), path / f"train-{number}.parquet", row_group_size=group)
        first += rows
    return path


def stream(
    folder, *, batch=4, seed=5, shuffle=True, drop_last=True, workers=0, window=7, exclude=None, rank=0, world=1
):
    return StreamLoader(
        folder,
        "train",
        batch=batch,
        seed=seed,
        augmentation=Augmentation(padding=1, flip=True) if shuffle else None,
        shuffle=shuffle,
        drop_last=drop_last,
        workers=workers,
        window=window,
        exclude=exclude,
        rank=rank,
        world=world,
    )


def same(first, second) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )


def ids_of(batches) -> list[int]:
    return [int(row) for batch in batches for row in batch.ids]


@pytest.mark.slow
@few
@given(
    st.integers(1, 6), st.integers(1, 3), st.integers(1, 60), st.booleans(), st.booleans(), st.sets(st.integers(0, 52))
)
def test_every_row_once_over_all_ranks(folder, local, world, window, shuffle, drop_last, excluded):
    batch, rows = local * world, ROWS - len(excluded)
    exclude = torch.tensor(sorted(excluded), dtype=torch.int64)
    found = []
    for rank in range(world):
        each = stream(
            folder,
            batch=batch,
            window=window,
            shuffle=shuffle,
            drop_last=drop_last,
            exclude=exclude,
            rank=rank,
            world=world,
        )
        batches = list(each)
        assert len(batches) == len(each)
        assert not drop_last or len(batches) == rows // batch
        found += ids_of(batches)
    assert len(found) == len(set(found)) == (rows // batch * batch if drop_last else rows)
    assert not set(found) & excluded


@given(st.integers(0, 400), st.integers(1, 7), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.data())
def test_shares_of_all_readers_cover_the_rows_once(rows, local, world, readers, drop_last, data):
    """Readers in turn, resumed at any batch: what was delivered and what comes are the whole, without overlap."""
    batch = local * world
    covered = []
    for rank in range(world):
        layout = {"batch": batch, "rank": rank, "world": world, "readers": readers, "drop_last": drop_last}
        batches, whole = reader_ranges(rows, consumed=0, **layout)
        turns = [
            list(range(start, stop))[first * local :][number * local : (number + 1) * local]
            for number in range(-(-batches // readers))
            for start, stop, first in whole
        ]
        delivered = [turn for turn in turns if turn]
        assert len(delivered) == batches
        consumed = data.draw(st.integers(0, batches))
        _, rest = reader_ranges(rows, consumed=consumed, **layout)
        again = [
            list(range(start, stop))[(first + number) * local : (first + number + 1) * local]
            for number in range(-(-batches // readers))
            for start, stop, first in rest
        ]
        assert [turn for turn in again if turn] == delivered[consumed:]
        covered += [row for turn in delivered for row in turn]
    assert sorted(covered) == list(range(rows // batch * batch if drop_last else rows))


@pytest.mark.slow
@few
@given(st.integers(1, 9), st.integers(1, 30), st.booleans(), st.integers(0, 3), st.data())
def test_resuming_at_any_batch_gives_the_rest_of_the_epoch(folder, batch, window, drop_last, epoch, data):
    first = stream(folder, batch=batch, window=window, drop_last=drop_last)
    first.set_epoch(epoch)
    whole = list(first)
    stop = data.draw(st.integers(0, len(whole) - 1))
    list(islice(first, stop))
    state = first.state_dict()
    second = stream(folder, batch=batch, window=window, drop_last=drop_last)
    second.load_state_dict(state)
    iterator = iter(second)
    second.set_epoch(epoch)
    assert len(second) == len(whole)
    assert same(list(iterator), whole[stop:])
    assert same(list(second), whole)


@pytest.mark.slow
@many_workers
@pytest.mark.parametrize("drop_last", [True, False])
def test_workers_deliver_and_resume_what_they_promise(folder, tmp_path, drop_last):
    """With two workers, each prefetching: the state counts what was delivered."""
    whole = list(stream(folder, workers=2, drop_last=drop_last))
    assert len(set(ids_of(whole))) == (52 if drop_last else 53)
    assert same(whole, list(stream(folder, workers=2, drop_last=drop_last)))
    for stop in (1, 6):
        first = stream(folder, workers=2, drop_last=drop_last)
        list(islice(first, stop))
        torch.save(first.state_dict(), tmp_path / "state.pt")
        second = stream(folder, workers=2, drop_last=drop_last)
        second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert same(list(second), whole[stop:])


@many_workers
def test_one_worker_reads_what_none_reads(folder):
    assert same(list(stream(folder, workers=1)), list(stream(folder)))


def test_a_state_of_another_layout_is_refused(folder):
    state = stream(folder).state_dict()
    for change, message in [
        ({"workers": 2}, "workers = 1, this stream has workers = 2"),
        ({"world": 2}, "world = 1, this stream has world = 2"),
        ({"window": 8}, "window = 7, this stream has window = 8"),
        ({"batch": 2}, "batch = 4, this stream has batch = 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            stream(folder, **change).load_state_dict(state)
    stream(folder, workers=1).load_state_dict(state)


def test_epochs_differ_and_rows_mix_within_their_window(folder):
    each = stream(folder, window=ROWS)
    first = ids_of(each)
    each.set_epoch(1)
    assert ids_of(each) != first
    stored = stream(folder, shuffle=False, drop_last=False)
    assert ids_of(stored) == list(range(ROWS))


def test_resuming_reads_no_row_group_before_the_window(folder, monkeypatch):
    """Batch 10 of 13 with windows of 7 rows: rows from 35 of the sequence on, and one for the shape of the images."""
    read = []

    def recorded(table, columns, ids, where):
        read.extend(ids.tolist())
        return chunk_of(table, columns, ids, where)

    monkeypatch.setattr("counterpoise.data.parquet.chunk_of", recorded)
    each = stream(folder)
    each.load_state_dict({**each.state_dict(), "consumed": 10})
    assert len(list(each)) == 3
    assert len(read) == 1 + 52 - 35


@pytest.mark.parametrize(("workers", "consumed"), [(2, 0), (0, 2)])
def test_images_of_another_size_than_the_first_are_refused_whoever_reads_them(tmp_path, workers, consumed):
    for name, side in {"train-a": 8, "train-b": 12}.items():
        write(tmp_path / f"{name}.parquet", random_pixels(8, side), [0] * 8)
    each = stream(tmp_path, batch=4, window=4, workers=workers, shuffle=False)
    each.load_state_dict({**each.state_dict(), "consumed": consumed})
    with pytest.raises(ValueError, match=r"train-b.parquet, row 8 .*12 x 12 pixels and the first one 8 x 8"):
        list(each)


def test_the_broken_image_of_a_window_is_named_by_its_own_file(tmp_path):
    write(tmp_path / "train-a.parquet", random_pixels(4), [0] * 4)
    pq.write_table(pa.table({"image": [b"no image"], "label": [0]}), tmp_path / "train-b.parquet")
    with pytest.raises(
        ValueError,
        match=r"train-b.parquet, row 4 of the split: .*its format is not known \(JPEG.*AVIF are\); save it as PNG$",
    ):
        list(stream(tmp_path, batch=5, window=5))


@pytest.mark.slow
def test_a_large_row_group_is_not_held_at_once(tmp_path):
    """10,000 rows of 3 kB in one row group, of which the first are read."""
    rows = 10_000
    images = [np.random.default_rng(row).bytes(3000) for row in range(rows)]
    pq.write_table(pa.table({"image": images, "label": [0] * rows}), tmp_path / "train.parquet", row_group_size=rows)
    source = resolve(tmp_path)
    before = pa.total_allocated_bytes()
    chunks = ParquetRows(source, source.files["train"][0]).chunks(0, np.arange(rows), most=100)
    assert len(next(chunks).ids) == 100
    assert pa.total_allocated_bytes() - before < (tmp_path / "train.parquet").stat().st_size / 2


def test_the_global_random_state_is_left_alone(folder):
    before = torch.random.get_rng_state()
    first = list(stream(folder))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(3)
    assert same(first, list(stream(folder)))


@pytest.mark.slow
def test_real_rows_have_the_pixels_that_memory_gives_them(real_data):
    """Each id, augmented and normalised, bit for bit; and held-out rows by their ids."""
    root = real_data("cifar10")
    options = {"batch": 50, "seed": 1, "augmentation": Augmentation(4, flip=True), "shuffle": True, "drop_last": True}
    train, held = hold_out(len(sample_ids("cifar10", "test", root=root)), size=8000, seed=0)
    images = load_images("cifar10", "test", root=root, ids=train)
    assert torch.equal(images.ids, train)
    memory, streamed = (
        MemoryLoader(images, **options),
        StreamLoader("cifar10", "test", root=root, exclude=held, **options),
    )
    memory.set_epoch(2)
    streamed.set_epoch(2)
    expected = {int(row): batch.images[index] for batch in memory for index, row in enumerate(batch.ids)}
    labels = dict(zip(images.ids.tolist(), images.labels.tolist(), strict=True))
    assert len(memory) == len(streamed) == 40
    seen = 0
    for batch in streamed:
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        for row, image, label in zip(batch.ids.tolist(), batch.images, batch.labels.tolist(), strict=True):
            assert torch.equal(image, expected[row])
            assert label == labels[row]
            seen += 1
    assert seen == 2000


def test_pacs_streams_the_other_domains(real_data):
    root = real_data("pacs_64")
    each = StreamLoader(
        "pacs_64",
        "train",
        domain="sketch",
        root=root,
        batch=20,
        seed=0,
        augmentation=None,
        shuffle=True,
        drop_last=True,
    )
    assert each.classes[0] == "dog"
    assert len(each) == (2048 + 2344 + 1670) // 20
    allowed = set(sample_ids("pacs_64", "train", domain="sketch", root=root).tolist())
    assert set(ids_of(islice(each, 5))) <= allowed


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(real_data):
    """The peak of Python's and Arrow's memory over 1,500 rows and over five times as many."""
    root = real_data("cifar10")

    def peak(rows: int) -> int:
        each = StreamLoader(
            "cifar10", "test", root=root, batch=100, seed=0, augmentation=None, shuffle=True, drop_last=True,
            window=500, exclude=torch.arange(rows, 10_000),
        )  # fmt: skip
        largest = 0
        tracemalloc.start()
        for _ in each:
            largest = max(largest, pa.total_allocated_bytes())
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return python + largest

    few, many = peak(1500), peak(7500)
    assert many < 1.3 * few


def test_some_rows_are_read_in_place_without_the_row_groups_between(folder, monkeypatch):
    read = []

    def watched(self, place, rows, *, most, chunks=ParquetRows.chunks):
        read.append((Path(self.name).name, place))
        return chunks(self, place, rows, most=most)

    monkeypatch.setattr(ParquetRows, "chunks", watched)
    chosen = torch.tensor([51, 3, 21, 22])
    found = load_images(folder, "train", ids=chosen, in_place=True)
    assert read == [("train-0.parquet", 0), ("train-1.parquet", 0), ("train-1.parquet", 3)]
    read.clear()
    assert load_images(folder, "train", limit=7, in_place=True).ids.tolist() == list(range(7))
    assert read == [("train-0.parquet", 0), ("train-0.parquet", 1)]
    expected = load_images(folder, "train", ids=chosen)
    assert found.ids.tolist() == expected.ids.tolist() == [3, 21, 22, 51]
    assert torch.equal(found.pixels, expected.pixels)
    assert torch.equal(found.labels, expected.labels)
    assert found.classes == expected.classes


def test_what_cannot_be_streamed_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"ids must be row numbers in \[0, 53\), got 2 to 53"):
        stream(folder, exclude=torch.tensor([2, 53]))
    with pytest.raises(ValueError, match="window must be at least 1"):
        stream(folder, window=0)
    with pytest.raises(ValueError, match=r"digits .*is neither Parquet nor a WebDataset"):
        sample_ids("digits", "train")
    table = pa.table({"image": [encoded(np.zeros((4, 4, 3), np.uint8))] * 3, "label": [0, -2, 1]})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train.parquet: the label of row 1 is -2, outside \[0, 2\)"):
        list(stream(tmp_path, batch=1))


def _announce_workers(root, pipe):
    loader = StreamLoader(
        "cifar10", "test", batch=10, seed=0, augmentation=None, shuffle=True, drop_last=True, workers=2, root=root
    )
    batches = iter(loader)
    next(batches)
    pipe.send([child.pid for child in multiprocessing.active_children()])
    time.sleep(60)


@pytest.mark.slow
def test_workers_end_when_their_reader_is_killed(real_data):
    """Also those that a fork server started, whose parent by number lives on; here by inheritance of the method."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_announce_workers, args=(real_data("cifar10"), theirs))
    process.start()
    assert ours.poll(120)
    workers = ours.recv()
    assert len(workers) == 2
    process.kill()
    process.join()
    deadline = time.monotonic() + 30
    while any(_runs(worker) for worker in workers):
        assert time.monotonic() < deadline, f"{workers} outlive their reader"
        time.sleep(0.1)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # What has ended but is not waited for is still listed.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
