"""States that are saved and loaded, and what they reject."""

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pytest

from counterpoise.metrics import ScoreOptions, Scores, ScoreState, Stream
from counterpoise.predictions import Predictions, write_predictions
from counterpoise.scoring import score_files
from outside_metric import TopTwoAccuracy
from test_score_state import KEY, N, rows_of

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_odd_arguments_are_refused_with_a_remedy(tmp_path):
    state = ScoreState(classes=3)
    good = {"probabilities": [[0.5, 0.3, 0.2]], "labels": [0]}
    with pytest.raises(TypeError, match="merges with another ScoreState, got int"):
        state.merge(3)
    with pytest.raises(TypeError, match="merges with another Stream"):
        Stream(TopTwoAccuracy()).merge(3)
    with pytest.raises(TypeError, match=r"expected a metric, such as Performance\(\), got None"):
        Stream(None)
    with pytest.raises(ValueError, match="ids must have one entry for each of 1 rows, got 2"):
        state.update(**good, ids=[1, 2])
    with pytest.raises(ValueError, match=r"integers or text.*float64"):
        state.update(**good, ids=[1.5])
    with pytest.raises(ValueError, match="hospital must have one entry"):
        state.update(**good, columns={"hospital": ["a", "b"]})
    with pytest.raises(ValueError, match="needs labels"):
        state.update(probabilities=good["probabilities"])
    with pytest.raises(ValueError, match="have 2 classes, the state is for 3"):
        state.update(probabilities=[[0.5, 0.5]], labels=[0])
    with pytest.raises(ValueError, match="no labelled samples"):
        state.compute()
    (tmp_path / "other.safetensors").write_bytes(Stream(TopTwoAccuracy()).sums and b"")
    with pytest.raises(ValueError, match=r"other\.safetensors"):
        ScoreState.load(tmp_path / "other.safetensors")
    own = ScoreState(classes=3, options=ScoreOptions(metrics=(TopTwoAccuracy(),)))
    own.save(tmp_path / "own.safetensors")
    with pytest.raises(ValueError, match=r"additional metrics \['TopTwoAccuracy\(\)'\]; pass these as metrics="):
        ScoreState.load(tmp_path / "own.safetensors")
    for odd in (
        {"bins": 0},
        {"bins": 2.5},
        {"bins": True},
        {"level": 1},
        {"level": "high"},
        {"score": "msp"},
        {"exact_samples": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(odd)) if "score" not in odd else "unknown confidence score"):
            ScoreOptions(**odd)

    @dataclass(frozen=True)
    class Accuracy(TopTwoAccuracy):
        info = {"accuracy": TopTwoAccuracy.info[KEY]}  # noqa: RUF012

    with pytest.raises(ValueError, match="has the name of another metric: accuracy"):
        ScoreOptions(metrics=(Accuracy(),))


def test_groups_that_are_dates_are_saved_and_come_back(tmp_path):
    state = ScoreState(classes=2)
    days = [dt.date(2026, 11, 20), dt.datetime(2026, 11, 21, 3, 4), None, Decimal("0.5")]
    state.update(probabilities=[[0.9, 0.1]] * 4, labels=[0, 1, 0, 1], ids=list("abcd"), columns={"day": days})
    state.save(tmp_path / "state.safetensors")
    loaded = ScoreState.load(tmp_path / "state.safetensors")
    assert loaded.to_bytes() == state.to_bytes()
    assert [dict(key) for key in loaded.groups if key] == [
        {"day": "2026-11-20"},
        {"day": "2026-11-21 03:04:00"},
        {"day": "0.5"},
    ]


def test_what_is_saved_in_a_store_is_loaded_from_it():
    state = ScoreState(classes=2)
    state.update(probabilities=[[0.9, 0.1], [0.2, 0.8]] * 10, labels=[0, 1] * 10, ids=range(20))
    state.save("memory://saved/state.safetensors")
    assert ScoreState.load("memory://saved/state.safetensors").to_bytes() == state.to_bytes()
    scores = state.compute()
    scores.save("memory://saved/scores.json")
    assert Scores.load("memory://saved/scores.json").to_json() == scores.to_json()


def test_what_files_leave_out_is_counted_over_all_of_them(tmp_path):
    for part in range(2):
        rows = rows_of(part, text_ids=False, clean=True)
        labels = rows.labels.clone()
        labels[: 2 + part] = -1
        fog = ["fog" if row in (10, 11, 12) else None for row in range(N)]
        table = Predictions.of(logits=rows.logits[0], labels=labels, ids=np.arange(N) + part * N, corruption=fog)
        write_predictions(tmp_path / f"part-{part}.parquet", table)
    said = " ".join(score_files([tmp_path]).notices)
    assert "5 rows without a label were left out" in said
    assert "6 corrupted samples are not in the headline" in said
