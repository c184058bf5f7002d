"""Paired differences: right on average, no wider than they need be, and blind to the order of files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import counterpoise
from counterpoise.functional.detection import RankCounts, interpolated_fpr_at_tpr
from counterpoise.functional.paired import jackknife_error, jackknife_quantile
from counterpoise.metrics import KEY_INFO, ScoreOptions, ScoreState
from counterpoise.metrics.comparison import Comparison, Difference, compare
from counterpoise.metrics.estimates import Estimate, Key
from counterpoise.metrics.keys import sample_keys
from counterpoise.metrics.options import JACKKNIFE_GROUPS
from counterpoise.predictions import (
    AmbiguousInputError,
    Header,
    PredictionFileError,
    Predictions,
    write_predictions,
)
from counterpoise.scoring import score_files
from counterpoise.scoring.ids import RepeatedKeys

pytestmark = pytest.mark.usefixtures("few_resamples")

K = 5


def two_models(n: int, seed: int, *, sharper: float = 1.0):
    """Predictions of two noisy readers of the same samples, the second more confident."""
    generator = torch.Generator().manual_seed(seed)
    truth = 2 * torch.randn(n, K, generator=generator)
    labels = torch.multinomial(torch.softmax(truth, -1), 1, generator=generator).squeeze(-1)
    first, second = (truth + 0.6 * torch.randn(n, K, generator=generator) for _ in range(2))
    return labels, first, sharper * second


def compared(labels, *models):
    states = [ScoreState(classes=K, options=ScoreOptions(paired=True)) for _ in models]
    for state, logits in zip(states, models, strict=True):
        state.update(logits=logits, labels=labels)
    return compare([state.compute() for state in states], [state.headline for state in states], level=0.95)


def test_standard_errors_are_those_of_the_mean_difference():
    labels, first, second = two_models(4000, 0)
    (difference,) = compared(labels, first, second).differences
    hits = [(logits.argmax(-1) == labels).double() for logits in (first, second)]
    nll = [torch.nn.functional.cross_entropy(logits, labels, reduction="none").double() for logits in (first, second)]
    for key, (one, other) in {Key.ACCURACY: hits, Key.NLL: nll}.items():
        expected = other - one
        half = jackknife_quantile(0.95, groups=JACKKNIFE_GROUPS) * float(expected.std()) / len(labels) ** 0.5
        estimate = difference.estimates[key]
        assert estimate.value == pytest.approx(float(expected.mean()), abs=1e-6)
        assert (estimate.high - estimate.low) / 2 == pytest.approx(half, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharper", "repetitions", "fewest"),
    [
        # With a coverage of 95%, fewer hits than these have a probability below 1 in 1,000.
        (1.0, 8, 5),
        (1.4, 8, 5),
        pytest.param(1.0, 400, 365, marks=pytest.mark.long),
        pytest.param(1.4, 400, 365, marks=pytest.mark.long),
    ],
)
def test_intervals_hold_the_difference_of_the_population(sharper, repetitions, fewest, monkeypatch):
    monkeypatch.setattr("counterpoise.functional.intervals.BOOTSTRAP_RESAMPLES", 2)  # only values are needed
    size = 1500
    labels, first, second = two_models(repetitions * size + 100_000, 99, sharper=sharper)
    whole = [counterpoise.evaluate(logits=logits, labels=labels) for logits in (first, second)]
    hits: dict[Key, int] = {}
    for start in range(0, repetitions * size, size):
        rows = slice(start, start + size)
        (difference,) = compared(labels[rows], first[rows], second[rows]).differences
        for key, estimate in difference.estimates.items():
            covered = estimate.low <= whole[1][key].value - whole[0][key].value <= estimate.high
            hits[key] = hits.get(key, 0) + covered
    assert len(hits) == 14
    assert min(hits.values()) >= fewest, hits


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(12, 40))
def test_differences_of_bounded_metrics_stay_within_their_bounds(seed, samples):
    labels, first, second = two_models(samples, seed, sharper=2.0)
    (difference,) = compared(labels, first, second).differences
    for key, estimate in difference.estimates.items():
        bound = {Key.NLL: np.inf, Key.BRIER: 2}.get(key, 1)
        assert np.isnan(estimate.low) or -bound <= estimate.low <= estimate.high <= bound, (key, estimate)


@pytest.mark.slow
def test_bounded_intervals_of_few_samples_hold_the_difference(monkeypatch):
    """Fewer than 51 of 60 have a probability below 1 in 1,000 at a coverage of 95%."""
    monkeypatch.setattr("counterpoise.functional.intervals.BOOTSTRAP_RESAMPLES", 2)  # only values are needed
    labels, first, second = two_models(60 * 40 + 100_000, 99)
    whole = [counterpoise.evaluate(logits=logits, labels=labels) for logits in (first, second)]
    hits = dict.fromkeys((Key.AUROC, Key.FPR_AT_TPR95, Key.DETECTION_ERROR_AT_TPR95, Key.AURC, Key.ECE), 0)
    for start in range(0, 60 * 40, 40):
        rows = slice(start, start + 40)
        (difference,) = compared(labels[rows], first[rows], second[rows]).differences
        for key in hits:
            estimate = difference.estimates[key]
            hits[key] += estimate.low <= whole[1][key].value - whole[0][key].value <= estimate.high
    assert min(hits.values()) >= 51, hits


def test_a_model_does_not_differ_from_itself():
    labels, first, _ = two_models(1000, 1)
    (difference,) = compared(labels, first, first).differences
    for estimate in difference.estimates.values():
        assert estimate.value == 0
        assert estimate.low <= 0 <= estimate.high


def test_best_is_named_only_beyond_chance():
    def difference(first, second, low, high):
        estimate = Estimate((low + high) / 2, low, high)
        return Difference(
            first, second, {Key.ECE: estimate, Key.ACCURACY: estimate}, {"svhn": {Key.FPR_AT_TPR95: estimate}}
        )

    clear = Comparison(
        100, 0.95, [difference(0, 1, -0.03, -0.01), difference(0, 2, -0.02, 0.01), difference(1, 2, 0.01, 0.02)]
    )

    def best(key, values, **where):
        return clear.best(key, values, higher_is_better=KEY_INFO[key].higher_is_better, **where)

    assert best(Key.ECE, [0.05, 0.03, 0.045]) == 1
    assert best(Key.ACCURACY, [0.9, 0.88, 0.895]) is None  # 0 leads, and 2 is within chance of it
    assert best(Key.ECE, [0.05, float("nan"), 0.04]) is None
    assert best(Key.ECE, [0.02, 0.03, 0.045]) is None  # biased values lead where the intervals point elsewhere
    assert best(Key.MEAN_GAP, [0.05, 0.03, 0.04]) is None  # neither high nor low is better
    assert best(Key.FPR_AT_TPR95, [0.9, 0.7, 0.8], ood="svhn") == 1
    assert best(Key.FPR_AT_TPR95, [0.9, 0.7, 0.8], ood="unknown") is None


@pytest.mark.slow
def test_naming_the_best_of_more_models_takes_wider_intervals():
    labels, first, second = two_models(1000, 2)
    pair, triple = compared(labels, first, second), compared(labels, first, second, first + second)
    assert (pair.level, triple.level) == (0.95, 0.975)
    assert [(d.first, d.second) for d in triple.differences] == [(0, 1), (0, 2), (1, 2)]
    width = [c.differences[0].estimates[Key.NLL] for c in (pair, triple)]
    assert width[1].high - width[1].low > width[0].high - width[0].low


def test_students_quantile_against_scipy():
    scipy_stats = pytest.importorskip("scipy.stats")
    for level in (0.9, 0.95, 0.99):
        assert jackknife_quantile(level, groups=100) == pytest.approx(scipy_stats.t.ppf(0.5 + level / 2, 99), rel=1e-4)


def test_jackknife_of_a_mean_is_its_standard_error():
    values = torch.randn(100, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    left_out = (values.sum() - values.sum(-1)) / (values.numel() - 7)
    assert jackknife_error(left_out) == pytest.approx(float(values.mean(-1).std() / 10), rel=1e-9)


def files(tmp_path, labels, models, *, ids=None, orders=None, foreign=None):
    paths, beside = [], []
    for index, logits in enumerate(models):
        order = torch.arange(len(labels)) if orders is None else orders[index]
        table = Predictions.of(
            logits=logits[order], labels=labels[order], ids=order.numpy() if ids is None else [ids[i] for i in order]
        )
        paths.append(tmp_path / f"model{index}.parquet")
        write_predictions(paths[-1], table)
        if foreign is not None:
            beside.append(tmp_path / f"foreign{index}.parquet")
            write_predictions(beside[-1], Predictions.of(logits=foreign[index]))
    return paths, beside


@pytest.mark.slow
@pytest.mark.parametrize("text_ids", [False, True])
def test_files_in_another_order_give_the_same_comparison(tmp_path, text_ids):
    labels, first, second = two_models(900, 4, sharper=1.5)
    ids = [f"image {index}" for index in range(900)] if text_ids else None
    foreign = [torch.randn(200, K), torch.randn(200, K)]
    paths, beside = files(tmp_path, labels, [first, second], ids=ids, foreign=foreign)
    straight = score_files(paths, ood=beside)
    shuffled = torch.randperm(900, generator=torch.Generator().manual_seed(5))
    orders = [torch.arange(900), shuffled]
    paths, beside = files(tmp_path, labels, [first, second], ids=ids, orders=orders, foreign=foreign)
    turned = score_files(paths, ood=beside)
    for one, other in zip(straight.comparison.differences, turned.comparison.differences, strict=True):
        assert set(one.ood) == {"ood"}
        for key, estimate in (one.estimates | one.ood["ood"]).items():
            same = (other.estimates | other.ood["ood"])[key]
            assert (estimate.low, estimate.high) == pytest.approx((same.low, same.high), rel=1e-6, abs=1e-9)


@pytest.mark.slow
def test_confident_rows_first_do_not_change_the_comparison(tmp_path):
    labels, first, second = two_models(600, 8, sharper=1.5)
    straight = score_files(files(tmp_path, labels, [first, second])[0])
    sorted_rows = torch.softmax(first, -1).amax(-1).argsort(descending=True)
    paths, _ = files(tmp_path, labels, [first, second], orders=[sorted_rows, sorted_rows])
    turned = score_files(paths)
    for key, estimate in straight.comparison.differences[0].estimates.items():
        same = turned.comparison.differences[0].estimates[key]
        assert (same.low, same.high) == pytest.approx((estimate.low, estimate.high), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("order", ["same", "shuffled"])
def test_a_sample_that_is_there_twice_is_named(tmp_path, order):
    labels, first, second = two_models(300, 6)
    write_predictions(tmp_path / "a.parquet", Predictions.of(logits=first, labels=labels))
    twice = np.repeat(np.arange(0, 300, 2), 2)
    twice = np.random.default_rng(0).permutation(twice) if order == "shuffled" else twice
    write_predictions(tmp_path / "b.parquet", Predictions.of(logits=second[twice], labels=labels[twice], ids=twice))
    with pytest.raises(PredictionFileError, match=r"b.parquet row \d+ and .*b.parquet row \d+ have the same id, \d+"):
        score_files([tmp_path / "a.parquet", tmp_path / "b.parquet"])


@pytest.mark.parametrize("column", [{"corruption": "fog"}, {"in_distribution": False}], ids=str)
def test_samples_of_another_kind_are_others(tmp_path, column):
    labels, first, second = two_models(300, 6)
    name, value = next(iter(column.items()))
    plain = None if name == "corruption" else True
    mixture = {name: [value if row < 270 else plain for row in range(300)]}
    write_predictions(tmp_path / "a.parquet", Predictions.of(logits=first, labels=labels))
    write_predictions(tmp_path / "b.parquet", Predictions.of(logits=second, labels=labels, **mixture))
    assert score_files([tmp_path / "a.parquet", tmp_path / "b.parquet"]).comparison is None


@pytest.mark.slow
@pytest.mark.parametrize("written", [str, str.upper])
def test_classes_in_another_order_are_compared_by_name(tmp_path, written):
    labels, first, second = two_models(300, 6)
    names, order = ("ant", "bee", "cat", "dog", "eel"), [3, 0, 4, 1, 2]
    turned = Header(class_names=tuple(written(names[place]) for place in order))
    places = torch.tensor([order.index(place) for place in range(K)])
    straight = Predictions.of(logits=first, labels=labels, header=Header(class_names=names))
    write_predictions(tmp_path / "a.parquet", straight)
    other = Predictions.of(logits=second[:, order], labels=places[labels], header=turned)
    write_predictions(tmp_path / "b.parquet", other)
    found = score_files([tmp_path / "a.parquet", tmp_path / "b.parquet"]).comparison
    expected = compared(labels, first, second)
    for key in (Key.ACCURACY, Key.NLL):
        value = expected.differences[0].estimates[key].value
        assert found.differences[0].estimates[key].value == pytest.approx(value, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("ids", [np.arange(50), np.arange(1000, 1200), np.r_[np.arange(199), 5000]], ids=len)
def test_other_foreign_samples_are_not_compared(tmp_path, ids):
    labels, first, second = two_models(300, 6)
    paths, beside = files(tmp_path, labels, [first, second], foreign=[first[:200], second[:200]])
    write_predictions(beside[1], Predictions.of(logits=second[: len(ids)], ids=ids))
    evaluation = score_files(paths, ood=beside)
    assert evaluation.comparison.differences[0].ood == {}
    assert evaluation.comparison.differences[0].estimates
    assert any("OOD is not compared" in notice for notice in evaluation.notices)


@pytest.mark.slow
def test_files_that_share_no_sample_are_asked_about(tmp_path):
    labels, first, _ = two_models(300, 6)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, rows in zip(paths, (slice(0, 100), slice(100, 300)), strict=True):
        write_predictions(path, Predictions.of(logits=first[rows], labels=labels[rows], ids=np.arange(300)[rows]))
    write_predictions(tmp_path / "whole.parquet", Predictions.of(logits=first, labels=labels))
    with pytest.raises(AmbiguousInputError, match=r"no sample in common.*read_as='shards' .*read_as='models'") as asked:
        score_files(paths)
    assert "counterpoise evaluate a b --read-as shards" in asked.value.as_commands(["a", "b"])
    apart = score_files(paths, read_as="models")
    assert ([model.samples for model in apart.models], apart.comparison) == ([100, 200], None)
    (one,) = score_files(paths, read_as="shards").models
    (whole,) = score_files([tmp_path / "whole.parquet"]).models
    assert {key: each.value for key, each in one.estimates.items()} == pytest.approx(
        {key: each.value for key, each in whole.estimates.items()}, abs=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("change", ["other ids", "fewer rows", "other labels"])
def test_other_samples_are_not_compared(tmp_path, change):
    labels, first, second = two_models(300, 6)
    write_predictions(tmp_path / "a.parquet", Predictions.of(logits=first, labels=labels))
    rows, of_second = slice(0, 299 if change == "fewer rows" else 300), labels.clone()
    if change == "other labels":
        of_second[7] = (of_second[7] + 1) % K
    ids = np.arange(1, 301) if change == "other ids" else np.arange(300)[rows]
    table = Predictions.of(logits=second[rows], labels=of_second[rows], ids=ids)
    write_predictions(tmp_path / "b.parquet", table)
    evaluation = score_files([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert evaluation.comparison is None
    (notice,) = [notice for notice in evaluation.notices if "not compared" in notice]
    alike = int((labels[1:] == labels[:-1]).sum()) if change == "other ids" else 299
    assert f" {alike} of 300 are alike" in notice
    assert ("nearly all ids are, so labels differ" in notice) == (change != "fewer rows")
    assert [model.source.name for model in evaluation.models] == ["a", "b"]


@pytest.mark.slow
def test_the_same_numbers_as_text_are_the_same_ids(tmp_path):
    labels, first, second = two_models(300, 6)
    for name, logits, ids in (("a", first, np.arange(300)), ("b", second, np.arange(300).astype(str))):
        write_predictions(tmp_path / f"{name}.parquet", Predictions.of(logits=logits, labels=labels, ids=ids))
    assert score_files([tmp_path / "a.parquet", tmp_path / "b.parquet"]).comparison is not None


@pytest.mark.slow
@given(st.text(), st.text())
def test_texts_that_differ_have_keys_that_differ(one, other):
    assert (sample_keys([one])[0] == sample_keys([other])[0]) == (one == other)


@settings(max_examples=20)
@given(st.integers(0, 3000), st.integers(1, 3000))
def test_likeness_is_the_share_of_ids_in_common(start, count):
    sets = [RepeatedKeys(Path()) for _ in range(2)]
    numbers = [range(3000), range(start, start + count)]
    for each, own in zip(sets, numbers, strict=True):
        for part in np.array_split(np.array(own, np.uint64), 7):
            each.add(part)
    common, together = (len(set(numbers[0]) & set(numbers[1])), len(set(numbers[0]) | set(numbers[1])))
    assert sets[0].likeness(sets[1]) == pytest.approx(common / together, abs=0.07)


@pytest.mark.slow
def test_the_same_file_twice_gets_two_names(tmp_path):
    labels, first, _ = two_models(300, 7)
    write_predictions(tmp_path / "a.parquet", Predictions.of(logits=first, labels=labels))
    evaluation = score_files([tmp_path / "a.parquet"] * 2)
    assert [model.source.name for model in evaluation.models] == ["a (1)", "a (2)"]
    assert evaluation.comparison is not None


@pytest.mark.slow
@pytest.mark.parametrize("samples", [10_000, 300_000])
def test_the_error_of_a_rate_at_a_threshold_does_not_depend_on_how_coarse_the_cells_are(samples):
    """Of two normals, 2 apart: by the delta method, from the variance of the quantile and of the rate there."""
    generator = torch.Generator().manual_seed(samples)
    state = ScoreState(classes=2, options=ScoreOptions(paired=True))
    for side in range(2):
        confidence = torch.sigmoid(torch.randn(samples, generator=generator, dtype=torch.float64) - 2 * side)
        logits = torch.stack([4 + confidence, torch.zeros_like(confidence)], -1)
        state.update(logits=logits, labels=torch.full((samples,), side), ids=torch.arange(samples) + side * samples)
    counts = state.headline.ranks.misclassification_by_group(JACKKNIFE_GROUPS)
    left_out = RankCounts(*(side.sum(0, keepdim=True) - side for side in counts))
    found = jackknife_error(interpolated_fpr_at_tpr(left_out))
    rate = torch.special.ndtr(torch.tensor(1.6449 - 2)).item()  # of negatives above 95% of the positives
    slope = np.exp(-0.5 * (2 - 1.6449) ** 2) / np.exp(-0.5 * 1.6449**2)
    expected = np.sqrt((rate * (1 - rate) + slope**2 * 0.95 * 0.05) / samples)
    assert found == pytest.approx(expected, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("known", ["domain", "corruption"])
def test_ids_that_come_again_in_every_domain_are_paired_within_it(tmp_path, known):
    """Of clean samples by domain, of corrupted ones by what was done to them."""
    labels, first, second = two_models(300, 9, sharper=1.5)
    ids, kinds = np.arange(300) % 100, np.array(["fog", "snow", "blur"]).repeat(100)
    found = []
    for order in (np.arange(300), np.random.default_rng(0).permutation(300)):
        for name, logits, rows in (("a", first, np.arange(300)), ("b", second, order)):
            described = {known: kinds[rows].tolist()} | ({"severity": [3] * 300} if known == "corruption" else {})
            table = Predictions.of(logits=logits[rows], labels=labels[rows], ids=ids[rows], **described)
            write_predictions(tmp_path / f"{name}.parquet", table)
        evaluation = score_files([tmp_path / "a.parquet", tmp_path / "b.parquet"])
        found.append(evaluation.comparison.differences[0].estimates["nll"])
    straight, turned = found
    assert (turned.low, turned.high) == pytest.approx((straight.low, straight.high), rel=1e-6)


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_number_of_any_size_is_the_same_id_as_its_text(number):
    assert sample_keys(np.array([number])) == sample_keys([str(number)])


def test_more_names_than_models_are_refused(tmp_path):
    with pytest.raises(ValueError, match="2 names for 1 models"):
        score_files([tmp_path / "a.parquet"], names=["x", "y"])
