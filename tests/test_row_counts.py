"""Arrays of several numbers of rows in one file: those that belong together are read, and what is left out is said."""

import json

import numpy as np
import pytest

from counterpoise.predictions import (
    AmbiguousInputError,
    Columns,
    PredictionFileError,
    open_predictions,
    read_predictions,
)

RNG = np.random.default_rng(4)
SIZES = {"train": 50, "val": 50, "test": 20}
LOGITS = {split: RNG.standard_normal((size, 3)) for split, size in SIZES.items()}
LABELS = {split: RNG.integers(0, 3, size) for split, size in SIZES.items()}


def archive(folder, arrays):
    np.savez(folder / "p.npz", **arrays)
    return folder / "p.npz"


def document(folder, arrays):
    (folder / "p.json").write_text(json.dumps({name: array.tolist() for name, array in arrays.items()}))
    return folder / "p.json"


def nested(folder, arrays):
    splits = {split: {} for split in SIZES}
    for name, array in arrays.items():
        split, _, what = name.partition("_")
        splits[split][what] = array.tolist()
    (folder / "p.json").write_text(json.dumps(splits))
    return folder / "p.json"


@pytest.mark.parametrize("write", [archive, document, nested])
def test_each_split_of_a_file_can_be_read(tmp_path, write):
    arrays = {}
    for split in SIZES:
        arrays |= {f"{split}_logits": LOGITS[split], f"{split}_labels": LABELS[split]}
    path, between = write(tmp_path, arrays), "." if write is nested else "_"
    with pytest.raises(AmbiguousInputError) as asked:
        read_predictions(path)
    choices = {choice["logits"]: dict(choice) for choice, _ in asked.value.choices}
    for split in SIZES:
        logits, label = (f"{split}{between}{what}" for what in ("logits", "labels"))
        assert choices[logits] == {"logits": logits, "label": label}
        file = open_predictions(path, Columns(logits=logits, label=label))
        (table,) = file.batches()
        np.testing.assert_array_equal(table.values, LOGITS[split])
        np.testing.assert_array_equal(table.labels, LABELS[split])
    assert f"left out, as it has not 20 rows: 'train{between}logits' (50)" in file.notices[-1]


def test_what_was_chosen_of_different_numbers_of_rows_is_refused(tmp_path):
    path = archive(tmp_path, {"a": LOGITS["train"], "b": LABELS["test"], "labels": LABELS["train"]})
    with pytest.raises(PredictionFileError, match="array 'b' has 20 rows and 'a' has 50"):
        read_predictions(path, Columns(logits="a", label="b"))
    np.testing.assert_array_equal(read_predictions(path, Columns(logits="a")).labels, LABELS["train"])


def test_known_names_are_found_whatever_most_arrays_have(tmp_path):
    history = {f"metric_{number}": np.arange(7.0) for number in range(5)}
    path = archive(tmp_path, {"logits": LOGITS["test"], "labels": LABELS["test"]} | history)
    np.testing.assert_array_equal(read_predictions(path).labels, LABELS["test"])


def test_lists_of_lists_are_named(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"logits": [[1.0, 2.0], [1.0]], "label": 0}\n' * 3)
    with pytest.raises(PredictionFileError, match=r"column 'logits' holds list<item: double>"):
        read_predictions(tmp_path / "p.jsonl")
