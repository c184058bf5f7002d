"""What is one model's and one split's is scored, each sample once: nothing is pooled, dropped or counted twice unsaid."""

import shutil

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.predictions import PredictionFileError
from counterpoise.scoring import fit_temperature, score_files

N = 120
GENERATOR = np.random.default_rng(4)
LOGITS = 2 * GENERATOR.normal(size=(N, 3))
LABELS = GENERATOR.integers(0, 3, N)


def table(rows=slice(None), **columns):
    frame = pd.DataFrame(LOGITS[rows], columns=[f"logit_{k}" for k in range(3)])
    return frame.assign(label=LABELS[rows], **columns)


def split_after(first, rows=N):
    return ["train" if row < first else "test" for row in range(rows)]


def test_samples_of_two_splits_are_not_pooled(tmp_path):
    """Wherever in the file the second one begins, and whether its rows are named at all."""
    for suffix in ("csv", "parquet"):
        path = tmp_path / f"a.{suffix}"
        for splits in (split_after(100), split_after(100)[::-1], [None, *split_after(0)[1:]]):
            frame = table(split=splits)
            frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path, row_group_size=7)
            for read in (lambda path: score_files([path]), fit_temperature):
                with pytest.raises(
                    (PredictionFileError, ValueError), match=r"of the splits? .*test.*eep the rows of one"
                ):
                    read(path)
    (scores,) = score_files([path], by=["split"]).models
    assert (scores.samples, len(scores.groups)) == (N, 2)
    table(split="test").to_csv(tmp_path / "b.csv", index=False)
    (scores,) = score_files([tmp_path / "b.csv"]).models
    assert scores.source.splits == ["test"]


def test_samples_of_two_splits_are_not_pooled_from_shards(tmp_path):
    for name, columns in (("0", {"split": "test"}), ("1", {"split": "val"}), ("2", {})):
        table(slice(0, 40) if name == "0" else slice(40, 80), **columns).to_csv(tmp_path / f"{name}.csv", index=False)
    for other, named in (("1", "of the split val"), ("2", "of the split of no name")):
        with pytest.raises(
            PredictionFileError, match=rf"0\.csv holds samples of the split test, .*{other}\.csv {named}"
        ):
            score_files([[tmp_path / "0.csv", tmp_path / f"{other}.csv"]])


def test_ood_samples_have_a_split_of_their_own(tmp_path):
    inside = np.arange(N) < 80
    frame = table(split=np.where(inside, "test", "ood"), in_distribution=inside)
    for rows in (np.arange(N), np.random.default_rng(0).permutation(N), np.arange(N)[::-1]):
        frame.iloc[rows].to_parquet(tmp_path / "a.parquet", row_group_size=30)
        (scores,) = score_files([tmp_path / "a.parquet"]).models
        assert (scores.samples, scores.source.splits) == (80, ["test"])


@pytest.mark.parametrize("missing", [None, ""])
@pytest.mark.parametrize("named", [["a"], ["a", "b"]])
def test_a_row_without_a_model_is_rejected(tmp_path, named, missing):
    models = [named[row % len(named)] for row in range(N)]
    models[77] = missing
    for suffix in ("csv", "parquet"):
        frame, path = table(model=models), tmp_path / f"a.{suffix}"
        frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path, row_group_size=10)
        with pytest.raises(
            PredictionFileError, match=r"a\.\w+: row 77, column 'model' names no model, and other rows do"
        ):
            score_files([path])
    table(model=pd.Series([None] * N, dtype="string")).to_parquet(tmp_path / "b.parquet")
    assert score_files([tmp_path / "b.parquet"]).models[0].samples == N


def test_a_shard_that_is_a_copy_is_rejected(tmp_path):
    for place in range(3):
        table(slice(40 * place, 40 * place + 40)).to_csv(tmp_path / f"{place}.csv", index=False)
    assert score_files([tmp_path]).models[0].samples == N
    shutil.copy(tmp_path / "1.csv", tmp_path / "1 (copy).csv")
    with pytest.raises(PredictionFileError, match=r"1 \(copy\)\.csv and .*1\.csv hold the same predictions and labels"):
        score_files([tmp_path])
    (tmp_path / "1 (copy).csv").unlink()
    copied = table(slice(40, 80))
    copied.to_parquet(tmp_path / "3.parquet", row_group_size=7)
    with pytest.raises(PredictionFileError, match=r"1\.csv and .*3\.parquet hold the same predictions and labels"):
        score_files([[tmp_path / "0.csv", tmp_path / "1.csv", tmp_path / "3.parquet"]])


def test_few_rows_may_be_alike_by_chance(tmp_path):
    for name in ("a", "b"):
        table(slice(0, 10)).to_csv(tmp_path / f"{name}.csv", index=False)
    assert score_files([tmp_path]).models[0].samples == 20


def test_a_given_name_stays_that_of_its_file(tmp_path):
    for name in ("a", "b"):
        table(slice(0, 60)).to_csv(tmp_path / f"{name}.csv", index=False)
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    evaluation = score_files(paths, names=["b", None], read_as="models")
    assert [*evaluation] == ["b", "b (2)"]
    assert evaluation["b"].source.path == str(paths[0])
    with pytest.raises(ValueError, match="two models are called 'b'; give each a name of its own"):
        score_files(paths, names=["b", "b"], read_as="models")


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(given_names=st.lists(st.sampled_from(["a", "b", "b (2)", None]), max_size=3), data=st.data())
def test_each_model_has_a_name_of_its_own_and_given_names_stay(tmp_path_factory, given_names, data):
    folder = tmp_path_factory.mktemp("named")
    stems = data.draw(st.permutations(["a", "b", "b (2)"]))
    for stem in stems:
        table(slice(0, 6)).to_csv(folder / f"{stem}.csv", index=False)
    paths = [folder / f"{stem}.csv" for stem in stems]
    chosen = [name for name in given_names if name is not None]
    if len(set(chosen)) < len(chosen):
        with pytest.raises(ValueError, match="two models are called"):
            score_files(paths, names=given_names, read_as="models")
        return
    evaluation = score_files(paths, names=given_names, read_as="models")
    assert len(set(evaluation)) == 3
    for name, path in zip(given_names, paths, strict=False):
        assert name is None or evaluation[name].source.path == str(path)
