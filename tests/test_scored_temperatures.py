"""Files are scored at a temperature, and one is tried on each, as on the predictions in memory."""

import math

import numpy as np
import pytest
import torch

import counterpoise
import evaluations as made
from counterpoise.calibrators import TemperatureScaling
from counterpoise.metrics import ScoreOptions, ScoreState
from counterpoise.metrics.estimates import Key
from counterpoise.metrics.keys import sample_keys
from counterpoise.metrics.trial import MOST_SAMPLES, TrialSample
from counterpoise.scoring import fit_temperature, score_files
from counterpoise.scoring.recalibration import compare_scaled, try_temperature
from scored_files import K, drawn, same_estimates, write

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.mark.slow
def test_temperature_is_fitted_on_one_half_and_measured_on_the_other(tmp_path):
    logits, labels = drawn(10, n=4000, sharpness=3.0)
    path = write(tmp_path / "a.parquet", logits=logits, labels=labels)
    tried = score_files([path]).models[0].recalibration
    assert tried.temperature == pytest.approx(3.0, rel=0.1)
    assert (tried.state, tried.fitted_on, tried.measured_on) == ("converged", 2000, 2000)
    assert tried.after[Key.ECE].value < 0.3 * tried.before[Key.ECE].value
    assert sum(tried.bins_before.count) == sum(tried.bins_after.count) == 2000
    few = write(tmp_path / "few.parquet", logits=logits[:150], labels=labels[:150])
    assert score_files([few]).models[0].recalibration is None


@pytest.mark.slow
def test_models_are_compared_after_scaling_on_what_no_temperature_was_fitted_on(tmp_path):
    logits, labels = drawn(10, n=4000, sharpness=3.0)
    better = logits + 0.8 * torch.nn.functional.one_hot(labels, K)
    paths = [
        write(tmp_path / f"{name}.parquet", logits=each, labels=labels)
        for name, each in (("as-it-is", logits), ("cooler", logits / 3), ("better", better))
    ]
    found = score_files(paths)
    cooler, gained, _ = (each.estimates for each in found.scaled.differences)
    assert found.scaled.samples == 2000
    assert set(cooler) == set(found.models[0].recalibration.after)
    # What differs in temperature alone, differs in nothing once scaled.
    assert found.comparison.differences[0].estimates[Key.NLL].high < -0.1
    for key in (Key.NLL, Key.BRIER, Key.MEAN_GAP):
        assert cooler[key].value == pytest.approx(0, abs=1e-4)
    assert gained[Key.NLL].high < 0
    for key, estimate in gained.items():
        first, third = (found.models[place].recalibration.after[key].value for place in (0, 2))
        assert estimate.value == pytest.approx(third - first, abs=1e-6)
    assert type(found).from_json(found.to_json()) == found


@pytest.mark.slow
def test_nothing_is_compared_after_scaling_where_that_was_not_tried_alike(tmp_path):
    logits, labels = drawn(10, n=150)
    one, other = (
        write(tmp_path / f"{name}.parquet", logits=each, labels=labels)
        for name, each in (("a", logits), ("b", -logits))
    )
    few = score_files([one, other])
    assert few.comparison is not None
    assert few.scaled is None
    samples = []
    for first in (0, 1000):
        state = ScoreState(classes=K)
        more, its_labels = drawn(10, n=600)
        state.update(logits=more, labels=its_labels, ids=np.arange(first, first + 600))
        samples.append(state.headline.trial)
    models = [made.scores(0), made.scores(1)]
    assert compare_scaled(samples, models, options=ScoreOptions()) is None
    assert compare_scaled([samples[0]] * 2, models, options=ScoreOptions()).samples == 300


@pytest.mark.slow
def test_corrupted_copies_of_a_sample_are_not_taken_for_each_other():
    logits, labels = drawn(10, n=600)
    kinds = {"fog": logits, "snow": logits.roll(1, -1)}
    samples = []
    for order in (("fog", "snow"), ("snow", "fog")):
        state = ScoreState(classes=K)
        for kind in order:
            columns = {"corruption": [kind] * 600, "severity": [1] * 600}
            state.update(logits=kinds[kind], labels=labels, ids=np.arange(600), columns=columns)
        samples.append(state.headline.trial)
    models = [made.scores(0), made.scores(1)]
    assert compare_scaled(samples, models, options=ScoreOptions()) is None
    assert compare_scaled([samples[0]] * 2, models, options=ScoreOptions()).samples == 600


@pytest.mark.slow
def test_the_sample_that_a_temperature_is_tried_on_depends_on_ids_alone():
    rows = MOST_SAMPLES + 20_000
    logits, labels = (
        torch.randn(rows, 2, generator=torch.Generator().manual_seed(11)),
        torch.zeros(rows, dtype=torch.long),
    )
    results = []
    for step in (rows, 50_000, 7_001):
        sample, order = TrialSample(2), torch.randperm(rows, generator=torch.Generator().manual_seed(step))
        for part in order.split(step):
            batch = counterpoise.metrics.inputs.prediction_table(
                logits=logits[part], labels=labels[part]
            ).checked_rows()
            sample.add(batch, sample_keys(part), np.zeros(len(part), np.uint64))
        assert len(sample) == MOST_SAMPLES
        results.append(sample.samples()[0])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert try_temperature(TrialSample(K), options=ScoreOptions()) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logits", "probabilities", "members"])
def test_scores_at_a_temperature_are_those_of_scaled_predictions(tmp_path, kind):
    logits, labels = drawn(0)
    foreign = torch.randn(200, K, generator=torch.Generator().manual_seed(1))
    temperature = 1.7
    if kind == "logits":
        columns, foreign_columns = {"logits": logits}, {"logits": foreign}
        scaled, foreign_scaled = logits / temperature, foreign / temperature
    elif kind == "probabilities":
        columns, foreign_columns = {"probabilities": logits.softmax(-1)}, {"probabilities": foreign.softmax(-1)}
        scaled, foreign_scaled = logits / temperature, foreign / temperature
    else:
        members, foreign_members = torch.stack([logits, logits.roll(1, -1)], 1), torch.stack([foreign, 2 * foreign], 1)
        columns, foreign_columns = {"logits": members}, {"logits": foreign_members}
        scaled = members.softmax(-1).mean(1).log() / temperature
        foreign_scaled = foreign_members.softmax(-1).mean(1).log() / temperature
    path = write(tmp_path / "a.parquet", labels=labels, **columns)
    other = write(tmp_path / "svhn.parquet", **foreign_columns)
    (found,) = score_files([path], ood=[other], temperature=temperature).models
    expected = counterpoise.evaluate(logits=scaled, labels=labels, ood_logits=foreign_scaled)
    same_estimates(found.estimates, expected.estimates, rel=1e-4)
    same_estimates(found.misclassification.estimates, expected.misclassification.estimates, rel=1e-4)
    same_estimates(found.ood["svhn"].estimates, expected.ood["ood"].estimates, rel=1e-4)


def test_a_temperature_is_fitted_on_a_file_as_on_its_logits(tmp_path):
    logits, labels = drawn(0, sharpness=2.0)
    fitted = fit_temperature(write(tmp_path / "validation.parquet", logits=logits, labels=labels))
    assert fitted.temperature == TemperatureScaling().fit(logits, labels).temperature
    assert fitted.temperature == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_that_is_none_is_refused(tmp_path, temperature):
    path = write(tmp_path / "a.parquet", **dict(zip(("logits", "labels"), drawn(0), strict=True)))
    with pytest.raises(ValueError, match="temperature must be positive"):
        score_files([path], temperature=temperature)


def test_a_temperature_is_of_one_model(tmp_path):
    logits, labels = drawn(3, n=60)
    rows = [
        [name, int(label), *row] for name in ("one", "two") for label, row in zip(labels, logits.tolist(), strict=True)
    ]
    head = ",".join(["model", "label", *(f"logit_{k}" for k in range(K))])
    path = tmp_path / "two.csv"
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    with pytest.raises(ValueError, match="it holds the models one, two"):
        fit_temperature(path)


def test_the_sample_is_kept_though_its_buffer_is_filled_again():
    logits, labels = drawn(5, n=64)
    kept, buffer = ScoreState(classes=K), ScoreState(classes=K)
    kept.update(logits=logits.clone(), labels=labels.clone())
    reused, reused_labels = logits.clone(), labels.clone()
    buffer.update(logits=reused, labels=reused_labels)
    reused.zero_(), reused_labels.zero_()
    assert buffer.to_bytes() == kept.to_bytes()
