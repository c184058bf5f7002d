"""Groups by any column: from files of every format, and in memory."""

import csv
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch

import counterpoise
from counterpoise.cli import parse
from counterpoise.metrics import ScoreState
from counterpoise.metrics.columns import MOST_GROUPS
from counterpoise.predictions import PredictionFileError, Predictions, write_predictions
from counterpoise.scoring import score_files
from outside_metric import TopTwoAccuracy

ROWS = 240


@pytest.fixture(scope="module")
def columns():
    generator = np.random.default_rng(0)
    probability = generator.uniform(0.05, 0.95, ROWS)
    return {
        "id": np.arange(ROWS),
        "prob_0": 1 - probability,
        "prob_1": probability,
        "label": (generator.random(ROWS) < probability).astype(np.int64),
        "region": np.array(["north", "south", "west"])[generator.integers(0, 3, ROWS)],
        "camera": generator.integers(7, 9, ROWS),
    }


def write_csv(path, columns):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))


def write_json_lines(path, columns):
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    path.write_text("\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in rows))


WRITERS = {
    "p.csv": write_csv,
    "p.jsonl": write_json_lines,
    "p.parquet": lambda path, columns: pq.write_table(pa.table(columns), path),
    "p.feather": lambda path, columns: pa.feather.write_feather(pa.table(columns), str(path)),
    "p.npz": lambda path, columns: np.savez(path, **columns),
}


def by_key(scores):
    return {tuple(sorted(group.columns.items())): group for group in scores.groups}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_group_is_scored_as_its_samples_alone(name, columns, tmp_path):
    WRITERS[name](tmp_path / name, columns)
    (scores,) = score_files([tmp_path / name], by=["region", "camera"]).models
    groups = by_key(scores)
    assert len(groups) == 6
    for (_, camera), (_, region) in groups:
        rows = (columns["region"] == region) & (columns["camera"] == int(camera))
        values = np.stack([columns["prob_0"], columns["prob_1"]], -1)[rows]
        alone = counterpoise.evaluate(probabilities=values, labels=columns["label"][rows])
        group = groups[("camera", camera), ("region", region)]
        assert group.samples == rows.sum()
        for key in ("accuracy", "nll", "ece"):
            assert group.estimates[key].value == pytest.approx(alone[key].value, abs=1e-12)


@pytest.mark.slow
def test_memory_shards_and_two_models_give_the_groups_of_one_file(columns, tmp_path):
    write_csv(tmp_path / "whole.csv", columns)
    (whole,) = score_files([tmp_path / "whole.csv"], by=["region"]).models
    for place, rows in enumerate((slice(0, 100), slice(100, None))):
        (tmp_path / "shards").mkdir(exist_ok=True)
        write_csv(tmp_path / "shards" / f"{place}.csv", {name: column[rows] for name, column in columns.items()})
    (shards,) = score_files([tmp_path / "shards"], by=["region"]).models
    two = score_files([tmp_path / "whole.csv", tmp_path / "shards"], by=["region"]).models
    values = np.stack([columns["prob_0"], columns["prob_1"]], -1)
    memory = counterpoise.evaluate(probabilities=values, labels=columns["label"], by={"region": columns["region"]})
    for scores in (shards, *two, memory):
        assert by_key(scores).keys() == by_key(whole).keys()
        for key, group in by_key(scores).items():
            other = by_key(whole)[key]
            assert group.samples == other.samples
            assert group.estimates["nll"].value == pytest.approx(other.estimates["nll"].value, abs=1e-12)


@pytest.mark.slow
def test_missing_values_are_a_group(columns, tmp_path):
    regions = [None if row % 4 == 0 else str(each) for row, each in enumerate(columns["region"])]
    values = np.stack([columns["prob_0"], columns["prob_1"]], -1)
    in_memory = counterpoise.evaluate(probabilities=values, labels=columns["label"], by={"region": regions})
    pq.write_table(pa.table(columns | {"region": regions}), tmp_path / "p.parquet")
    (from_file,) = score_files([tmp_path / "p.parquet"], by=["region"]).models
    key = (("region", None),)
    assert by_key(in_memory)[key].samples == by_key(from_file)[key].samples == ROWS // 4


@pytest.mark.slow
def test_what_cannot_be_grouped_by_is_refused(columns, tmp_path):
    path = tmp_path / "p.csv"
    many = {name: np.concatenate([column] * 3) for name, column in columns.items()} | {"id": np.arange(3 * ROWS)}
    assert 3 * ROWS > MOST_GROUPS
    write_csv(path, many)
    with pytest.raises(PredictionFileError, match=r"no column 'regio' \(--by\); its columns are 'id', 'prob_0'"):
        score_files([path], by=["regio"])
    with pytest.raises(PredictionFileError, match=r"p\.csv: by id: more than 500 groups; name columns of fewer values"):
        score_files([path], by="id")
    pq.write_table(pa.table({"probs": [[0.2, 0.8]] * 3, "label": [1, 0, 1]}), tmp_path / "lists.parquet")
    with pytest.raises(PredictionFileError, match=r"column 'probs' \(--by\) holds list"):
        score_files([tmp_path / "lists.parquet"], by=["probs"])
    with pytest.raises(ValueError, match="'region' must have a value for each of 2 samples, got 1"):
        counterpoise.evaluate(probabilities=[0.2, 0.3], labels=[0, 1], by={"region": ["north"]})


class Untouched(TopTwoAccuracy):
    """Measures nothing: what is rejected is rejected before the work."""

    def sums(self, batch):
        raise AssertionError("it was measured")


@pytest.mark.parametrize("name", ["site", "domain"])
def test_too_many_groups_are_rejected_in_memory_before_any_work(name):
    by = {name: range(MOST_GROUPS + 1)}
    with pytest.raises(ValueError, match=f"by {name}: more than 500 groups; name columns of fewer values"):
        counterpoise.evaluate(probabilities=[0.2] * 501, labels=[0] * 501, by=by, metrics=[Untouched()])


def test_too_many_groups_of_several_files_are_rejected(columns, tmp_path):
    """No file by itself has too many."""
    for part in range(3):
        sites = [f"{part}-{row}" for row in range(ROWS)]
        pq.write_table(pa.table(columns | {"site": sites}), tmp_path / f"part-{part}.parquet")
    with pytest.raises(ValueError, match="by site: more than 500 groups"):
        score_files(sorted(tmp_path.iterdir()), read_as="shards", by=["site"])


def test_own_files_are_grouped_by_the_columns_that_they_have(columns, tmp_path):
    values = np.stack([columns["prob_0"], columns["prob_1"]], -1)
    table = Predictions.of(probabilities=values, labels=columns["label"], split=columns["region"].tolist())
    write_predictions(tmp_path / "p.parquet", table)
    (scores,) = score_files([tmp_path / "p.parquet"], by=["split"]).models
    assert sorted(group.columns["split"] for group in scores.groups) == ["north", "south", "west"]


def test_ood_files_need_no_such_column(columns, tmp_path):
    write_csv(tmp_path / "p.csv", columns)
    write_csv(tmp_path / "ood.csv", {name: columns[name] for name in ("id", "prob_0", "prob_1")})
    (scores,) = score_files([tmp_path / "p.csv"], ood=[tmp_path / "ood.csv"], by=["region"]).models
    assert len(scores.groups) == 3


def test_the_command_takes_columns():
    assert parse(["evaluate", "p.csv", "--by", "region", "camera"]).by == ("region", "camera")


@pytest.mark.parametrize(
    ("values", "groups"),
    [
        (np.array([0, 1, 0, 1]), {"0", "1"}),
        (torch.tensor([0, 1, 0, 1]), {"0", "1"}),
        ([np.int64(0), np.int64(1), np.int64(0), np.int64(1)], {"0", "1"}),
        (pd.Series(["a", None, "a", "b"]), {"a", "b", None}),
        (pd.array(["a", None, "a", "b"], dtype="string"), {"a", "b", None}),
        (pd.Series([1.0, None, None, 2.0]), {"1.0", "2.0", None}),
    ],
    ids=["array", "tensor", "scalars", "objects", "strings", "floats"],
)
def test_a_state_takes_columns_of_any_kind(values, groups):
    state = ScoreState(classes=2)
    state.update(probabilities=np.full((4, 2), 0.5), labels=[0, 1, 1, 0], columns={"device": values})
    again = ScoreState.from_bytes(state.to_bytes())
    assert {group.columns["device"] for group in again.compute().groups} == groups


def test_a_state_takes_confidences_where_no_more_is_known():
    state = ScoreState(classes=1)
    state.update(confidence=[0.9, 0.8, 0.6], correct=[True, True, False])
    assert state.compute()["accuracy"].value == pytest.approx(2 / 3)
