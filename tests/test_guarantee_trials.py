"""What prediction sets and thresholds promise and do in a report."""

import math
from dataclasses import replace
from datetime import date
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import beta, betabinom

import evaluations as made
from counterpoise import Scores
from counterpoise.calibrators import ConformalSets, SelectiveThreshold
from counterpoise.metrics.state import ScoreState
from counterpoise.metrics.summary import ordered_groups
from counterpoise.report import guarantees as shown
from counterpoise.report.page import render
from counterpoise.scoring import score_files
from counterpoise.scoring.guarantees import try_guarantees

pytestmark = pytest.mark.slow

K, N = 5, 3000


@pytest.fixture(scope="module")
def drawn():
    generator = torch.Generator().manual_seed(5)
    logits = 3 * torch.randn(N, K, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator).squeeze(-1)
    # Of the region "south", the model knows nothing.
    south = torch.rand(N, generator=generator) < 0.2
    labels[south] = torch.randint(K, (int(south.sum()),), generator=generator)
    return logits, labels, ["south" if each else "north" for each in south.tolist()]


@pytest.fixture(scope="module")
def state(drawn):
    logits, labels, region = drawn
    found = ScoreState(classes=K)
    found.update(logits=logits, labels=labels, columns={"region": region})
    return found


def test_what_is_counted_is_what_the_calibrators_say_of_the_other_half(drawn, state):
    tried = try_guarantees(state.headline.trial, groups=ordered_groups(state.groups), alpha=0.2, risk=0.4, delta=0.2)
    logits, labels, codes = state.headline.trial.samples()
    sets = ConformalSets.fit(logits[: N // 2], labels[: N // 2], alpha=0.2)(logits[N // 2 :])
    accept = SelectiveThreshold.fit(logits[: N // 2], labels[: N // 2], risk=0.4, delta=0.2)
    rest = labels[N // 2 :]
    held = sets[torch.arange(len(rest)), rest]
    assert (tried.alpha, tried.fitted_on, tried.measured_on) == (0.2, N // 2, N - N // 2)
    assert tried.sizes == [int((sets.sum(-1) == size).sum()) for size in range(int(sets.sum(-1).max()) + 1)]
    for label in range(K):
        own = rest == label
        found = tried.by_class
        assert found.samples[label] == int(own.sum())
        assert found.held[label] == int(held[own].sum())
        assert found.labels[label] == int(sets[own].sum())
    assert tried.threshold == accept.threshold < math.inf
    accepted = accept(logits[N // 2 :])
    assert tried.accepted == int(accepted.sum())
    assert tried.errors == int((logits[N // 2 :].argmax(-1)[accepted] != rest[accepted]).sum())
    # Groups are in the order of those of the scores, and every sample is in one.
    names = [group.columns["region"] for group in state.compute().groups]
    assert names == ["north", "south"]
    assert sum(tried.by_group.samples) == tried.measured_on
    regions = dict(zip(map(tuple, drawn[0].tolist()), drawn[2], strict=True))
    south = [regions[tuple(row)] == "south" for row in logits[N // 2 :].tolist()]
    assert tried.by_group.samples[1] == sum(south)
    assert tried.by_group.held[1] == int(held[torch.tensor(south)].sum())
    assert len(np.unique(codes)) == 2


def test_groups_that_sets_fail_are_named_and_others_are_not(drawn, tmp_path):
    logits, labels, region = drawn
    path = tmp_path / "a.csv"
    rows = [",".join(f"{value:.5f}" for value in row) for row in torch.softmax(logits, -1).tolist()]
    lines = [f"{row},{label},{where}" for row, label, where in zip(rows, labels.tolist(), region, strict=True)]
    path.write_text("\n".join([",".join([f"p{k}" for k in range(K)] + ["label", "region"]), *lines]))
    (scores,) = score_files([path], by=["region"], alpha=0.2).models
    sentence = shown.sets_sentence(scores)
    assert "hold the label of region south less often, beyond chance" in sentence
    by_group = {row.name: row for row in shown.group_coverage(scores)}
    assert list(by_group) == ["region south", "region north"]
    assert by_group["region south"].high < 0.8
    assert Scores.from_json(scores.to_json()) == scores
    tables = shown.coverage_tables(scores)
    assert [table.title for table in tables] == ["Sets by class", "Sets by group"]
    assert [row[2].worse for row in tables[1].rows] == [True, False]


def test_limits_hold_for_all_rows_together_and_agree_with_scipy():
    scores = made.scores()
    rows, level = shown.class_coverage(scores), 1 - (1 - scores.level) / scores.classes
    for row in rows:
        hits = round(row.share * row.samples)
        low = beta.ppf((1 - level) / 2, hits, row.samples - hits + 1) if hits else 0.0
        assert row.low == pytest.approx(low, abs=1e-9)
        assert row.high == pytest.approx(beta.ppf((1 + level) / 2, hits + 1, row.samples - hits), abs=1e-9)
    assert [row.high for row in rows] == sorted(row.high for row in rows)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_what_chance_leaves_is_the_beta_binomial_law(alpha):
    tried = replace(made.scores().guarantees, alpha=alpha, fitted_on=1000, measured_on=800)
    k = math.ceil(1001 * (1 - Fraction(str(alpha))))
    law = betabinom(800, k, 1001 - k)
    scores = replace(made.scores(), guarantees=tried, level=0.95)
    words = shown.sets_sentence(scores).split("between about ")[1].split(")")[0].replace("%", "").split(" and ")
    assert [float(each) / 100 for each in words] == pytest.approx(
        [law.ppf(0.025) / 800, law.ppf(0.975) / 800], abs=4e-3
    )


def test_nothing_is_promised_of_too_few_samples_or_an_impossible_risk(drawn):
    logits, labels, _ = drawn
    few = ScoreState(classes=K)
    few.update(logits=logits[:150], labels=labels[:150])
    assert try_guarantees(few.headline.trial) is None
    scores = made.scores()
    hopeless = replace(scores, guarantees=replace(scores.guarantees, threshold=math.inf, accepted=0, errors=0))
    assert shown.threshold_sentence(hopeless).startswith("No threshold can promise that, with probability 90%")
    none = replace(scores, guarantees=replace(scores.guarantees, threshold=0.9, accepted=0, errors=0))
    assert shown.threshold_sentence(none).endswith("it accepts 0.0%.")
    assert Scores.from_json(hopeless.to_json()).guarantees.threshold == math.inf
    assert (shown.sets_sentence(plain := replace(scores, guarantees=None)), shown.threshold_sentence(plain)) == ("", "")
    assert shown.coverage_tables(plain) == []


def test_states_of_before_there_were_groups_in_trials_are_read(state):
    tensors = state.headline.trial.tensors()
    del tensors["groups"]
    older = type(state.headline.trial).of_tensors(tensors, classes=K)
    tried = try_guarantees(older, groups=ordered_groups(state.groups))
    assert tried.by_group.samples == [0, 0]
    assert tried.by_class == try_guarantees(state.headline.trial).by_class
    tensors["labels"] = tensors["labels"][1:]
    with pytest.raises(ValueError, match="more of one column"):
        type(older).of_tensors(tensors, classes=K)


def test_the_page_says_what_was_promised_and_seen():
    evaluation = made.evaluation(2)
    page = render(evaluation, day=date(2026, 1, 1))
    assert "Which labels are still possible?" in page
    for model in evaluation.models:
        for sentence in (shown.sets_sentence(model), shown.threshold_sentence(model)):
            assert sentence in page
        assert "town less often" in shown.sets_sentence(model)
