"""Prediction sets and the threshold of accepted predictions: what the theory says of them, and what is refused."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import binom

from counterpoise.calibrators import ConformalSets, SelectiveThreshold, keyed_uniforms, second_half
from counterpoise.functional.conformal import (
    SET_SCORES,
    aps_scores,
    binomial_log_p_value,
    candidate_thresholds,
    conformal_rank,
    conformal_threshold,
    fewest_samples,
    raps_scores,
    selective_threshold,
    set_scores,
)

levels = st.integers(1, 99).map(lambda percent: percent / 100)
seeds = st.integers(0, 2**31)


def drawn(samples, classes, *, seed=0, scale=2.0, ties=False):
    """Logits, and labels that they are the log-odds of."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(samples, classes, generator=generator)
    if ties:
        logits = logits.round()
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    return logits, labels


def direct_scores(p, *, penalty, free_ranks, u):
    """APS and RAPS label by label, as their papers have it."""
    found = torch.empty_like(p)
    for row, probabilities in enumerate(p.tolist()):
        for k, own in enumerate(probabilities):
            above = math.fsum(each for each in probabilities if each > own)
            rank = sum(each >= own for each in probabilities)
            found[row, k] = above + float(u[row]) * own + penalty * max(0, rank - free_ranks)
    return found


@settings(max_examples=40, deadline=None)
@given(
    seed=seeds, classes=st.integers(2, 12), ties=st.booleans(), penalty=st.floats(0, 1), free_ranks=st.integers(0, 5)
)
def test_scores_are_those_of_the_papers_ties_included(seed, classes, ties, penalty, free_ranks):
    p = drawn(8, classes, seed=seed, ties=ties)[0].double().softmax(-1)
    u = keyed_uniforms(range(8), seed=seed)
    for draws in (None, u):
        given_u = torch.ones(8) if draws is None else draws
        expected = direct_scores(p, penalty=penalty, free_ranks=free_ranks, u=given_u)
        found = raps_scores(p, penalty=penalty, free_ranks=free_ranks, u=draws)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        plain = direct_scores(p, penalty=0, free_ranks=0, u=given_u)
        torch.testing.assert_close(aps_scores(p, u=draws), plain, rtol=0, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, classes=st.integers(2, 300))
def test_the_least_likely_label_scores_one_without_rounding_errors(seed, classes):
    p = drawn(5, classes, seed=seed)[0].double().softmax(-1)
    assert aps_scores(p).amax(-1).tolist() == [1.0] * 5
    assert aps_scores(p, u=torch.zeros(5)).amin(-1).tolist() == [0.0] * 5


@given(samples=st.integers(0, 10_000), alpha=st.fractions(Fraction(1, 1000), Fraction(999, 1000), max_denominator=1000))
def test_the_rank_is_the_exact_ceiling(samples, alpha):
    decimal = Fraction(round(alpha * 1000), 1000)
    assert conformal_rank(samples, float(decimal)) == math.ceil((samples + 1) * (1 - decimal))
    assert conformal_rank(fewest_samples(float(decimal)), float(decimal)) <= fewest_samples(float(decimal))
    assert conformal_rank(fewest_samples(float(decimal)) - 1, float(decimal)) > fewest_samples(float(decimal)) - 1


@given(scores=st.lists(st.integers(0, 5).map(float), max_size=30), alpha=levels)
def test_enough_calibration_scores_are_at_most_the_threshold_and_no_lower_one_would_do(scores, alpha):
    threshold = float(conformal_threshold(torch.tensor(scores), alpha))
    needed = math.ceil((len(scores) + 1) * (1 - Fraction(str(alpha))))
    if needed > len(scores):
        assert threshold == math.inf
    else:
        assert sum(each <= threshold for each in scores) >= needed > sum(each < threshold for each in scores)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, alpha=levels, other=levels, score=st.sampled_from(SET_SCORES), by_class=st.booleans())
def test_sets_grow_as_alpha_falls(seed, alpha, other, score, by_class):
    logits, labels = drawn(120, 4, seed=seed, ties=seed % 2 == 0)
    test = drawn(30, 4, seed=seed + 1)[0]
    small, large = (
        ConformalSets.fit(logits, labels, alpha=each, score=score, by_class=by_class)(test)
        for each in sorted((alpha, other), reverse=True)
    )
    assert bool((large | ~small).all())


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=seeds, alpha=levels, score=st.sampled_from(SET_SCORES), by=st.sampled_from(["all", "class", "slice"]))
def test_the_order_of_samples_and_of_classes_changes_nothing(seed, alpha, score, by):
    logits, labels = drawn(150, 5, seed=seed)
    test = drawn(40, 5, seed=seed + 1)[0]
    slices, test_slices = np.arange(150) % 3, np.arange(40) % 3
    u, test_u = (None, None) if score == "lac" else (keyed_uniforms(range(150)), keyed_uniforms(range(40), seed=1))
    generator = torch.Generator().manual_seed(seed)
    order, test_order, classes = (torch.randperm(n, generator=generator) for n in (150, 40, 5))
    renamed = torch.empty(5, dtype=torch.int64).scatter_(0, classes, torch.arange(5))

    def fitted(rows, columns, names):
        return ConformalSets.fit(
            logits[rows][:, columns],
            names[labels[rows]],
            alpha=alpha,
            score=score,
            by_class=by == "class",
            slices=slices[rows] if by == "slice" else None,
            u=None if u is None else u[rows],
        )

    def applied(sets, rows, columns):
        return sets(
            test[rows][:, columns],
            slices=test_slices[rows] if by == "slice" else None,
            u=None if test_u is None else test_u[rows],
        )

    same = torch.arange(5)
    first = applied(fitted(torch.arange(150), same, same), torch.arange(40), same)
    moved = applied(fitted(order, classes, renamed), test_order, classes)
    assert torch.equal(moved, first[test_order][:, classes])


def test_a_set_does_not_depend_on_the_samples_beside_it():
    logits, labels = drawn(200, 6)
    test, u = drawn(50, 6, seed=1)[0], keyed_uniforms(range(50))
    sets = ConformalSets.fit(logits, labels, score="raps", u=keyed_uniforms(range(200), seed=1))
    together = sets(test, u=u)
    assert all(torch.equal(sets(test[row], u=u[row : row + 1]), together[row]) for row in range(50))
    assert torch.equal(sets(test.view(5, 10, 6), u=u.view(5, 10)), together.view(5, 10, 6))


@pytest.mark.parametrize("score", SET_SCORES)
@pytest.mark.parametrize("by", ["class", "slice"])
def test_categories_have_the_thresholds_that_they_have_alone(score, by):
    logits, labels = drawn(300, 3)
    slices = np.array(["day", "night", "fog"])[np.arange(300) % 3]
    sets = ConformalSets.fit(
        logits, labels, score=score, by_class=by == "class", slices=slices if by == "slice" else None
    )
    column = labels.numpy() if by == "class" else slices
    names = (0, 1, 2) if by == "class" else sets.slices
    for name, threshold in zip(names, sets.thresholds, strict=True):
        rows = torch.from_numpy(column == name)
        assert ConformalSets.fit(logits[rows], labels[rows], score=score).thresholds == (threshold,)


def test_too_few_samples_give_all_labels_and_say_so():
    logits, labels = drawn(8, 3)
    sets = ConformalSets.fit(logits, labels, alpha=0.1)
    assert sets.thresholds == (math.inf,)
    assert bool(sets(logits).all())
    assert "fewer than the 9 calibration samples" in sets.summary()
    assert "every set has all labels" in sets.summary()

    labels = torch.tensor([0] * 50 + [1] * 8)
    by_class = ConformalSets.fit(drawn(58, 3)[0], labels, by_class=True)
    assert by_class.samples == (50, 8, 0)
    assert by_class.without_threshold == ("1", "2")
    assert "1, 2; these classes are in every set" in by_class.summary()
    assert bool(by_class(drawn(20, 3, seed=1)[0])[:, 1:].all())


def test_labels_of_probability_zero_count():
    """To leave them out would promise too much."""
    logits, labels = drawn(100, 3)
    logits[:20] = torch.where(torch.arange(3) == labels[:20, None], -torch.inf, logits[:20])
    sets = ConformalSets.fit(logits, labels, alpha=0.1)
    assert sets.thresholds == (1.0,)
    assert bool(sets(logits).all())
    accept = SelectiveThreshold.fit(logits, labels, risk=0.9, delta=0.5)
    assert accept.samples == int(second_half(range(100)).sum())


REFUSED = {
    "alpha 0": (lambda z, y: ConformalSets.fit(z, y, alpha=0.0), "alpha must lie between 0 and 1, got 0.0"),
    "alpha 1": (lambda z, y: ConformalSets.fit(z, y, alpha=1.0), "alpha must lie between 0 and 1"),
    "score": (lambda z, y: ConformalSets.fit(z, y, score="hps"), "no score 'hps': choose one of lac, aps, raps"),
    "penalty": (lambda z, y: ConformalSets.fit(z, y, score="raps", penalty=-1.0), "penalty must be at least 0"),
    "ranks": (lambda z, y: ConformalSets.fit(z, y, score="raps", free_ranks=-1), "free_ranks must be at least 0"),
    "both": (lambda z, y: ConformalSets.fit(z, y, by_class=True, slices=["a"] * 40), "by_class or slices, not both"),
    "slices": (lambda z, y: ConformalSets.fit(z, y, slices=["a"]), "one for each of 40 samples, got 1"),
    "u of lac": (lambda z, y: ConformalSets.fit(z, y, u=torch.zeros(40)), "lac takes no random numbers"),
    "u outside": (lambda z, y: ConformalSets.fit(z, y, score="aps", u=torch.full((40,), 2.0)), "u row 0 is 2.0"),
    "few u": (lambda z, y: ConformalSets.fit(z, y, score="aps", u=[0.5]), "for each of 40 samples, got 1"),
    "label": (lambda z, y: ConformalSets.fit(z, y + 3), r"labels row 0.*outside \[0, 3\)"),
    "NaN": (lambda z, y: ConformalSets.fit(z * torch.nan, y), "logits row 0, column 0 is nan"),
    "no u": (lambda z, y: ConformalSets.fit(z, y, score="aps", u=torch.zeros(40))(z), "give u= to sets"),
    "no slice": (lambda z, y: ConformalSets.fit(z, y, slices=["a"] * 40)(z), "give slices= to sets"),
    "new slice": (
        lambda z, y: ConformalSets.fit(z, y, slices=["a"] * 40)(z, slices=["a"] * 39 + ["b"]),
        "slices row 39 is 'b'.*fit again with samples of it",
    ),
    "risk": (lambda z, y: SelectiveThreshold.fit(z, y, risk=1.0), "risk must be at least 0 and below 1, got 1.0"),
    "delta": (lambda z, y: SelectiveThreshold.fit(z, y, risk=0.1, delta=0.0), "delta must lie between 0 and 1"),
    "ids": (lambda z, y: SelectiveThreshold.fit(z, y, risk=0.1, ids=[1, 2]), "ids must be one for each of 40"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case):
    use, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        use(*drawn(40, 3))


@pytest.mark.parametrize("how", ["all", "class", "slice", "randomised"])
def test_saved_sets_are_read_again(how, tmp_path):
    logits, labels = drawn(60, 3)
    sets = ConformalSets.fit(
        logits,
        labels,
        score="raps",
        by_class=how == "class",
        slices=["a"] * 5 + ["b"] * 55 if how == "slice" else None,
        u=keyed_uniforms(range(60)) if how == "randomised" else None,
    )
    sets.save(tmp_path / "sets.json")
    assert ConformalSets.load(tmp_path / "sets.json") == sets
    assert sets.without_threshold == (("a",) if how == "slice" else ())


def test_files_that_hold_something_else_are_refused(tmp_path):
    path = tmp_path / "sets.json"
    sets = ConformalSets.fit(*drawn(60, 3))
    broken = [
        ("{}", "not a conformal_sets document"),
        (sets.to_json().replace('"lac"', '"eval"'), "it is one of 'lac', 'aps', 'raps'"),
        (json.dumps(json.loads(sets.to_json()) | {"thresholds": [0.1, 0.2]}), "there are 1 thresholds, got 2"),
        (json.dumps(json.loads(sets.to_json()) | {"thresholds": [None]}), "a threshold is NaN"),
    ]
    for text, message in broken:
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"sets\.json: .*{message}"):
            ConformalSets.load(path)
    accept = SelectiveThreshold.fit(*drawn(200, 3), risk=0.5)
    path.write_text(json.dumps(json.loads(accept.to_json()) | {"errors": 10_000}))
    with pytest.raises(ValueError, match=r"sets\.json: .*10000 errors"):
        SelectiveThreshold.load(path)


@given(
    counts=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=5),
    risk=st.floats(1e-4, 0.9),
)
def test_p_values_are_those_of_scipy(counts, risk):
    errors, trials = (torch.tensor(each) for each in zip(*((min(c), max(c)) for c in counts), strict=True))
    # Not `binom.logcdf`, which is minus infinity where the probability itself is too small for a float.
    expected = torch.tensor(
        [
            logsumexp(binom.logpmf(range(wrong + 1), n, risk))
            for wrong, n in zip(errors.tolist(), trials.tolist(), strict=True)
        ],
        dtype=torch.float64,
    )
    found = binomial_log_p_value(errors, trials, risk)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(seed=seeds, risk=st.floats(0.01, 0.4), delta=st.floats(0.01, 0.5))
def test_every_threshold_down_to_the_chosen_one_passes_the_test_and_the_next_does_not(seed, risk, delta):
    logits, labels = drawn(600, 4, seed=seed)
    confidence, prediction = logits.double().softmax(-1).max(-1)
    correct = prediction == labels
    candidates = candidate_thresholds(confidence[:300], correct[:300], risk=risk)
    assert bool((candidates.diff() < 0).all())
    assert 1 <= len(candidates) <= 200
    found = selective_threshold(confidence[300:], correct[300:], candidates, risk=risk, delta=delta)
    for threshold in candidates.tolist():
        accepted = confidence[300:] >= threshold
        wrong = int((accepted & ~correct[300:]).sum())
        passes = binom.cdf(wrong, int(accepted.sum()), risk) <= delta * (1 + 1e-9)
        assert passes == (threshold >= found.threshold)
        if threshold == found.threshold:
            assert (found.accepted, found.errors) == (int(accepted.sum()), wrong)
        if threshold < found.threshold:
            break


def test_a_threshold_accepts_what_it_was_fitted_to_accept(tmp_path):
    logits, labels = drawn(4_000, 4, scale=4.0)
    ids = [f"image {row}" for row in range(4_000)]
    accept = SelectiveThreshold.fit(logits, labels, risk=0.05, ids=ids)
    tested = second_half(ids)
    accepted = accept(logits[tested])
    assert (accept.samples, accept.accepted) == (int(tested.sum()), int(accepted.sum()))
    assert accept.errors == int((logits[tested].argmax(-1) != labels[tested])[accepted].sum())
    assert accept.accepted > 0.3 * accept.samples
    assert f"at least {accept.threshold:.4g} are accepted" in accept.summary()
    accept.save(tmp_path / "accept.json")
    assert SelectiveThreshold.load(tmp_path / "accept.json") == accept
    order = torch.randperm(4_000, generator=torch.Generator().manual_seed(0))
    moved = SelectiveThreshold.fit(logits[order], labels[order], risk=0.05, ids=[ids[row] for row in order])
    assert moved == accept


@pytest.mark.parametrize(
    ("samples", "risk", "said"),
    [
        (4_000, 0.0, "Nothing is accepted: no number of samples can show"),
        (40, 0.01, "It takes at least 230 accepted ones without an error"),
        (1, 0.05, "Nothing is accepted"),
    ],
)
def test_what_no_sample_can_show_accepts_nothing_and_says_so(samples, risk, said, tmp_path):
    logits, labels = drawn(samples, 4, scale=9.0)
    accept = SelectiveThreshold.fit(logits, labels, risk=risk)
    assert accept.threshold == math.inf
    assert not bool(accept(logits).any())
    assert said in accept.summary()
    accept.save(tmp_path / "accept.json")
    assert SelectiveThreshold.load(tmp_path / "accept.json") == accept


def test_halves_and_uniforms_depend_on_the_id_alone():
    ids = np.arange(20_000)
    half, u = second_half(ids), keyed_uniforms(ids)
    assert torch.equal(half[:100], second_half(torch.arange(100)))
    assert torch.equal(half[:100], second_half([str(each) for each in range(100)]))
    assert abs(float(half.double().mean()) - 0.5) < 0.02
    # Uniform, in both halves and with another seed, and unlike each other: 1.95 / sqrt(n) is the 0.1% point.
    for values in (u, u[half], keyed_uniforms(ids, seed=1)):
        grid = (torch.arange(len(values)) + 0.5) / len(values)
        assert float((values.sort().values - grid).abs().max()) < 1.95 / len(values) ** 0.5
    assert abs(float(torch.corrcoef(torch.stack([u, keyed_uniforms(ids, seed=1)]))[0, 1])) < 0.03


def test_thresholds_of_other_shapes_are_none():
    sets = ConformalSets.fit(*drawn(60, 3))
    with pytest.raises(ValueError, match="by class there are 3 thresholds, got 1"):
        replace(sets, by="class")
    with pytest.raises(ValueError, match="no score 'x'"):
        set_scores("x", torch.ones(2))


def test_ranks_are_whole_numbers_and_ids_are_no_real_ones(tmp_path):
    logits, labels = torch.randn(50, 3), torch.arange(50) % 3
    sets = ConformalSets.fit(logits, labels, alpha=0.2, score="raps", free_ranks=np.int64(2))
    sets.save(tmp_path / "sets.json")
    assert ConformalSets.load(tmp_path / "sets.json") == sets
    with pytest.raises(ValueError, match=r"free_ranks must be a whole number, got 2\.5"):
        ConformalSets.fit(logits, labels, alpha=0.2, score="raps", free_ranks=2.5)
    with pytest.raises(ValueError, match="ids must be integers or text, got real numbers"):
        second_half(np.array([1.0, 2.0]))
