"""Streams: the contract of every measure, states on disk, and error bounds that hold."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise import Stream
from counterpoise.functional import detection
from counterpoise.functional.confidence import LOGIT_SCORES, confidence_score
from counterpoise.functional.detection import rank_counts
from counterpoise.functional.histogram import coarsen_to_equal_mass, exact_cells
from counterpoise.metrics import (
    ClasswiseCalibration,
    ConfidenceRanking,
    Key,
    MisclassificationDetection,
    OodDetection,
    Performance,
    ScoreOptions,
    TopLabelCalibration,
)
from counterpoise.metrics.ranking import RANKING_METRICS, RANKING_RANGES, calibration_by_rank
from counterpoise.testing import check_metric

MEASURES = [
    Performance(),
    TopLabelCalibration(bins=10),
    ClasswiseCalibration(num_classes=4),
    ConfidenceRanking(),
    MisclassificationDetection(score="energy"),
    OodDetection(),
    OodDetection(score="energy"),
    OodDetection(score="margin"),
]


def predictions(samples: int, seed: int = 0, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(samples, 4, generator=generator)
    labels = torch.multinomial(torch.softmax(0.6 * logits, -1), 1, generator=generator).squeeze(-1)
    return logits, labels, torch.rand(samples, generator=generator) < 0.6


@pytest.mark.parametrize("measure", MEASURES, ids=repr)
def test_keeps_the_contract(measure):
    logits, labels, inside = predictions(60)
    check_metric(measure, logits=logits, labels=labels, in_distribution=inside)


@pytest.mark.parametrize("measure", MEASURES, ids=repr)
def test_saved_and_loaded_elsewhere(measure, tmp_path):
    logits, labels, inside = predictions(50)
    whole, parts = Stream(measure), []
    whole.update(logits=logits, labels=labels, in_distribution=inside)
    for index, rows in enumerate(torch.split(torch.arange(50), 20)):
        worker = Stream(measure)
        worker.update(logits=logits[rows], labels=labels[rows], in_distribution=inside[rows])
        parts.append(tmp_path / f"part{index}.safetensors")
        worker.save(parts[-1])
    merged = Stream(measure)
    for path in parts:
        loaded = Stream(measure)
        loaded.load(path)
        merged.merge(loaded)
    for key, estimate in whole.compute().items():
        assert merged.compute()[key].value == pytest.approx(estimate.value, rel=1e-12)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in parts}, "temporary files are left"


def test_states_of_other_measures_are_refused(tmp_path):
    stream = Stream(TopLabelCalibration(bins=15))
    stream.update(probabilities=[[0.9, 0.1]], labels=[0])
    other = Stream(TopLabelCalibration(bins=10))
    with pytest.raises(ValueError, match=r"bins=10.*bins=15.*their settings differ"):
        other.merge(stream)
    with pytest.raises(ValueError, match="their settings differ"):
        other.load_state_dict(stream.state_dict())
    stream.save(tmp_path / "state.safetensors")
    with pytest.raises(ValueError, match="their settings differ"):
        other.load(tmp_path / "state.safetensors")
    state = stream.state_dict()
    with pytest.raises(ValueError, match="version 2"):
        stream.load_state_dict(state | {"version": 2})
    with pytest.raises(ValueError, match="needs"):
        stream.load_state_dict(state | {"sums": {"count": state["sums"]["count"]}})
    with pytest.raises(ValueError, match="'count' has shape"):
        stream.load_state_dict(state | {"sums": state["sums"] | {"count": torch.zeros(3, dtype=torch.int64)}})


def test_files_of_another_kind_are_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    path.write_bytes(b"not safetensors at all")
    with pytest.raises(ValueError, match=r"state\.safetensors is not a safetensors file"):
        Stream(Performance()).load(path)
    with pytest.raises(ValueError, match="unnamed"):
        Stream(Performance()).load_state_dict({"version": 1})


def test_state_can_be_saved_by_torch_and_loaded_without_code(tmp_path):
    stream = Stream(Performance())
    stream.update(probabilities=[[0.9, 0.1]], labels=[0])
    torch.save(stream.state_dict(), tmp_path / "state.pt")
    again = Stream(Performance())
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.compute() == stream.compute()


@pytest.mark.slow
@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**31),
    samples=st.integers(2, 200),
    scale=st.sampled_from([0.3, 3.0, 8.0]),
    cells=st.integers(1, 30),
)
def test_ranking_measures_lie_in_their_ranges(seed, samples, scale, cells):
    """Whatever the scores inside a cell, from one cell for everything to many cells."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.sigmoid(scale * torch.randn(samples, generator=generator, dtype=torch.float64))
    scores = torch.where(torch.rand(samples, generator=generator) < 0.2, scores[0], scores)
    positive = torch.rand(samples, generator=generator, dtype=torch.float64) < scores
    positive[0], positive[1] = True, False
    exact = rank_counts(scores, positive)
    coarse = rank_counts((scores * cells).floor(), positive)
    for key, measure in RANKING_METRICS.items():
        low, high = RANKING_RANGES[key](coarse)
        assert low - 1e-12 <= measure(exact) <= high + 1e-12, key
        assert low - 1e-12 <= measure(coarse) <= high + 1e-12, key


@pytest.mark.slow
@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.3, 3.0, 8.0]))
def test_error_bounds_of_ranks_hold(seed, scale):
    logits, labels, _ = predictions(400, seed, scale)
    probabilities = torch.softmax(logits, -1)
    stream = Stream(ConfidenceRanking(bins=15))
    stream.update(probabilities=probabilities, labels=labels)
    streamed = stream.compute()
    confidence, prediction = probabilities.max(-1)
    hits = prediction == labels
    exact = {key: float(measure(rank_counts(confidence, hits))) for key, measure in RANKING_METRICS.items()}
    cells = exact_cells(confidence, hits)
    exact |= {key: e.value for key, e in calibration_by_rank(cells, options=ScoreOptions(), exact=True).items()}
    for key, value in exact.items():
        assert abs(streamed[key].value - value) <= streamed[key].error_bound + 1e-12, key
    assert streamed[Key.AUROC].error_bound < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("score", LOGIT_SCORES)
def test_error_bound_of_detection_holds(score):
    logits, labels, inside = predictions(2000)
    for measure, positive in (
        (OodDetection(score=score), inside),
        (MisclassificationDetection(score=score), logits.argmax(-1) == labels),
    ):
        stream = Stream(measure)
        stream.update(logits=logits, labels=labels, in_distribution=inside)
        estimate = stream.compute()[Key.AUROC]
        exact = float(detection.auroc(rank_counts(confidence_score(score, logits=logits), positive)))
        assert abs(estimate.value - exact) <= estimate.error_bound + 1e-9
        assert estimate.error_bound < 2e-3


def test_equal_mass_bins_are_of_equal_mass_without_ties():
    confidence = torch.rand(600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums, bound = coarsen_to_equal_mass(exact_cells(confidence, confidence > 0.5), bins=15)
    assert sums.count.tolist() == [40] * 15
    assert bound == 0


def test_a_billion_samples_stay_exact_counts():
    """Counts are integers: the first sample is not lost beside 2^53 others, as it would be in a float."""
    stream = Stream(Performance())
    stream.update(probabilities=[[0.9, 0.1]], labels=[0])
    big = stream.state_dict()
    big["sums"] = big["sums"] | {"count": torch.tensor(2**53), "correct": torch.tensor(2**53)}
    stream.load_state_dict(big)
    stream.update(probabilities=[[0.9, 0.1]], labels=[0])
    assert stream.sums["count"].item() == 2**53 + 1


class _Shifty(Performance):
    """A measure that keeps its value, but not its floor, or not its keys, in another number of batches."""

    def __init__(self, *, floor: bool) -> None:
        super().__init__()
        object.__setattr__(self, "floor", floor)

    def zeros(self):
        return super().zeros() | {"batches": torch.tensor(0)}

    def sums(self, batch):
        return super().sums(batch) | {"batches": torch.tensor(1)}

    def compute(self, sums, *, level):
        batches = int(sums["batches"])
        found = super().compute({name: value for name, value in sums.items() if name != "batches"}, level=level)
        if self.floor:
            return {key: replace(estimate, floor=float(batches)) for key, estimate in found.items()}
        return found if batches < 2 else found | {"more": found[Key.NLL]}


@pytest.mark.parametrize(("floor", "complaint"), [(True, "floor is"), (False, "it estimates")])
def test_the_contract_has_floors_and_keys(floor, complaint):
    logits, labels, _ = predictions(60)
    with pytest.raises(AssertionError, match=complaint):
        check_metric(_Shifty(floor=floor), logits=logits, labels=labels)
