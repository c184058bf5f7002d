"""Units of a plan: whatever the files are cut into and wherever the parts are scored, the scores are the same."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoise._engines import Here, Processes, Tree, in_order
from counterpoise.predictions import PredictionFileError, Predictions, write_predictions
from counterpoise.scoring import files, plan, score_files
from tests.evaluations import every_estimate

ROWS, CLASSES = 30_000, 4


def table(seed, *, rows=ROWS):
    rng = np.random.default_rng(seed)
    return (2 * rng.normal(size=(rows, CLASSES))).astype(np.float32), rng.integers(CLASSES, size=rows)


def write_groups(path, seed, *, ids):
    """A file of another program, in many row groups."""
    logits, labels = table(seed)
    columns = {
        "label": pa.array(labels),
        "logits": pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel()), CLASSES),
    }
    columns |= {"id": pa.array(np.arange(ROWS))} if ids else {}
    columns |= {"region": pa.array(np.array(["north", "south"])[labels % 2])}
    pq.write_table(pa.table(columns), path, row_group_size=1000)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("models", [1, 2])
def test_a_file_by_row_groups_scores_as_a_whole(tmp_path, monkeypatch, ids, models):
    paths = [write_groups(tmp_path / f"{seed}.parquet", seed, ids=ids) for seed in range(models)]
    whole = every_estimate(score_files(paths, by=["region"]))
    monkeypatch.setattr(plan, "UNIT_BYTES", 1)
    parts = every_estimate(score_files(paths, by=["region"]))
    assert parts.keys() == whole.keys()
    for key, value in whole.items():
        assert parts[key] == pytest.approx(value, rel=1e-9, abs=1e-12), key


def test_rows_are_named_as_they_are_in_the_file(tmp_path, monkeypatch):
    path = write_groups(tmp_path / "p.parquet", 0, ids=True)
    read = pq.read_table(path)
    ids = np.arange(ROWS)
    ids[25_000] = 7
    pq.write_table(read.set_column(read.schema.get_field_index("id"), "id", pa.array(ids)), path, row_group_size=1000)
    monkeypatch.setattr(plan, "UNIT_BYTES", 1)
    with pytest.raises(PredictionFileError, match=r"row 7 and .* row 25000 have the same id"):
        score_files([path])


@pytest.mark.slow
def test_processes_give_the_same_bytes(tmp_path, monkeypatch):
    """Models in as many shards and in others, with OOD samples; with so many samples that ranks are counted, too."""
    for model, shards in (("a", 5), ("b", 5), ("c", 3)):
        (tmp_path / model).mkdir()
        logits, labels = table(ord(model), rows=1500)
        labels = np.arange(1500) % CLASSES
        for place, rows in enumerate(np.array_split(np.arange(1500), shards)):
            part = Predictions.of(logits=logits[rows], labels=labels[rows], ids=rows)
            write_predictions(tmp_path / model / f"part-{place}.parquet", part)
        far = Predictions.of(logits=table(9)[0][:300], labels=np.zeros(300, int), ids=np.arange(300))
        write_predictions(tmp_path / f"far-{model}.parquet", far)
    engine = Processes(2)
    try:
        for models, exact in (("ab", 700), ("ab", 10_000), ("ac", 700)):
            monkeypatch.setattr(files, "EXACT_SAMPLES", exact)
            paths = [tmp_path / model for model in models]
            ood = [tmp_path / f"far-{model}.parquet" for model in models]
            here, there = score_files(paths, ood=ood), score_files(paths, ood=ood, engine=engine)
            assert here.to_json() == there.to_json()
            assert json.loads(here.to_json())["comparison"] is not None
        with pytest.raises(PredictionFileError, match=r"no such thing|it has no column"):
            score_files(paths, by=["no such thing"], engine=engine)
    finally:
        engine.close()


def squared(number):
    if number == 13:
        raise ValueError("not this one")
    return number, number**2


@pytest.mark.slow
def test_calls_come_back_in_order_and_errors_as_they_are():
    engine = Processes(2)
    try:
        found = [value for _, value in in_order(engine, squared, [(number,) for number in range(9)])]
        assert found == [number**2 for number in range(9)]
        with pytest.raises(ValueError, match="not this one"):
            list(in_order(engine, squared, [(number,) for number in range(20)]))
    finally:
        engine.close()


@pytest.mark.parametrize("count", [*range(1, 20), 63, 64, 65, 100])
def test_a_tree_combines_all_in_order(count):
    tree = Tree(Here(), lambda parts: sum(parts, start=()))
    for number in range(count):
        tree.add((number,))
    assert tree.root() == tuple(range(count))
