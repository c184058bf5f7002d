"""Requirements: how they are read, when they are met, and what a CI system is told."""

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from counterpoise import compare, evaluate
from counterpoise.cli import parse
from counterpoise.cli.check import EXIT_MISSED, EXIT_UNDECIDED, read_rules
from counterpoise.functional.intervals import wilson_interval
from counterpoise.metrics.comparison import as_evaluation
from counterpoise.metrics.estimates import Estimate
from counterpoise.metrics.gate import Decision, Requirement, Verdict, decide, interval_level
from counterpoise.report import decisions
from counterpoise.testing import assert_calibrated


def logits_of(count, *, scale=3.0, noise=0.0, seed=0, classes=5):
    """Logits and labels; at a scale of 3 and without noise, confidence is honest."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    logits = torch.randn(count, classes, generator=generator)
    logits[torch.arange(count), labels] += 3.0
    return scale * (logits + noise * torch.randn(count, classes, generator=generator)), labels


@pytest.mark.slow
@given(
    st.sampled_from(["ece", "accuracy", "my_metric"]),
    st.booleans(),
    st.floats(-1e3, 1e3).map(lambda value: float(f"{value:g}")),
    st.booleans(),
)
def test_requirements_are_read_as_they_are_written(metric, at_most, limit, relative):
    written = Requirement(metric, at_most, limit + 0.0, relative=relative)
    assert Requirement.parsed(str(written)) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ece",
        "ece < 0.05",
        "ece <= five",
        "ece <= base * 2",
        "0.05 >= ece",
        "ece <= 1e999",
        "a b <= 1",
        "ece <= 1-1",
    ],
)
def test_what_is_no_requirement_is_refused(text):
    with pytest.raises(ValueError, match="requirement "):
        Requirement.parsed(text)


@pytest.mark.parametrize("at_most", [True, False])
def test_a_requirement_is_decided_by_the_whole_interval(at_most):
    logits, labels = logits_of(500)
    scores = as_evaluation(evaluate(logits=logits, labels=labels, level=0.9))
    estimate = scores.models[0].estimates["nll"]
    eps = 1e-9
    expected = {
        estimate.high + eps: "met" if at_most else "missed",
        estimate.value: "undecided",
        estimate.low - eps: "missed" if at_most else "met",
    }
    for limit, outcome in expected.items():
        (verdict,) = decide(scores, [Requirement("nll", at_most, limit)], level=0.95).verdicts
        assert verdict.outcome == outcome
        assert verdict.more_samples is None  # decided, or so near that it may as well be a tie
    near = (0.1 * estimate.low + 0.9 * estimate.high, 0.9 * estimate.low + 0.1 * estimate.high)
    for limit in near:
        (verdict,) = decide(scores, [Requirement("nll", at_most, limit)], level=0.95).verdicts
        assert verdict.outcome == "undecided"
        assert verdict.more_samples > 0


@pytest.mark.slow
@pytest.mark.parametrize("distance", [0.5, 1.0, 2.0])
def test_half_of_the_numbers_of_samples_that_are_named_are_too_small(distance):
    logits, labels = logits_of(500)
    scores = evaluate(logits=logits, labels=labels, level=0.9)
    half, named = 1.6448536269514722, []
    for seen in np.random.default_rng(0).normal(distance, 1, 2000):
        estimate = Estimate(seen, seen - half, seen + half)
        model = as_evaluation(replace(scores, estimates={"nll": estimate}))
        (verdict,) = decide(model, [Requirement("nll", at_most=False, limit=0.0)], level=0.95).verdicts
        if verdict.outcome == "undecided":
            named.append(math.inf if verdict.more_samples is None else 500 + verdict.more_samples)
    assert 1 / 1.5 < np.median(named) / max(500, 500 * (half / distance) ** 2) < 1.5


def test_more_requirements_need_more_evidence():
    assert interval_level(1, level=0.95) == pytest.approx(0.9)
    assert interval_level(10, level=0.95) == pytest.approx(0.99)


@pytest.mark.slow
@pytest.mark.parametrize("requirements", [1, 5, 10])
@pytest.mark.parametrize(("samples", "right"), [(100, 0.998), (1000, 0.9998), (2000, 0.995), (200, 0.9)])
def test_the_accuracy_of_a_good_model_is_misjudged_no_more_often_than_promised(samples, right, requirements):
    error = 0.05 / requirements
    scores = evaluate(probabilities=[[0.9, 0.1]], labels=[0], level=1 - 2 * error)
    rules = [Requirement("accuracy", at_most=False, limit=right)] * requirements
    wrong = dict.fromkeys(("met", "missed"), 0.0)
    for errors in range(min(samples, 60) + 1):
        hits = samples - errors
        low, high = wilson_interval(hits, samples, level=1 - 2 * error)
        known = replace(scores, samples=samples, estimates={"accuracy": Estimate(hits / samples, low, high)})
        decided = decide(as_evaluation(known), rules, level=0.95).outcome
        if decided in wrong:
            wrong[decided] += stats.binom.pmf(errors, samples, 1 - right)
    assert all(chance <= 1.5 * error for chance in wrong.values()), wrong


def flat(confidence, errors, count):
    """Predictions of two classes that are all as sure, the first of them wrong."""
    return np.tile([confidence, 1 - confidence], (count, 1)), (np.arange(count) < errors).astype(int)


def nll_of(confidence, accuracy):
    return -accuracy * math.log(confidence) - (1 - accuracy) * math.log(1 - confidence)


def met_at(counts, probability, decided):
    """How often a requirement is met, of one that is met by few errors alone: summed up to the first that is not."""
    return sum(probability(count) for count in takewhile(lambda count: decided(count).outcome == "met", counts))


@pytest.mark.parametrize(("confidence", "accuracy", "count"), [(0.99, 0.99, 60), (0.99, 0.99, 200), (0.9, 0.9, 10)])
@pytest.mark.parametrize("metric", ["nll", "brier"])
def test_a_model_with_few_errors_seldom_meets_a_limit_at_its_true_value(metric, confidence, accuracy, count):
    errors = 1 - accuracy
    brier = 2 * (accuracy * (1 - confidence) ** 2 + errors * confidence**2)
    rule = Requirement(metric, at_most=True, limit=nll_of(confidence, accuracy) if metric == "nll" else brier)

    def decided(wrong):
        probabilities, labels = flat(confidence, wrong, count)
        return decide(
            as_evaluation(evaluate(probabilities=probabilities, labels=labels, level=0.9)), [rule], level=0.95
        )

    assert met_at(range(count), stats.binom(count, errors).pmf, decided) <= 0.05


@pytest.mark.parametrize("count", [60, 150])
def test_a_worse_model_with_few_errors_seldom_looks_better(count):
    rule = Requirement.parsed("nll <= base")
    assert nll_of(0.999, 0.99) > nll_of(0.99, 0.99) + 0.01

    def decided(wrong):
        (base, labels), (model, _) = (flat(confidence, wrong, count) for confidence in (0.99, 0.999))
        both = {"base": {"probabilities": base}, "model": {"probabilities": model}}
        return decide(compare(both, labels=labels, level=0.9), [rule], level=0.95)

    assert met_at(range(count), stats.binom(count, 0.01).pmf, decided) <= 0.05


def test_a_model_that_only_loses_accuracy_seldom_passes():
    share = 0.027  # Wilson's upper limit of none in 100 is 2.6%, the exact one 3.0%
    rule = Requirement("accuracy", at_most=False, limit=-share, relative=True)

    def decided(lost):
        model, labels = flat(0.9, lost, 100)
        base = np.where(labels[:, None] == [0, 1], 0.9, 0.1)
        both = {"base": {"probabilities": base}, "model": {"probabilities": model}}
        return decide(compare(both, labels=labels, level=0.9), [rule], level=0.95)

    assert met_at(range(100), stats.binom(100, share).pmf, decided) <= 0.05


def test_few_errors_in_many_samples_still_decide():
    probabilities, labels = flat(0.999, 2, 4_000)
    scores = as_evaluation(evaluate(probabilities=probabilities, labels=labels, level=0.9))
    assert decide(scores, [Requirement.parsed("nll <= 0.05")], level=0.95).outcome == "met"


def test_a_limit_as_it_is_shown_is_refused_with_the_one_that_is_meant():
    logits, labels = logits_of(100)
    scores = as_evaluation(evaluate(logits=logits, labels=labels, level=0.9))
    for rule, meant in {
        "ece <= 5": "5% is 0.05",
        "classwise_ece <= 5": "5 e-3 is 0.005",
        "aurc <= 20": "20 e-3 is 0.02",
        "mean_gap <= 5": "5 points is 0.05",
    }.items():
        with pytest.raises(ValueError, match=meant):
            decide(scores, [Requirement.parsed(rule)], level=0.95)


def test_intervals_that_err_too_often_decide_nothing():
    logits, labels = logits_of(100)
    scores = as_evaluation(evaluate(logits=logits, labels=labels, level=0.9))
    with pytest.raises(ValueError, match=r"level 0\.9, .* need 0\.95: measure with level=0\.95"):
        decide(scores, [Requirement.parsed("nll <= 1")] * 2, level=0.95)


@pytest.mark.slow
def test_differences_of_the_same_samples_are_paired_and_of_others_wider():
    first, labels = logits_of(1000, noise=0.3, seed=1)
    second = first + 0.1 * torch.randn(first.shape, generator=torch.Generator().manual_seed(2))
    other, other_labels = logits_of(1000, noise=0.3, seed=3)
    requirement = [Requirement.parsed("accuracy >= base - 0.01")]
    together = compare({"base": {"logits": first}, "new": {"logits": second}}, labels=labels, level=0.9)
    (paired,) = decide(together, requirement, level=0.95).verdicts
    assert paired.paired
    assert paired.outcome == "met"
    models = [
        evaluate(logits=each, labels=truth, level=0.9) for each, truth in ((first, labels), (other, other_labels))
    ]
    apart = type(together)(models)
    (unpaired,) = decide(apart, requirement, level=0.95).verdicts
    assert not unpaired.paired
    assert unpaired.estimate.high - unpaired.estimate.low > 2 * (paired.estimate.high - paired.estimate.low)
    # Two proportions, by the textbook.
    p, q = (each.estimates["accuracy"].value for each in models)
    half = 1.645 * math.sqrt(p * (1 - p) / 1000 + q * (1 - q) / 1000)
    assert unpaired.estimate.high - unpaired.estimate.low == pytest.approx(2 * half, rel=0.05)


def files(tmp_path, *, count=400):
    paths = []
    for name, noise in (("base", 0.5), ("new", 0.0)):
        logits, labels = logits_of(count, noise=noise, scale=3.0)
        path = tmp_path / f"{name}.csv"
        rows = [",".join(["id", "label", *(f"p{k}" for k in range(5))])]
        rows += [
            ",".join([str(row), str(int(label)), *(f"{value:.6f}" for value in probabilities)])
            for row, (label, probabilities) in enumerate(zip(labels, logits.softmax(-1), strict=True))
        ]
        path.write_text("\n".join(rows))
        paths.append(str(path))
    return paths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("require", "code"),
    [
        (["accuracy >= 0.5", "accuracy >= base - 0.05"], 0),
        (["accuracy >= 0.5", "ece <= 0.000001", "accuracy >= 0.99"], EXIT_MISSED),
        (["accuracy >= 0.5", "nll <= base - 0.01"], EXIT_UNDECIDED),
    ],
)
def test_the_exit_code_is_the_decision(tmp_path, capsys, require, code):
    base, new = files(tmp_path, count=400 if code != EXIT_UNDECIDED else 40)
    junit, summary = tmp_path / "junit.xml", tmp_path / "summary.md"
    summary.write_text("# Before\n")
    command = ["check", new, "--against", base, "--require", *require, "--junit", str(junit), "--summary", str(summary)]
    with pytest.raises(SystemExit) as ended:
        parse([*command, "--json"]).run()
    found = json.loads(capsys.readouterr().out)
    assert ended.value.code == code, found
    outcomes = [verdict["outcome"] for verdict in found["verdicts"]]
    suite = ET.fromstring(junit.read_text())  # noqa: S314 (our own)
    assert len(suite.findall("testcase")) == len(require)
    assert len(suite.findall("testcase/failure")) == outcomes.count("missed")
    assert len(suite.findall("testcase/error")) == outcomes.count("undecided")
    assert summary.read_text().startswith("# Before\n")
    assert all(word.split()[0] in summary.read_text() for word in require)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("require = 3", "require must be a list of texts"),
        ("limits = []", "there is no key limits; there are require, level"),
        ("require = [", "--rules .*rules.toml: "),
        ("level = 2", "level must lie between 0 and 1"),
    ],
)
def test_rules_that_are_not_understood_are_refused(tmp_path, text, message):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_rules(path)


def test_rules_of_a_file_join_those_of_the_command(tmp_path, capsys):
    rules = tmp_path / "rules.toml"
    rules.write_text('require = ["nll <= 5"]\nlevel = 0.9\n')
    with pytest.raises(SystemExit):
        parse(["check", files(tmp_path)[1], "--require", "accuracy >= 0.5", "--rules", str(rules)]).run()
    printed = capsys.readouterr().out
    assert "nll <= 5" in printed
    assert "right with a probability of 90%" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "check needs requirements"),
        (["--require", "nll <= base"], "is about a base: name its predictions with --against"),
        (["--require", "necessity <= 1"], "there is no metric 'necessity' here; there are accuracy"),
        (["--require", "ece <= 5"], "ece is at most 1; 5% is 0.05"),
        (["--require", "accuracy >= 95"], "95% is 0.95"),
    ],
)
def test_what_cannot_be_checked_is_said(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        parse(["check", files(tmp_path)[1], *arguments]).run()


def test_models_of_other_samples_are_said_to_be_independent(tmp_path, capsys):
    """Files without ids whose rows differ: standard error and the table say the same of them."""
    paths = []
    for seed in range(2):
        logits, labels = logits_of(200, seed=seed)
        columns = [*torch.softmax(logits, -1).T.tolist(), labels.tolist()]
        paths.append(tmp_path / f"model{seed}.csv")
        head = ",".join([*(f"prob_{place}" for place in range(5)), "label"])
        paths[-1].write_text("\n".join([head, *(",".join(map(str, row)) for row in zip(*columns, strict=True))]))
    with pytest.raises(SystemExit):
        parse(["check", str(paths[1]), "--against", str(paths[0]), "--require", "accuracy >= base - 0.5"]).run()
    printed = capsys.readouterr()
    assert "not compared sample by sample; rows without ids are matched by position" in printed.err
    assert ", as independent samples" in printed.out


def test_an_infinite_difference_decides_nothing():
    sure, unsure = [[1.0, 0.0]] * 30, [[0.6, 0.4]] * 30
    both = compare({"base": {"probabilities": sure}, "new": {"probabilities": unsure}}, labels=[0] * 29 + [1])
    assert str(both.comparison.differences[0].estimates["nll"]) == "-inf"
    assert "-inf (" not in str(both)
    decision = decide(both, [Requirement.parsed("nll <= base")], level=0.95)
    assert decision.outcome == "undecided"


@pytest.mark.slow
def test_any_metric_of_an_evaluation_can_be_required():
    logits, labels = logits_of(600)
    other = logits + 0.1 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    evaluation = compare({"base": {"logits": logits}, "new": {"logits": other}}, labels=labels, level=0.999)
    alone = [Requirement(key, at_most=True, limit=1) for key in evaluation["new"]]
    relative = [Requirement(key, at_most=True, limit=0, relative=True) for key in evaluation["new"]]
    assert len(decide(evaluation, alone + relative, level=0.95).verdicts) == 2 * len(evaluation["new"])


@pytest.mark.parametrize("samples", [50, 600])
def test_a_few_more_samples_are_not_counted(samples):
    estimate = Estimate(0.1, 0.0, 0.2)
    verdict = Verdict(Requirement("ece", True, 0.1), "undecided", estimate, paired=False, samples=samples)
    for number, expected in ((1, f"fewer than {samples // 10} more samples"), (samples, f"{samples} more samples")):
        assert decisions.more_samples(replace(verdict, more_samples=number)) == expected


@pytest.mark.slow
def test_an_assertion_for_tests():
    logits, labels = logits_of(600)
    assert_calibrated({"logits": logits}, "accuracy >= 0.5", "ece <= 0.2", labels=labels)
    with pytest.raises(AssertionError, match=r"accuracy >= 0.999 is missed: .* to "):
        assert_calibrated({"logits": logits}, "accuracy >= 0.999", labels=labels)
    value = evaluate(logits=logits, labels=labels).estimates["accuracy"].value
    with pytest.raises(AssertionError, match="more samples would decide"):
        assert_calibrated({"logits": logits}, f"accuracy >= {value - 0.012}", labels=labels)
    assert_calibrated({"logits": logits}, f"accuracy >= {value}", labels=labels, allow_undecided=True)


def test_unknown_limits_are_null_in_json():
    logits, labels = logits_of(30)
    decision = decide(
        as_evaluation(evaluate(logits=logits, labels=labels)), [Requirement("ece", True, 0.1)], level=0.95
    )
    assert isinstance(decision, Decision)
    assert json.loads(decisions.as_json(decision))["schema"] == decisions.SCHEMA


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (Estimate(math.nan, math.nan, math.nan), "undefined on these samples"),
        (Estimate(0.1, math.nan, math.nan), "no interval here"),
        (Estimate(0.1, 0.0, 0.2), "too near to say"),
    ],
)
def test_why_nothing_can_be_decided_is_said(estimate, words):
    verdict = Verdict(Requirement("ece", True, 0.1), "undecided", estimate, False, 100)
    decision = Decision("model", None, 0.95, (verdict,))
    for text in (decisions.as_lines(decision), decisions.as_junit(decision)):
        assert words in text
        assert "nan to nan" not in text
