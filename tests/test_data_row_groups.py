"""Row groups of many files: what is opened, and what is left when rows are chosen or left out."""

from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from counterpoise.data import resolve
from counterpoise.data.row_groups import open_split
from test_data_sets import random_pixels, write

ROWS = 53


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Two files, of 20 rows in row groups of 6, and of 33 in row groups of 10."""
    folder = tmp_path_factory.mktemp("set")
    for name, rows, group in (("train-0", 20, 6), ("train-1", 33, 10)):
        write(folder / f"{name}.parquet", random_pixels(rows), [0] * rows, group=group)
    return open_split(resolve(folder), "train")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_what_is_left_of_a_split_is_what_is_left_of_a_list(opened, data):
    """Any rows chosen, left out or cut off, one after the other: numbers, counts and positions of the others."""
    split, left = opened, list(range(ROWS))
    first = data.draw(st.integers(1, ROWS + 3))
    if data.draw(st.booleans()):
        split, left = split.head(first), left[:first]
    for _ in range(data.draw(st.integers(0, 3))):
        some = data.draw(st.sets(st.sampled_from(left or [0]), max_size=20))
        if data.draw(st.booleans()):
            split, left = (
                split.without(torch.tensor(sorted(some), dtype=torch.int64)),
                [r for r in left if r not in some],
            )
        else:
            split, left = split.only(torch.tensor(sorted(some), dtype=torch.int64)), [r for r in left if r in some]
    groups = range(len(split.places))
    assert [row for group in groups for row in split.ids(group).tolist()] == left
    assert split.counts.tolist() == [len(split.ids(group)) for group in groups]
    assert split.taking_part == len(left)


def test_many_files_are_opened_in_order_and_with_progress(tmp_path):
    for number in range(40):
        write(tmp_path / f"train-{number:02}.parquet", random_pixels(1 + number % 3), [number % 2] * (1 + number % 3))
    seen = []
    opened = open_split(resolve(tmp_path), "train", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 40) for done in range(1, 41)]
    assert [Path(name).stem for name in opened.files] == [f"train-{number:02}" for number in range(40)]
    assert opened.counts.tolist() == [1 + number % 3 for number in range(40)]
    (tmp_path / "train-07.parquet").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"train-07.parquet cannot be read as Parquet"):
        open_split(resolve(tmp_path), "train")
