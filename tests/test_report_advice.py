"""The line of advice: it says what the scores show, and no more."""

import math
import re
from dataclasses import replace

import pytest
import torch

import evaluations as made
from counterpoise.metrics import Estimate, Key
from counterpoise.metrics.comparison import Evaluation
from counterpoise.predictions import Predictions, write_predictions
from counterpoise.report.advice import advice_between, advice_for
from counterpoise.scoring import score_files


def test_a_temperature_is_advised_where_it_clearly_helps():
    averaged = made.scores(0)
    assert "Divide the log of the mean probabilities by" in advice_for(averaged).line
    scores = replace(averaged, source=replace(averaged.source, members=None))
    tried = scores.recalibration
    before, after = (measured[Key.ECE].value for measured in (tried.before, tried.after))
    advice = advice_for(scores)
    assert advice.line == f"Divide the logits by {tried.temperature:.2f}: ECE from {before:.1%} to {after:.1%}."
    probable = replace(scores, source=replace(scores.source, kind="probabilities"))
    assert "Divide the log-probabilities by" in advice_for(probable).line
    stuck = replace(scores, recalibration=replace(tried, state="at highest temperature"))
    same = replace(scores, recalibration=replace(tried, after=tried.before))
    for each in (stuck, same):
        assert "does not clearly mend" in advice_for(each).line


@pytest.mark.parametrize(
    ("gap", "ece", "words"),
    [
        (Estimate(0.05, 0.03, 0.07), Estimate(0.05, 0.03, 0.07), "Overconfident by 5.0 points"),
        (Estimate(-0.05, -0.07, -0.03), Estimate(0.05, 0.03, 0.07), "Underconfident by 5.0 points"),
        (Estimate(0.01, -0.01, 0.03), Estimate(0.05, 0.03, 0.07), "wrong in places"),
        (Estimate(0.01, -0.01, 0.03), Estimate(0.05, 0.0, 0.07), "Nothing to mend"),
    ],
)
def test_without_a_trial_the_gap_speaks(gap, ece, words):
    scores = made.scores(0)
    estimates = scores.estimates | {Key.MEAN_GAP: gap, Key.ECE: ece}
    assert words in advice_for(replace(scores, estimates=estimates, recalibration=None)).line


def written(folder, *, times):
    """Two models that are close, on 300 samples that are repeated so often."""
    generator = torch.Generator().manual_seed(5)
    truth = 2 * torch.randn(300, 4, generator=generator)
    labels = torch.multinomial(torch.softmax(truth, -1), 1, generator=generator).squeeze(-1)
    for name in ("one", "two"):
        noise = 0.45 if name == "two" else 0.3
        logits = truth + noise * torch.randn(truth.shape, generator=generator)
        table = Predictions.of(logits=logits.repeat(times, 1), labels=labels.repeat(times))
        write_predictions(folder / f"{name}.parquet", table)
    return score_files([folder / "one.parquet", folder / "two.parquet"])


@pytest.mark.slow
def test_as_many_more_samples_as_are_advised_decide_if_the_difference_stays(tmp_path):
    few = written(tmp_path, times=1)
    advice = advice_between(few)
    found = re.search(r"leads .* in NLL by .*, which may be chance: ([\d,]+) more samples would decide, if it stays", advice.line)  # fmt: skip
    times = (300 + int(found[1].replace(",", ""))) / 300
    assert times > 2
    assert "even chance" in advice.why
    assert "more samples would decide" in advice_between(written(tmp_path, times=int(0.85 * times))).line
    assert advice_between(written(tmp_path, times=int(1.15 * times) + 1)).line.startswith("Take ")


@pytest.mark.slow
def test_a_decided_comparison_names_the_model_and_what_it_loses():
    evaluation = replace(made.evaluation(2), scaled=None)
    line = advice_between(evaluation).line
    nll = evaluation.comparison.differences[0].estimates[Key.NLL]
    assert nll.high < 0
    assert line.startswith(f"Take net 1: its NLL is {-nll.value:.4f} nats lower than that of net 0")
    (difference,) = evaluation.comparison.differences
    lost = difference.estimates | {Key.ACCURACY: Estimate(-0.03, -0.05, -0.01)}
    worse = replace(evaluation.comparison, differences=[replace(difference, estimates=lost)])
    assert "worse, beyond chance, in Accuracy" in advice_between(replace(evaluation, comparison=worse)).why


def test_a_lead_says_whether_it_outlives_temperature_scaling():
    evaluation = made.evaluation(2)
    (difference,) = evaluation.scaled.differences
    for nll, words in (
        (Estimate(-0.05, -0.08, -0.02), "it stays ahead"),
        (Estimate(-0.05, -0.12, 0.02), "chance may explain what is left"),
    ):
        scaled = replace(difference, estimates=difference.estimates | {Key.NLL: nll})
        after = [{Key.NLL: Estimate(value, value, value)} for value in (0.5, 0.45)]
        models = [
            replace(model, recalibration=replace(model.recalibration, after=each))
            for model, each in zip(evaluation.models, after, strict=True)
        ]
        changed = replace(evaluation.scaled, differences=[scaled])
        advice = advice_between(replace(evaluation, models=models, scaled=changed))
        assert advice.line.startswith("Take net 1")
        assert words in advice.why


@pytest.mark.slow
@pytest.mark.parametrize("third", [False, True])
def test_what_is_the_best_after_scaling_alone_is_advised_with_its_temperature(tmp_path, third):
    generator = torch.Generator().manual_seed(0)
    truth = 6 * torch.randn(4000, 10, generator=generator)
    labels = torch.multinomial(torch.softmax(truth, -1), 1, generator=generator).squeeze(-1)
    sharpness = {"sharp": (2.0, 0.4), "calm": (0.95, 0.7)} | ({"worst": (1.0, 2.0)} if third else {})
    for name, (factor, noise) in sharpness.items():
        logits = factor * (truth + noise * torch.randn(truth.shape, generator=generator))
        write_predictions(tmp_path / f"{name}.parquet", Predictions.of(logits=logits, labels=labels))
    evaluation = score_files([tmp_path / f"{name}.parquet" for name in sharpness])
    advice = advice_between(evaluation)
    temperature = evaluation["sharp"].recalibration.temperature
    assert evaluation["calm"][Key.NLL].value < evaluation["sharp"][Key.NLL].value
    assert advice.line.startswith(f"Divide the logits of sharp by {temperature:.2f}, and take it: ")
    assert "calm leads" in advice.why
    if third:
        assert "beyond chance against each of the 2 others, scaled too" in advice.line
    else:
        nll = evaluation.scaled.differences[0].estimates[Key.NLL]
        assert (
            f"{nll.value:.4f} nats lower than that of calm, scaled too ({nll.low:.4f} to {nll.high:.4f})" in advice.line
        )
    # The same where chance may explain who leads without.
    undecided = [
        replace(each, estimates=each.estimates | {Key.NLL: Estimate(0.01, -0.01, 0.03)})
        for each in evaluation.comparison.differences
    ]
    close = replace(evaluation, comparison=replace(evaluation.comparison, differences=undecided))
    assert advice_between(close).line == advice.line
    assert "chance may explain who leads" in advice_between(close).why
    # A temperature at its bound was not found.
    models = [
        replace(model, recalibration=replace(model.recalibration, state="at highest temperature"))
        for model in evaluation.models
    ]
    assert advice_between(replace(evaluation, models=models)).line.startswith("Take calm")


def compared_by(estimates, *, models=3):
    """An evaluation whose NLL is as given, by pair; all pairs are decided the same once scaled, unless given."""
    evaluation = made.evaluation(models)

    def changed(comparison, values):
        differences = [
            replace(each, estimates=each.estimates | {Key.NLL: values[each.first, each.second]}, ood={})
            for each in comparison.differences
        ]
        return replace(comparison, differences=differences)

    plain, scaled, value, after = estimates
    found = [
        replace(
            model,
            estimates=model.estimates | {Key.NLL: Estimate(one, one, one)},
            recalibration=replace(model.recalibration, after={Key.NLL: Estimate(other, other, other)}),
        )
        for model, one, other in zip(evaluation.models, value, after, strict=True)
    ]
    return replace(
        evaluation,
        models=found,
        comparison=changed(evaluation.comparison, plain),
        scaled=changed(evaluation.scaled, scaled),
    )


def test_what_overtakes_the_leader_once_scaled_is_advised_though_it_ties_with_another():
    lower, higher, tie = Estimate(-0.06, -0.09, -0.03), Estimate(0.06, 0.03, 0.09), Estimate(0.0, -0.02, 0.02)
    plain = {(0, 1): higher, (0, 2): higher, (1, 2): tie}
    scaled = {(0, 1): lower, (0, 2): lower, (1, 2): tie}
    advice = advice_between(compared_by((plain, scaled, (0.5, 0.6, 0.6), (0.505, 0.445, 0.440))))
    assert re.match(r"Divide the .* of net 2 by .*, and take it: it then has the best NLL, ", advice.line)
    assert "beyond chance against net 0, scaled too" in advice.line


def test_what_is_worse_once_scaled_is_said_and_so_is_an_infinite_nll():
    evaluation = made.evaluation(2)
    (difference,) = evaluation.scaled.differences
    lost = replace(difference, estimates=difference.estimates | {Key.ECE: Estimate(-0.05, -0.06, -0.04)})
    advice = advice_between(replace(evaluation, scaled=replace(evaluation.scaled, differences=[lost])))
    assert "of net 0 by" in advice.line
    assert re.search("But net 0 is worse, beyond chance, in .*ECE", advice.why)
    (plain,) = evaluation.comparison.differences
    never = replace(plain, estimates=plain.estimates | {Key.NLL: Estimate(math.inf, math.inf, math.inf)})
    models = [
        evaluation.models[0],
        replace(
            evaluation.models[1],
            estimates=evaluation.models[1].estimates | {Key.NLL: Estimate(math.inf, math.nan, math.nan)},
        ),
    ]
    comparison = replace(evaluation.comparison, differences=[never])
    advice = advice_between(replace(evaluation, models=models, comparison=comparison, scaled=None))
    assert advice.line.startswith("Take net 1")
    assert "net 1 gives some labels the probability 0, so that its NLL is infinite" in advice.why


def test_equal_models_are_called_equal():
    evaluation = replace(made.evaluation(2), scaled=None)
    same = [evaluation.models[0], replace(evaluation.models[0], source=made.source(1))]
    (difference,) = evaluation.comparison.differences
    nothing = replace(difference, estimates={key: Estimate(0.0, 0.0, 0.0) for key in difference.estimates})
    comparison = replace(evaluation.comparison, differences=[nothing])
    line = advice_between(replace(evaluation, models=same, comparison=comparison)).line
    assert line == "net 0 and net 1 have the same NLL."


def test_nothing_is_said_of_models_that_are_not_compared():
    assert advice_between(Evaluation(made.evaluation(2).models)) is None


def test_differences_that_are_too_small_are_called_equal():
    evaluation = replace(made.evaluation(2), scaled=None)
    (difference,) = evaluation.comparison.differences
    tiny = difference.estimates | {Key.NLL: Estimate(0.0001, -0.0499, 0.0501)}
    close = replace(evaluation.comparison, differences=[replace(difference, estimates=tiny)])
    assert "Treat them as equal" in advice_between(replace(evaluation, comparison=close)).line
