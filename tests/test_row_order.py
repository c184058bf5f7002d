"""The order of rows, and where a batch or a shard ends, changes neither a result nor whether a file is rejected."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.predictions import AmbiguousInputError, Columns, PredictionFileError, read_predictions
from counterpoise.scoring import score_files

WORDS = [
    "cat",
    "Cat",
    "dog",
    "None",
    "nan",
    "7",
    "007",
    "7.0",
    "true",
    "1",
    "250.1",
    "250.10",
    "caf\u00e9",
    "cafe\u0301",
]
LABELS = {
    "two classes": (2, ["-1", "0", "1", "1.0", "True", "", "NA", "2"]),
    "three classes": (3, ["-1", "0", "1", "2", "2.0", "", "nan", "True"]),
    "five classes": (5, ["-1", "0", "1", "2", "3", "4", "", "NaN", "None"]),
    "named classes": (("cat", "dog"), ["cat", "Cat", "dog", "DOG ", "0", "1", "", "NA", "-1"]),
    "class of no name": (("cat", "NA"), ["cat", "NA", "na", "", "nan", "1"]),
    "capitals": (("a", "A", "b"), ["a", "A", "b", "B", "", "0"]),
}


def outcome(paths, columns=None):
    """The scores of a set of files, or of what kind their rejection is."""
    try:
        model = score_files([[*paths]], columns=columns).models[0]
    except AmbiguousInputError:
        return "asked"
    except PredictionFileError:
        return "rejected"
    return model.samples, model["accuracy"].value, model["ece"].value


def csv_of(folder, header, rows):
    path = folder / f"{len([*folder.iterdir()])}.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def samples(paths):
    """What the rows of some files are read as, whatever order these are in; None if a file is rejected."""
    try:
        tables = [read_predictions(path) for path in paths]
    except PredictionFileError:
        return None
    return sorted(
        (*row, label) for each in tables for row, label in zip(each.values.tolist(), each.labels, strict=True)
    )


def same_in_every_order(folder, header, rows, data):
    """Hold all rows at once, in another order, and in two shards to one reading."""
    turned = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(1, len(rows) - 1))
    orders = [[rows], [turned], [turned[:cut], turned[cut:]]]
    found = [samples([csv_of(folder, header, part) for part in parts]) for parts in orders]
    assert found[0] == found[1] == found[2]


@given(st.data())
@settings(max_examples=8, deadline=None)
def test_predicted_classes(tmp_path_factory, data):
    some = data.draw(st.lists(st.sampled_from(WORDS), min_size=2, max_size=5, unique=True))
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(some), st.sampled_from(some)), min_size=3, max_size=8))
    rows = [f"{label},{prediction},0.{place + 1}" for place, (label, prediction) in enumerate(pairs)]
    same_in_every_order(tmp_path_factory.mktemp("p"), "label,prediction,confidence", rows, data)


@pytest.mark.parametrize("kind", LABELS)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_labels(tmp_path_factory, kind, data):
    classes, spellings = LABELS[kind]
    names = [*map(str, range(classes))] if isinstance(classes, int) else classes
    labels = data.draw(st.lists(st.sampled_from(spellings), min_size=3, max_size=8))
    values = np.random.default_rng(len(labels)).dirichlet(np.ones(len(names)), len(labels))
    rows = [",".join([*map(repr, map(float, row)), label]) for row, label in zip(values, labels, strict=True)]
    header = ",".join([*(f"prob_{name}" for name in names), "label"])
    same_in_every_order(tmp_path_factory.mktemp("p"), header, rows, data)


def parquet_of(path, columns, order, group):
    table = pa.table({name: pa.array([values[row] for row in order]) for name, values in columns.items()})
    pq.write_table(table, path, row_group_size=group)
    return path


@pytest.mark.parametrize("group", [300, 1000])
def test_minus_one_in_two_classes_and_capitals_in_sorted_and_shuffled_parquet(tmp_path, group):
    rows, shuffled = 3000, np.random.default_rng(0).permutation(3000).tolist()
    files = {
        "signs": {"prob": [0.25] * rows, "label": [-1 if row < rows // 2 else row % 2 for row in range(rows)]},
        "capitals": {
            "confidence": [0.5] * rows,
            "label": ["A" if row < rows // 2 else "a" for row in range(rows)],
            "prediction": ["a" if row < rows // 2 else "A" for row in range(rows)],
        },
    }
    for name, columns in files.items():
        found = [
            outcome([parquet_of(tmp_path / f"{name}-{place}.parquet", columns, order, group)])
            for place, order in enumerate((range(rows), shuffled))
        ]
        assert found == ["asked"] * 2
    chosen = Columns(class_names="A,a")
    path = tmp_path / "capitals-1.parquet"
    assert outcome([path], chosen)[:2] == (rows, 0.0)
    assert outcome([tmp_path / "signs-0.parquet"], Columns(class_names="0,1"))[0] == rows // 2
    assert outcome([tmp_path / "signs-1.parquet"], Columns(class_names="-1,1")) == "rejected"  # 0 is none of them


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_names_beside_the_values_hold_for_every_row(tmp_path, order):
    lines = [
        '{"probs": [0.9, 0.1], "names": ["dog", "cat"], "label": "dog"}',
        '{"probs": [0.8, 0.2], "names": ["dog", "cat"], "label": "cat"}',
        '{"probs": [0.7, 0.3], "names": ["cat", "dog"], "label": "cat"}',
    ]
    (tmp_path / "p.jsonl").write_text("".join(f"{lines[place]}\n" for place in order))
    assert outcome([tmp_path / "p.jsonl"]) == "rejected"
