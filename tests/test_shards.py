"""Many files as one table of one model: the same scores as one file, whatever the shards are, and nothing misread."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoise.metrics.comparison import PAIRED
from counterpoise.predictions import PredictionFileError, Predictions, find_shards, write_manifest, write_predictions
from counterpoise.scoring import fit_temperature, score_files
from counterpoise.scoring.join import SampleJoin, Samples
from tests.evaluations import every_estimate

pytestmark = pytest.mark.usefixtures("few_resamples")

GOLDEN = Path(__file__).parent / "golden" / "evaluation"
N, K = 700, 3


def models(seed: int = 0) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    truth = 2 * torch.randn(N, K, generator=generator)
    labels = torch.multinomial(torch.softmax(truth, -1), 1, generator=generator).squeeze(-1)
    return labels, [truth + torch.randn(N, K, generator=generator) for _ in range(2)]


def write(folder: Path, logits: torch.Tensor, labels: torch.Tensor, parts: list[np.ndarray], **columns) -> Path:
    folder.mkdir(parents=True)
    for index, rows in enumerate(parts):
        table = Predictions.of(logits=logits[rows], labels=labels[rows], ids=rows, **columns)
        write_predictions(folder / f"part-{index}.parquet", table)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["corresponding", "other shards", "other order"])
def test_two_models_of_many_shards_compare_as_two_files_do(tmp_path, kind):
    labels, both = models()
    rows, rng = np.arange(N), np.random.default_rng(1)
    parts = {
        "corresponding": [np.array_split(rows, 5)] * 2,
        "other shards": [np.array_split(rows, 5), np.array_split(rows, 11)],
        "other order": [np.array_split(rng.permutation(N), 4), np.array_split(rng.permutation(N), 7)],
    }[kind]
    one = [write(tmp_path / f"one{m}", both[m], labels, [rows]) for m in range(2)]
    many = [write(tmp_path / f"many{m}", both[m], labels, parts[m]) for m in range(2)]
    expected, found = every_estimate(score_files(one)), every_estimate(score_files(many))
    assert expected.keys() == found.keys()
    assert any(place.startswith("comparison") for place in found)
    for place, values in expected.items():
        assert found[place] == pytest.approx(values, abs=1e-12, rel=1e-12, nan_ok=True), place


@pytest.mark.slow
def test_a_folder_a_glob_a_list_and_a_manifest_are_the_same_table(tmp_path):
    labels, (logits, _) = models()
    folder = write(tmp_path / "net", logits, labels, np.array_split(np.arange(N), 12))
    files = sorted(folder.glob("*.parquet"), key=lambda path: int(path.stem.removeprefix("part-")))
    by_folder = score_files([folder]).models[0]
    for location in (str(folder / "part-*.parquet"), files, write_manifest(folder), folder):
        scores = score_files([location]).models[0]
        assert replace(scores, source=by_folder.source) == by_folder
    assert [shard.path for shard in find_shards(folder).shards] == files
    assert score_files([folder]).models[0].source.name == "net"
    assert fit_temperature(folder).temperature == pytest.approx(fit_temperature(files).temperature)


def test_ood_files_may_be_of_another_split_or_none(tmp_path):
    labels, (logits, _) = models()
    folder = write(tmp_path / "net", logits, labels, np.array_split(np.arange(N), 2), split="test", data_set="digits")
    for name, columns in {"far": {}, "near": {"split": "extra", "data_set": "letters"}}.items():
        write_predictions(tmp_path / f"{name}.parquet", Predictions.of(logits=logits[:50], **columns))
    (scores,) = score_files([folder], ood=[tmp_path / "far.parquet", tmp_path / "near.parquet"]).models
    assert set(scores.ood) == {"far", "letters"}
    assert (scores.source.splits, scores.source.data_sets) == (["test"], ["digits"])


@pytest.mark.slow
def test_rows_without_ids_are_told_apart_by_their_shard(tmp_path):
    """Numbered from 0 in each shard, they would share jackknife groups and be joined with each other's."""
    labels, both = models()
    for model, logits in enumerate(both):
        (tmp_path / f"net{model}").mkdir()
        for shard, rows in enumerate(np.array_split(np.arange(N), 3)):
            np.savez(tmp_path / f"net{model}" / f"{shard}.npz", logits=logits[rows], labels=labels[rows])
    evaluation = score_files([tmp_path / "net0", tmp_path / "net1"])
    assert evaluation.comparison.samples == N
    hits = [(logits.argmax(-1) == labels).double() for logits in both]
    difference = evaluation.comparison.differences[0].estimates["accuracy"]
    assert difference.value == pytest.approx(float((hits[1] - hits[0]).mean()), abs=1e-12)


class TestRefuses:
    def refusal(self, *locations) -> str:
        with pytest.raises(PredictionFileError) as caught:
            score_files(locations)
        return str(caught.value)

    def test_what_is_not_one_table(self, tmp_path):
        labels, (logits, _) = models()
        rows = np.arange(N)
        (tmp_path / "empty").mkdir()
        assert "holds no file of predictions (.parquet, .csv, " in self.refusal(tmp_path / "empty")
        assert "no file of predictions" in self.refusal(str(tmp_path / "*.parquet"))
        assert "the list of files is empty" in self.refusal([])
        mixed = write(tmp_path / "kinds", logits, labels, [rows])
        probabilities = Predictions.of(probabilities=logits.double().softmax(-1), labels=labels)
        write_predictions(mixed / "part-1.parquet", probabilities)
        assert "holds probabilities for 3 classes" in self.refusal(mixed)
        splits = write(tmp_path / "splits", logits, labels, [rows], split="test")
        write_predictions(
            splits / "validation.parquet", Predictions.of(logits=logits, labels=labels, split="validation")
        )
        assert "holds samples of the split test" in self.refusal(splits)
        ids = write(tmp_path / "ids", logits, labels, [rows])
        np.savez(ids / "part-1.npz", logits=logits, labels=labels)
        assert "part-1.npz: it has no ids" in self.refusal(ids)

    def test_a_set_that_is_not_its_manifest(self, tmp_path):
        labels, (logits, _) = models()
        folder = write(tmp_path / "net", logits, labels, np.array_split(np.arange(N), 3))
        manifest = write_manifest(folder)
        text = manifest.read_text()
        part = folder / "part-1.parquet"
        kept, digest = part.read_bytes(), part.with_name("part-1.parquet.sha256").read_bytes()
        write_predictions(part, Predictions.of(logits=logits[:5], labels=labels[:5]))
        assert "bytes, the manifest says" in self.refusal(folder)
        part.write_bytes(kept[:-200] + bytes([kept[-200] ^ 1]) + kept[-199:])
        assert "not the file that the manifest names" in self.refusal(folder)
        part.unlink()
        assert "names part-1.parquet, which is missing" in self.refusal(folder)
        part.write_bytes(kept)
        part.with_name("part-1.parquet.sha256").write_bytes(digest)
        assert score_files([folder]).models[0].samples == N
        for broken in ("{", "[]", "{}", text.replace("part-1", "../part-1"), '{"schema": "counterpoise.shards"}'):
            manifest.write_text(broken)
            assert "manifest" in self.refusal(folder)


class TestJoin:
    @pytest.mark.parametrize("waiting", [10_000, 64])
    @pytest.mark.parametrize("order", ["same", "turned", "random"])
    def test_sums_are_those_of_the_paired_samples(self, tmp_path, waiting, order):
        """However they come; with more of them than may wait, through temporary files."""
        rng = np.random.default_rng(0)
        keys = rng.integers(2**63, size=1000).astype(np.uint64)
        values = rng.standard_normal((3, 1000, 2))
        join = SampleJoin(3, 2, tmp_path, most_waiting=waiting)
        orders = [
            {
                "same": np.arange(1000),
                "turned": np.arange(1000)[:: 1 if model else -1],
                "random": rng.permutation(1000),
            }[order]
            for model in range(3)
        ]
        for start in range(0, 1000, 50):
            for model in range(3):
                rows = orders[model][start : start + 50]
                join.add(model, Samples(keys[rows], values[model][rows]))
        assert join.finish()
        assert not list(tmp_path.iterdir())
        for first, second in ((0, 1), (0, 2), (1, 2)):
            difference = values[second] - values[first]
            expected = np.stack([(difference**power).sum(0) for power in range(5)], -1)
            for column in range(2):
                assert join.power_sums((first, second), column).numpy() == pytest.approx(expected[column], rel=1e-9)

    @pytest.mark.slow
    @pytest.mark.parametrize("waiting", [10_000, 64])
    def test_samples_that_others_lack_are_noticed(self, tmp_path, waiting):
        keys = np.arange(500, dtype=np.uint64)
        for change in (keys[:-1], np.r_[keys[:-1], keys[:1]], np.r_[keys, keys[:1]]):
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            join = SampleJoin(2, 1, folder, most_waiting=waiting)
            join.add(0, Samples(keys, np.zeros((500, 1))))
            join.add(1, Samples(change.astype(np.uint64), np.zeros((len(change), 1))))
            assert not join.finish()


@pytest.mark.slow
def test_estimates_are_those_of_the_first_release():
    """Of kept files: values as they were; intervals moved only by methods that cover better, by a part of their width."""
    expected = json.loads((GOLDEN / "expected.json").read_text())
    found = every_estimate(score_files([GOLDEN / "ce.parquet", GOLDEN / "mte-1.parquet"]))
    assert expected.keys() == {place for place in found if "/simultaneous/" not in place}  # which are later than that
    assert sum(str(key) in place for key in PAIRED for place in found) > 8
    for place, (value, low, high) in expected.items():
        if value is None:
            assert math.isnan(found[place][0])
            continue
        assert found[place][0] == pytest.approx(value, rel=1e-6, abs=1e-6), place
        if low is not None:
            assert found[place][1:] == pytest.approx((low, high), abs=0.35 * (high - low) + 1e-6), place
